"""Hook the modules where each named activation can be seen and changed.

A tap is called with a name and a tensor, and returns the tensor that the model continues with; a visit is
the tap of one name. Hooks are added to a copy of the modules, so that the model itself does not slow
down.
"""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gpt.inspection.tracing.model_copy import plain_copy
from gpt.model import GPT
from gpt.model.attention import Attention, masked_scores, weighted_sum
from gpt.model.gpt import Block
from gpt.model.layers import SwiGLU

Tap = Callable[[str, Tensor], Tensor]
Visit = Callable[[Tensor], Tensor]
INSIDE_CORE = ("attn.hook_rot_q", "attn.hook_rot_k", "attn.hook_attn_scores", "attn.hook_pattern")


class TappedCore(nn.Module):
    """Attention written out, with a tap for every tensor that a fused kernel does not keep.

    Args:
        dropout: dropout probability of the weights, while training.
        tap: receives names within a block, such as `attn.hook_pattern`.
    """

    def __init__(self, dropout: float, tap: Tap) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.tap = tap

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Compute attention of queries (B, H, T, D) to keys and values (B, K, S, D) -> (B, H, T, D)."""
        q = self.tap("attn.hook_rot_q", q.transpose(1, 2)).transpose(1, 2)  # named axes are B T H D
        k = self.tap("attn.hook_rot_k", k.transpose(1, 2)).transpose(1, 2)
        scores = self.tap("attn.hook_attn_scores", masked_scores(q, k, mask))
        pattern = self.tap("attn.hook_pattern", scores.softmax(dim=-1))
        return weighted_sum(self.dropout(pattern), v)


def tapped(model: GPT, names: Collection[str], tap: Tap) -> GPT:
    """Return a copy of a model that calls `tap` for each of these activations in every forward pass.

    Args:
        model: on any device, in any mode; the copy has its parameters.
        names: full names from `activations`.
        tap: receives full name and tensor; its result replaces the tensor.
    """
    copy, wanted = plain_copy(model), set(names)

    def tap_wanted(name: str, x: Tensor) -> Tensor:
        return tap(name, x) if name in wanted else x

    _tap_ends(copy, wanted, tap_wanted)
    for layer, block in enumerate(copy.h):
        assert isinstance(block, Block)
        prefix = f"blocks.{layer}."
        inside = {name.removeprefix(prefix) for name in wanted if name.startswith(prefix)}
        tap_inside = partial(_prefixed, prefix, tap_wanted)
        _tap_block(block, inside, tap_inside)
        if inside.intersection(INSIDE_CORE):
            block.attn.core = TappedCore(copy.config.weights_dropout, tap_inside).train(block.attn.training)
    return copy


def _prefixed(prefix: str, tap: Tap, name: str, x: Tensor) -> Tensor:
    return tap(prefix + name, x)


def _tap_ends(model: GPT, wanted: set[str], tap: Tap) -> None:
    """Add hooks before the first block and after the last one."""
    if "hook_embed" in wanted:
        _on_output(model.wte, partial(tap, "hook_embed"))
    if "hook_pos_embed" in wanted:
        assert model.wpe is not None
        model.wpe.register_forward_hook(partial(_visit_positions, partial(tap, "hook_pos_embed")))
    _tap_norm(model.ln_f, "ln_final", wanted, tap)
    if "logits" in wanted:
        _on_output(model.softcap, partial(tap, "logits"))


def _tap_block(block: Block, wanted: set[str], tap: Tap) -> None:
    """Add hooks in one block; hooks on one module are called in this order."""
    attn: Attention = block.attn
    mlp: Any = block.mlp
    hidden = ("c_gate", "c_fc") if isinstance(mlp, SwiGLU) else ("c_fc",)
    if "hook_resid_pre" in wanted:
        _on_input(block, partial(tap, "hook_resid_pre"))
    _tap_norm(block.ln_1, "ln1", wanted, tap)
    for name, linear, heads in (
        ("attn.hook_q", attn.c_q, attn.n_head),
        ("attn.hook_k", attn.c_k, attn.n_kv_head),
        ("attn.hook_v", attn.c_v, attn.n_kv_head),
    ):
        if name in wanted:
            _on_output(linear, _by_head(heads, partial(tap, name)))
    if "attn.hook_z" in wanted:
        _on_input(attn.c_proj, _by_head(attn.n_head, partial(tap, "attn.hook_z")))
    if "hook_attn_out" in wanted:
        _on_output(attn, partial(tap, "hook_attn_out"))
    if "hook_resid_mid" in wanted:
        _tap_middle(block, partial(tap, "hook_resid_mid"))
    _tap_norm(block.ln_2, "ln2", wanted, tap)
    for name, part in zip(("mlp.hook_pre", "mlp.hook_pre_linear"), hidden, strict=False):
        if name in wanted:
            _on_output(getattr(mlp, part), partial(tap, name))
    if "mlp.hook_post" in wanted:
        _on_input(mlp.c_proj, partial(tap, "mlp.hook_post"))
    if "hook_mlp_out" in wanted:
        _on_output(mlp, partial(tap, "hook_mlp_out"))
    if "hook_resid_post" in wanted:
        _on_output(block, partial(tap, "hook_resid_post"))


def _tap_norm(norm: nn.Module, name: str, wanted: set[str], tap: Tap) -> None:
    if f"{name}.hook_scale" in wanted:
        norm.register_forward_pre_hook(
            lambda module, inputs: _ignore(tap(f"{name}.hook_scale", _scale(module, inputs[0])))
        )
    if f"{name}.hook_normalized" in wanted:
        _on_output(norm, partial(tap, f"{name}.hook_normalized"))


def _tap_middle(block: Block, visit: Visit) -> None:
    """Tap the stream after attention, a sum inside the block, which an edit changes through attention's output.

    The block then computes `before + (changed - before)`, which is the edited stream up to rounding.
    """
    entered: list[Tensor] = []
    block.register_forward_pre_hook(lambda module, inputs: entered.append(inputs[0]))

    def after_attention(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        before = entered.pop()
        middle = before + output
        changed = visit(middle)
        if changed is middle and not middle.requires_grad:
            return output  # exact; with gradients, the model must continue with the tensor that was seen
        return changed - before

    block.attn.register_forward_hook(after_attention)


def _visit_positions(visit: Visit, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    """Tap the position vectors, computed by adding positions to zeros."""
    x, positions = inputs
    vectors = module.forward(torch.zeros_like(x), positions)
    return x + visit(vectors)


def _scale(norm: nn.Module, x: Tensor) -> Tensor:
    """Return the standard deviation, or the root of the mean square, with eps: (B, T, C) -> (B, T, 1).

    In float32 at least, as in the kernels, since squares overflow in float16.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    centered = wide - wide.mean(dim=-1, keepdim=True) if isinstance(norm, nn.LayerNorm) else wide
    eps = getattr(norm, "eps", 0.0)  # of a plugin's norm it is not known
    assert isinstance(eps, float)
    return (centered.square().mean(dim=-1, keepdim=True) + eps).sqrt().to(x.dtype)


def _by_head(heads: int, visit: Visit) -> Visit:
    """Make a hook that taps (B, T, heads * D) as (B, T, heads, D)."""

    def visit_heads(x: Tensor) -> Tensor:
        return visit(x.view(*x.shape[:-1], heads, -1)).flatten(-2)

    return visit_heads


def _on_output(module: nn.Module, visit: Visit) -> None:
    module.register_forward_hook(lambda module, inputs, output: visit(output))


def _on_input(module: nn.Module, visit: Visit) -> None:
    module.register_forward_pre_hook(lambda module, inputs: (visit(inputs[0]), *inputs[1:]))


def _ignore(x: Tensor) -> None:
    """Tap a tensor computed for the reader alone, and leave the model's input unchanged."""
