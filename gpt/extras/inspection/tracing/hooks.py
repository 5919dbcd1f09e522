"""Hook the modules where each named activation can be seen and changed.

A hook is called with a name and a tensor, and returns the tensor that the model continues with. Hooks are added to a
copy of the modules, so that the model itself does not slow down.
"""

import inspect
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gpt.model import GPT
from gpt.model.attention import masked_scores, weighted_sum
from gpt.model.gpt import Block
from gpt.model.layers import SwiGLU
from gpt.system.errors import InputError

Hook = Callable[[str, Tensor], Tensor]
TensorHook = Callable[[Tensor], Tensor]
"""A hook of one name."""
TOLERANCE = 0.02
"""Largest norm of a difference, relative to the result: fused kernels and formulas round differently in bfloat16."""
NATIVE = "gpt.native."
"""Where the classes are that stand in place of those of a model while it trains, and do not call the modules inside."""
INSIDE_CORE = ("attn.hook_rot_q", "attn.hook_rot_k", "attn.hook_attn_scores", "attn.hook_pattern")


class HookedCore(nn.Module):
    """Attention written out, with a hook for every tensor that a fused kernel does not keep.

    What is written out is compared with `core`, which computes attention in the model.
    """

    def __init__(self, core: nn.Module, hook: Hook) -> None:
        super().__init__()
        self.core, self.hook = core, hook

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Compute attention of queries (B, H, T, D) to keys and values (B, K, S, D) -> (B, H, T, D)."""
        with torch.no_grad():
            written_out = weighted_sum(masked_scores(q, k, mask).softmax(dim=-1), v)
            require_equal(
                "attention", "softmax(q k^T / sqrt(D)) v", written_out, self.core(q, k, v, mask)
            )
        # named axes are B T H D
        q = self.hook("attn.hook_rot_q", q.transpose(1, 2)).transpose(1, 2)
        k = self.hook("attn.hook_rot_k", k.transpose(1, 2)).transpose(1, 2)
        scores = self.hook("attn.hook_attn_scores", masked_scores(q, k, mask))
        pattern = self.hook("attn.hook_pattern", scores.softmax(dim=-1))
        return weighted_sum(pattern, v)


def unfused_copy(model: GPT) -> GPT:
    """Return a model in eval mode with the parameters, buffers and hooks of another, computed operator by operator.

    Hooks and modules of the copy can be changed while other threads use the model itself. Wrappers of compilers and
    native kernels are left out, since they would not call new hooks.
    """
    copy: GPT = _copy(getattr(model, "_orig_mod", model))  # torch.compile wraps the model
    return copy.eval()


def _copy(module: Any) -> Any:
    kind = next(base for base in type(module).__mro__ if not base.__module__.startswith(NATIVE))
    copy: Any = object.__new__(kind)
    state = {
        name: value.copy() if isinstance(value, dict) else value
        for name, value in vars(module).items()
    }
    state.pop("_compiled_call_impl", None)
    if "forward" in state and _wraps_own_forward(module):
        del state["forward"]
    state["_modules"] = {name: child and _copy(child) for name, child in module._modules.items()}
    copy.__dict__.update(state)
    return copy


def _wraps_own_forward(module: nn.Module) -> bool:
    """Return whether the forward that was set on a module wraps that of its class, as torch.compile's result does."""
    wrapped = inspect.unwrap(vars(module)["forward"])
    return getattr(wrapped, "__func__", wrapped) is inspect.unwrap(type(module).forward)


