"""Hook the modules where each named activation can be seen and changed.

A hook is called with a name and a tensor, and returns the tensor that the model continues with.
Hooks are added to a copy of the modules, so that the model itself does not slow down.
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
"""Takes the full name of an activation and its tensor, and returns the one to continue with."""
TensorHook = Callable[[Tensor], Tensor]
"""A hook of one name."""
Register = Callable[[nn.Module, TensorHook], None]
"""Puts a hook on one side of a module."""
TOLERANCE = 0.02
"""Largest norm of a difference, relative to the result.

Fused kernels and formulas round differently in bfloat16.
"""
INSIDE_CORE = ("attn.hook_rot_q", "attn.hook_rot_k", "attn.hook_attn_scores", "attn.hook_pattern")
"""Activations of a block that are no input or output of a module."""


class HookedCore(nn.Module):
    """Attention written out, with a hook for every tensor that a fused kernel does not keep.

    Args:
        core: computes attention in the model. What is written out is compared with it.
        hook: is called with names that begin with `prefix`.
        prefix: names the block, such as `blocks.0.`.
    """

    def __init__(self, core: nn.Module, hook: Hook, prefix: str) -> None:
        super().__init__()
        self.core = core
        self.hook = hook
        self.prefix = prefix

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Compute attention of queries (B, H, T, D) to keys and values (B, K, S, D).

        The result is (B, H, T, D).
        """
        with torch.no_grad():
            written_out = weighted_sum(masked_scores(q, k, mask).softmax(dim=-1), v)
            of_core = self.core(q, k, v, mask)
            require_equal("attention", "softmax(q k^T / sqrt(D)) v", written_out, of_core)
        # The axes of these two names are B T H D.
        q = self._call("attn.hook_rot_q", q.transpose(1, 2)).transpose(1, 2)
        k = self._call("attn.hook_rot_k", k.transpose(1, 2)).transpose(1, 2)
        scores = self._call("attn.hook_attn_scores", masked_scores(q, k, mask))  # (B, H, T, S)
        pattern = self._call("attn.hook_pattern", scores.softmax(dim=-1))
        return weighted_sum(pattern, v)

    def _call(self, name: str, x: Tensor) -> Tensor:
        return self.hook(f"{self.prefix}{name}", x)


def unfused_copy(model: GPT) -> GPT:
    """Return a copy of a model in eval mode, which computes operator by operator.

    It has the same parameters and buffers, not copies of them, and the hooks of the model. Hooks
    and modules of the copy can be changed while other threads use the model itself. Wrappers of
    compilers are left out, since they would not call new hooks.
    """
    copy: GPT = _copy(getattr(model, "_orig_mod", model))  # torch.compile wraps the model
    return copy.eval()


def _copy(module: Any) -> Any:
    """Return a module with the same parameters and buffers, and copies of the modules inside.

    `__init__` is not called: it would make new parameters.
    """
    state = {}
    for name, value in vars(module).items():
        # Hooks, parameters and modules are in dicts, which can then change without the original's.
        state[name] = value.copy() if isinstance(value, dict) else value
    state.pop("_compiled_call_impl", None)  # what `module.compile()` sets
    if "forward" in state and _wraps_own_forward(module):
        del state["forward"]
    children = {}
    for name, child in module._modules.items():
        children[name] = None if child is None else _copy(child)
    state["_modules"] = children

    copy: Any = object.__new__(type(module))
    copy.__dict__.update(state)
    return copy


def _wraps_own_forward(module: nn.Module) -> bool:
    """Return whether the forward that was set on a module wraps that of its class.

    This is so where torch.compile made it; the forward that somebody else wrote has to stay.
    """
    wrapped = inspect.unwrap(vars(module)["forward"])
    function = getattr(wrapped, "__func__", wrapped)  # of a bound method
    return function is inspect.unwrap(type(module).forward)


