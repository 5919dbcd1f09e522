"""Hook the modules where each named activation can be seen and changed.

A hook is called with a name and a tensor, and returns the tensor that the model continues with. Hooks are added to a
copy of the modules, so that the model itself does not slow down.
"""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gpt.errors import InputError
from gpt.inspection.tracing.model_copy import unfused_copy
from gpt.model import GPT
from gpt.model.attention import Attention, masked_scores, weighted_sum
from gpt.model.gpt import Block
from gpt.model.layers import SwiGLU

Hook = Callable[[str, Tensor], Tensor]
TensorHook = Callable[[Tensor], Tensor]
"""A hook of one name."""
TOLERANCE = 0.02
"""Largest norm of a difference, relative to the result: fused kernels and formulas round differently in bfloat16."""
INSIDE_CORE = ("attn.hook_rot_q", "attn.hook_rot_k", "attn.hook_attn_scores", "attn.hook_pattern")


class HookedCore(nn.Module):
    """Attention written out, with a hook for every tensor that a fused kernel does not keep.

    Args:
        core: computes attention in the model; what is written out is compared with it, but for dropout.
        dropout: dropout probability of the weights, while training.
        hook: receives names within a block, such as `attn.hook_pattern`.
    """

    def __init__(self, core: nn.Module, dropout: float, hook: Hook) -> None:
        super().__init__()
        self.core, self.dropout = core, nn.Dropout(dropout)
        self.hook = hook

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Compute attention of queries (B, H, T, D) to keys and values (B, K, S, D) -> (B, H, T, D).

        Raises:
            InputError: the model's core computes something else.
        """
        if not (self.training and self.dropout.p):
            with torch.no_grad():
                written_out = weighted_sum(masked_scores(q, k, mask).softmax(dim=-1), v)
                require_equal("attention", "softmax(q k^T / sqrt(D)) v", written_out, self.core(q, k, v, mask))
        q = self.hook("attn.hook_rot_q", q.transpose(1, 2)).transpose(1, 2)  # named axes are B T H D
        k = self.hook("attn.hook_rot_k", k.transpose(1, 2)).transpose(1, 2)
        scores = self.hook("attn.hook_attn_scores", masked_scores(q, k, mask))
        pattern = self.hook("attn.hook_pattern", scores.softmax(dim=-1))
        return weighted_sum(self.dropout(pattern), v)


def with_hooks(model: GPT, names: Collection[str], hook: Hook) -> GPT:
    """Return a copy of a model that calls `hook` for each of these activations in every forward pass.

    Args:
        model: on any device, in any mode; the copy has its parameters.
        names: full names from `activations`.
        hook: receives full name and tensor; its result replaces the tensor.
    """
    copy, wanted = unfused_copy(model), set(names)

    def hook_wanted(name: str, x: Tensor) -> Tensor:
        return hook(name, x) if name in wanted else x

    _hook_ends(copy, wanted, hook_wanted)
    for layer, block in enumerate(copy.h):
        assert isinstance(block, Block)
        prefix = f"blocks.{layer}."
        inside = {name.removeprefix(prefix) for name in wanted if name.startswith(prefix)}
        hook_inside = partial(_prefixed, prefix, hook_wanted)
        _hook_block(block, inside, hook_inside)
        if inside.intersection(INSIDE_CORE):
            block.attn.core = HookedCore(block.attn.core, copy.config.weights_dropout, hook_inside).train(
                block.attn.training
            )
    return copy


def _prefixed(prefix: str, hook: Hook, name: str, x: Tensor) -> Tensor:
    return hook(prefix + name, x)


def _hook_ends(model: GPT, wanted: set[str], hook: Hook) -> None:
    """Add hooks before the first block and after the last one."""
    if "hook_embed" in wanted:
        _on_output(model.wte, partial(hook, "hook_embed"))
    if "hook_pos_embed" in wanted:
        assert model.wpe is not None
        model.wpe.register_forward_hook(partial(_hook_positions, partial(hook, "hook_pos_embed")))
    _hook_norm(model.ln_f, "ln_final", wanted, hook)
    if "logits" in wanted:
        _on_output(model.softcap, partial(hook, "logits"))


def _hook_block(block: Block, wanted: set[str], hook: Hook) -> None:
    """Add hooks in one block; hooks on one module are called in this order."""
    attn: Attention = block.attn

    def add(name: str, register: Callable[[nn.Module, TensorHook], None], path: str = "", heads: int = 0) -> None:
        # only now: a part of one's own has other modules inside, and no such activations
        if name in wanted:
            named = partial(hook, name)
            register(block.get_submodule(path), _by_head(heads, named) if heads else named)

    add("hook_resid_pre", _on_input)
    _hook_norm(block.ln_1, "ln1", wanted, hook)
    add("attn.hook_q", _on_output, "attn.c_q", attn.n_head)
    add("attn.hook_k", _on_output, "attn.c_k", attn.n_kv_head)
    add("attn.hook_v", _on_output, "attn.c_v", attn.n_kv_head)
    add("attn.hook_z", _on_input, "attn.c_proj", attn.n_head)
    add("hook_attn_out", _on_output, "attn")
    if "hook_resid_mid" in wanted:
        _hook_middle(block, partial(hook, "hook_resid_mid"))
    _hook_norm(block.ln_2, "ln2", wanted, hook)
    add("mlp.hook_pre", _on_output, "mlp.c_gate" if isinstance(block.mlp, SwiGLU) else "mlp.c_fc")
    add("mlp.hook_pre_linear", _on_output, "mlp.c_fc")
    add("mlp.hook_post", _on_input, "mlp.c_proj")
    add("hook_mlp_out", _on_output, "mlp")
    add("hook_resid_post", _on_output)


def _hook_norm(norm: nn.Module, name: str, wanted: set[str], hook: Hook) -> None:
    if f"{name}.hook_scale" in wanted:
        norm.register_forward_pre_hook(
            lambda module, inputs: _ignore(hook(f"{name}.hook_scale", _scale(module, inputs[0])))
        )
    if f"{name}.hook_normalized" in wanted:
        _on_output(norm, partial(hook, f"{name}.hook_normalized"))


def _hook_middle(block: Block, hook: TensorHook) -> None:
    """Hook the stream after attention, a sum inside the block, which an edit changes through attention's output.

    The block then computes `before + (changed - before)`, which is the edited stream up to rounding. An InputError is
    raised if what enters `ln_2` is not that sum.
    """
    entered: list[Tensor] = []
    left: list[Tensor] = []
    block.register_forward_pre_hook(lambda module, inputs: entered.append(inputs[0]))
    block.ln_2.register_forward_pre_hook(
        lambda module, inputs: require_equal("hook_resid_mid", "x + attn(ln_1(x))", left.pop(), inputs[0])
    )

    def after_attention(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        before = entered.pop()
        middle = before + output
        changed = hook(middle)
        left.append(changed.detach())
        if changed is middle and not middle.requires_grad:
            return output  # exact; with gradients, the model must continue with the tensor that was seen
        return changed - before

    block.attn.register_forward_hook(after_attention)


def require_equal(what: str, formula: str, expected: Tensor, found: Tensor) -> None:
    """Raise InputError where a model computes something else than what is to be shown of it.

    Args:
        what: is shown.
        formula: that it is shown by.
        expected: the formula's result.
        found: the model's, of the same shape.
    """
    expected, found = expected.detach().float(), found.detach().float()
    difference = (expected - found).norm() / expected.norm().clamp(min=1e-30)
    if difference > TOLERANCE:  # what is not finite is shown as it is
        raise InputError(
            f"{what} cannot be shown: this model computes something else than {formula}, which differs by "
            f"{float(difference):.2g}"
        )


def _hook_positions(hook: TensorHook, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    """Hook the position vectors, computed by adding positions to zeros."""
    x, positions = inputs
    vectors = module.forward(torch.zeros_like(x), positions)
    return x + hook(vectors)


def _scale(norm: nn.Module, x: Tensor) -> Tensor:
    """Return the standard deviation, or the root of the mean square, with eps: (B, T, C) -> (B, T, 1).

    In float32 at least, as in the kernels, since squares overflow in float16.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    centered = wide - wide.mean(dim=-1, keepdim=True) if isinstance(norm, nn.LayerNorm) else wide
    eps = getattr(norm, "eps", 0.0)  # of a plugin's norm it is not known
    assert isinstance(eps, float)
    return (centered.square().mean(dim=-1, keepdim=True) + eps).sqrt().to(x.dtype)


def _by_head(heads: int, hook: TensorHook) -> TensorHook:
    """Make a hook that taps (B, T, heads * D) as (B, T, heads, D)."""

    def visit_heads(x: Tensor) -> Tensor:
        return hook(x.view(*x.shape[:-1], heads, -1)).flatten(-2)

    return visit_heads


def _on_output(module: nn.Module, hook: TensorHook) -> None:
    module.register_forward_hook(lambda module, inputs, output: hook(output))


def _on_input(module: nn.Module, hook: TensorHook) -> None:
    module.register_forward_pre_hook(lambda module, inputs: (hook(inputs[0]), *inputs[1:]))


def _ignore(x: Tensor) -> None:
    """Hook a tensor computed for the reader alone, and leave the model's input unchanged."""