def with_hooks(model: GPT, names: Collection[str], hook: Hook) -> GPT:
    """Return a copy of a model, with its parameters, that hooks these activations in every forward pass.

    The pass raises InputError where a module that a hook is on is not called.
    """
    copy, wanted, called = unfused_copy(model), set(names), set[str]()

    def call(name: str, x: Tensor) -> Tensor:
        called.add(name)
        return hook(name, x)

    def hook_wanted(prefix: str, name: str, x: Tensor) -> Tensor:
        return call(prefix + name, x) if prefix + name in wanted else x

    def add(name: str, path: str, register: Register) -> None:
        if name in wanted:  # a plugin's part has other modules inside, and no such activations
            tap: TensorHook = partial(call, name)
            register(
                copy.get_submodule(path),
                _by_head(copy.config.head_dim, tap) if name.endswith(BY_HEAD) else tap,
            )

    for name, (path, register) in ENDS.items():
        add(name, path, register)
    for layer, block in enumerate(copy.h):
        assert isinstance(block, Block)
        for name, (path, register) in SITES.items():
            inside = (
                "mlp.c_gate" if name == "mlp.hook_pre" and isinstance(block.mlp, SwiGLU) else path
            )
            add(f"blocks.{layer}.{name}", f"h.{layer}.{inside}".rstrip("."), register)
        if any(f"blocks.{layer}.{name}" in wanted for name in INSIDE_CORE):
            block.attn.core = HookedCore(block.attn.core, partial(hook_wanted, f"blocks.{layer}."))
    copy.register_forward_hook(lambda *_: _require_called(wanted - called))
    return copy


def _require_called(missing: Collection[str]) -> None:
    if missing:
        raise InputError(
            f"{min(missing)} cannot be seen: the module that computes it is not called, since the forward of one "
            "around it was replaced; restore that (del module.forward)"
        )


def require_equal(what: str, formula: str, expected: Tensor, found: Tensor) -> None:
    """Raise InputError where a model computes something else than the formula that shows it."""
    expected, found = expected.detach().float(), found.detach().float()
    difference = (expected - found).norm() / expected.norm().clamp(min=1e-30)
    if difference > TOLERANCE:  # what is not finite is shown as it is
        raise InputError(
            f"{what} cannot be shown: this model computes something else than {formula}, which differs by "
            f"{float(difference):.2g}"
        )


def _on_positions(module: nn.Module, hook: TensorHook) -> None:
    """Hook the position vectors, computed by adding positions to zeros."""
    module.register_forward_hook(
        lambda module, inputs, output: (
            inputs[0] + hook(module.forward(torch.zeros_like(inputs[0]), inputs[1]))
        )
    )


def _by_head(head_dim: int, hook: TensorHook) -> TensorHook:
    """Make a hook that taps (B, T, heads * D) as (B, T, heads, D)."""
    return lambda x: hook(x.view(*x.shape[:-1], -1, head_dim)).flatten(-2)


def _on_output(module: nn.Module, hook: TensorHook) -> None:
    module.register_forward_hook(lambda module, inputs, output: hook(output))


def _on_input(module: nn.Module, hook: TensorHook) -> None:
    module.register_forward_pre_hook(lambda module, inputs: (hook(inputs[0]), *inputs[1:]))


Register = Callable[[nn.Module, TensorHook], None]
ENDS: dict[str, tuple[str, Register]] = {
    "hook_embed": ("wte", _on_output),
    "hook_pos_embed": ("wpe", _on_positions),
    "ln_final.hook_normalized": ("ln_f", _on_output),
    "logits": ("", _on_output),
}
SITES: dict[str, tuple[str, Register]] = {
    "hook_resid_pre": ("", _on_input),
    "ln1.hook_normalized": ("ln_1", _on_output),
    "attn.hook_q": ("attn.c_q", _on_output),
    "attn.hook_k": ("attn.c_k", _on_output),
    "attn.hook_v": ("attn.c_v", _on_output),
    "attn.hook_z": ("attn.c_proj", _on_input),
    "hook_attn_out": ("attn", _on_output),
    "ln2.hook_normalized": ("ln_2", _on_output),
    "mlp.hook_pre": ("mlp.c_fc", _on_output),
    "mlp.hook_pre_linear": ("mlp.c_fc", _on_output),
    "mlp.hook_post": ("mlp.c_proj", _on_input),
    "hook_mlp_out": ("mlp", _on_output),
    "hook_resid_post": ("", _on_output),
}
"""The modules in a block and the sides of them where activations are; hooks on one module are called in this order."""
BY_HEAD = ("hook_q", "hook_k", "hook_v", "hook_z")