def with_hooks(model: GPT, names: Collection[str], hook: Hook) -> GPT:
    """Return a copy of a model that calls a hook for some activations in every forward pass.

    The copy has the parameters of the model. A pass raises InputError where a module that a hook is
    on is not called.
    """
    copy = unfused_copy(model)
    hooks = _Hooks(copy, names, hook)
    for name, (path, register) in ENDS.items():
        hooks.add(name, path, register)
    for layer, block in enumerate(copy.h):
        assert isinstance(block, Block)
        prefix = f"blocks.{layer}."
        for name, (path, register) in SITES.items():
            if name == "mlp.hook_pre" and isinstance(block.mlp, SwiGLU):
                path = "mlp.c_gate"  # what goes through the activation function is the gate
            full_path = f"h.{layer}.{path}" if path else f"h.{layer}"
            hooks.add(prefix + name, full_path, register)
        if any(prefix + name in hooks.wanted for name in INSIDE_CORE):
            block.attn.core = HookedCore(block.attn.core, hooks.call, prefix)
    copy.register_forward_hook(hooks.require_all_called)
    return copy


class _Hooks:
    """Hooks the wanted activations of a copy of a model, and notes which were computed."""

    def __init__(self, copy: GPT, wanted: Collection[str], hook: Hook) -> None:
        self.wanted = frozenset(wanted)
        self._copy = copy
        self._hook = hook
        self._called: set[str] = set()

    def add(self, name: str, path: str, register: Register) -> None:
        """Hook an activation, if it is wanted, on the module at a path."""
        # A path may lead to no module: a plugin's network has others inside. Then the model has no
        # activation of that name, and it is not wanted.
        if name not in self.wanted:
            return
        hook: TensorHook = partial(self.call, name)
        if name.endswith(BY_HEAD):
            hook = _by_head(self._copy.config.head_dim, hook)
        register(self._copy.get_submodule(path), hook)

    def call(self, name: str, x: Tensor) -> Tensor:
        """Call the hook with an activation, if it is wanted, and return what to continue with."""
        if name not in self.wanted:
            return x
        self._called.add(name)
        return self._hook(name, x)

    def require_all_called(self, *_: object) -> None:
        """Raise InputError where an activation was not computed; a hook of the whole model."""
        missing = self.wanted - self._called
        if missing:
            raise InputError(
                f"{min(missing)} cannot be seen: the module that computes it is not called, since "
                "the forward of one around it was replaced; restore that (del module.forward)"
            )


def require_equal(what: str, formula: str, expected: Tensor, found: Tensor) -> None:
    """Raise InputError where a model computes something else than the formula that shows it."""
    expected = expected.detach().float()
    found = found.detach().float()
    # The norm may be 0, as that of an attention whose values are all zeros.
    scale = expected.norm().clamp(min=1e-30)
    difference = (expected - found).norm() / scale
    if difference > TOLERANCE:  # NaN passes: values that are not finite are shown as they are
        raise InputError(
            f"{what} cannot be shown: this model computes something else than {formula}, which "
            f"differs by {float(difference):.2g}"
        )


def _on_output(module: nn.Module, hook: TensorHook) -> None:
    module.register_forward_hook(lambda module, inputs, output: hook(output))


def _on_input(module: nn.Module, hook: TensorHook) -> None:
    """Hook the first input of a module; the others, such as a mask, stay as they are."""
    module.register_forward_pre_hook(lambda module, inputs: (hook(inputs[0]), *inputs[1:]))


def _on_positions(module: nn.Module, hook: TensorHook) -> None:
    """Hook the position vectors of a module that adds them to the embeddings."""

    def add_hooked(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        embeddings, positions = inputs
        # The vectors themselves are what the module adds to zeros.
        vectors = module.forward(torch.zeros_like(embeddings), positions)
        return embeddings + hook(vectors)

    module.register_forward_hook(add_hooked)


def _by_head(head_dim: int, hook: TensorHook) -> TensorHook:
    """Return a hook of (B, T, heads * D) that shows (B, T, heads, D) to another hook."""
    return lambda x: hook(x.view(*x.shape[:-1], -1, head_dim)).flatten(-2)


ENDS: dict[str, tuple[str, Register]] = {
    "hook_embed": ("wte", _on_output),
    "hook_pos_embed": ("wpe", _on_positions),
    "ln_final.hook_normalized": ("ln_f", _on_output),
    "logits": ("", _on_output),
}
"""Where the activations outside of the blocks are: the path of a module, and the side of it.

The empty path is that of the model itself.
"""
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
"""Where the activations of a block are: the path of a module in the block, and the side of it.

The empty path is that of the block itself. Hooks on one module are called in this order.
"""
BY_HEAD = ("hook_q", "hook_k", "hook_v", "hook_z")
"""Activations that a module computes for all heads side by side."""
