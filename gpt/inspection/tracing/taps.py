"""Where in the modules each named activation can be seen and changed.

A tap is called with a name and a tensor, and gives the tensor that the model goes on with; a visit is
the tap of one name. Modules are untouched outside of the `tapped` context, so that a model that nobody
looks into pays nothing.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gpt.model import GPT
from gpt.model.attention import Attention, masked_scores, weighted_sum
from gpt.model.block import Block
from gpt.model.feed_forward import SwiGLU
from gpt.model.norm import LayerNorm

Tap = Callable[[str, Tensor], Tensor]
Visit = Callable[[Tensor], Tensor]
INSIDE_CORE = ("attn.hook_rot_q", "attn.hook_rot_k", "attn.hook_attn_scores", "attn.hook_pattern")


class TappedCore(nn.Module):
    """Attention written out, with a tap of every tensor that a fused kernel does not keep.

    Args:
        dropout: of the weights, while training.
        tap: gets names within a block, such as `attn.hook_pattern`.
    """

    def __init__(self, dropout: float, tap: Tap) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.tap = tap

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Queries (B, H, T, D), keys and values (B, K, S, D) -> (B, H, T, D)."""
        q = self.tap("attn.hook_rot_q", q.transpose(1, 2)).transpose(1, 2)  # named axes are B T H D
        k = self.tap("attn.hook_rot_k", k.transpose(1, 2)).transpose(1, 2)
        scores = self.tap("attn.hook_attn_scores", masked_scores(q, k, mask))
        pattern = self.tap("attn.hook_pattern", scores.softmax(dim=-1))
        return weighted_sum(self.dropout(pattern), v)


@contextmanager
def tapped(model: GPT, names: Collection[str], tap: Tap) -> Iterator[None]:
    """Call `tap` for each of those activations in every forward pass within the context.

    Args:
        model: on whatever device, in whatever mode; left as it was.
        names: full names, of `activations`.
        tap: sees the tensor by its full name; what it returns takes its place.
    """
    wanted = set(names)

    def tap_wanted(name: str, x: Tensor) -> Tensor:
        return tap(name, x) if name in wanted else x

    with ExitStack() as stack:
        stack.enter_context(as_written(model))
        for handle in _tap_ends(model, wanted, tap_wanted):
            stack.callback(handle.remove)
        for layer, block in enumerate(model.h):
            assert isinstance(block, Block)
            prefix = f"blocks.{layer}."
            inside = {name.removeprefix(prefix) for name in wanted if name.startswith(prefix)}
            tap_inside = partial(_prefixed, prefix, tap_wanted)
            for handle in _tap_block(block, inside, tap_inside):
                stack.callback(handle.remove)
            if inside.intersection(INSIDE_CORE):
                stack.enter_context(with_core(block.attn, TappedCore(model.config.weights_dropout, tap_inside)))
        yield


def as_written(model: nn.Module) -> AbstractContextManager[object]:
    """A context in which compiled modules run uncompiled: a compiled one knows nothing of new hooks."""
    wrapped = hasattr(model, "_orig_mod")  # by torch.compile(model)
    compiled = wrapped or any(module._compiled_call_impl is not None for module in model.modules())
    # to import the compiler takes a second, which a model that is not compiled is spared
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()


@contextmanager
def with_core(attn: Attention, core: nn.Module) -> Iterator[None]:
    """Compute attention by another core for a while."""
    kept = attn.core
    attn.core = core.train(attn.training)
    try:
        yield
    finally:
        attn.core = kept


def _prefixed(prefix: str, tap: Tap, name: str, x: Tensor) -> Tensor:
    return tap(prefix + name, x)


def _tap_ends(model: GPT, wanted: set[str], tap: Tap) -> Iterator[RemovableHandle]:
    """Hooks before the first block and after the last one."""
    if "hook_embed" in wanted:
        yield _on_output(model.wte, partial(tap, "hook_embed"))
    if "hook_pos_embed" in wanted:
        yield model.wpe.register_forward_hook(partial(_visit_positions, partial(tap, "hook_pos_embed")))
    yield from _tap_norm(model.ln_f, "ln_final", wanted, tap)
    if "logits" in wanted:
        yield _on_output(model.softcap, partial(tap, "logits"))


def _tap_block(block: Block, wanted: set[str], tap: Tap) -> Iterator[RemovableHandle]:
    """Hooks in one block; those on the same module fire in this order."""
    attn: Attention = block.attn
    mlp: Any = block.mlp
    hidden = ("c_gate", "c_fc") if isinstance(mlp, SwiGLU) else ("c_fc",)
    if "hook_resid_pre" in wanted:
        yield _on_input(block, partial(tap, "hook_resid_pre"))
    yield from _tap_norm(block.ln_1, "ln1", wanted, tap)
    for name, linear, heads in (
        ("attn.hook_q", attn.c_q, attn.n_head),
        ("attn.hook_k", attn.c_k, attn.n_kv_head),
        ("attn.hook_v", attn.c_v, attn.n_kv_head),
    ):
        if name in wanted:
            yield _on_output(linear, _by_head(heads, partial(tap, name)))
    if "attn.hook_z" in wanted:
        yield _on_input(attn.c_proj, _by_head(attn.n_head, partial(tap, "attn.hook_z")))
    if "hook_attn_out" in wanted:
        yield _on_output(attn, partial(tap, "hook_attn_out"))
    if "hook_resid_mid" in wanted:
        yield from _tap_middle(block, partial(tap, "hook_resid_mid"))
    yield from _tap_norm(block.ln_2, "ln2", wanted, tap)
    for name, part in zip(("mlp.hook_pre", "mlp.hook_pre_linear"), hidden, strict=False):
        if name in wanted:
            yield _on_output(getattr(mlp, part), partial(tap, name))
    if "mlp.hook_post" in wanted:
        yield _on_input(mlp.c_proj, partial(tap, "mlp.hook_post"))
    if "hook_mlp_out" in wanted:
        yield _on_output(mlp, partial(tap, "hook_mlp_out"))
    if "hook_resid_post" in wanted:
        yield _on_output(block, partial(tap, "hook_resid_post"))


def _tap_norm(norm: nn.Module, name: str, wanted: set[str], tap: Tap) -> Iterator[RemovableHandle]:
    if f"{name}.hook_scale" in wanted:
        yield norm.register_forward_pre_hook(
            lambda module, inputs: _ignore(tap(f"{name}.hook_scale", _scale(module, inputs[0])))
        )
    if f"{name}.hook_normalized" in wanted:
        yield _on_output(norm, partial(tap, f"{name}.hook_normalized"))


def _tap_middle(block: Block, visit: Visit) -> Iterator[RemovableHandle]:
    """The stream after attention is a sum inside the block: it is changed by what attention adds to it.

    What the block then adds up is `before + (changed - before)`, the change up to rounding.
    """
    entered: list[Tensor] = []
    yield block.register_forward_pre_hook(lambda module, inputs: entered.append(inputs[0]))

    def after_attention(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        before = entered.pop()
        middle = before + output
        changed = visit(middle)
        if changed is middle and not middle.requires_grad:
            return output  # exactly; with gradients, what was seen has to be what the model goes on with
        return changed - before

    yield block.attn.register_forward_hook(after_attention)


def _visit_positions(visit: Visit, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    """Positions added to zeros are the position vectors themselves."""
    x, positions = inputs
    vectors = module.forward(torch.zeros_like(x), positions)
    return x + visit(vectors)


def _scale(norm: nn.Module, x: Tensor) -> Tensor:
    """(B, T, C) -> (B, T, 1): the standard deviation, or the root of the mean square, with eps.

    In float32 at least, as in the kernels: the squares of a float16 overflow.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    centred = wide - wide.mean(dim=-1, keepdim=True) if isinstance(norm, LayerNorm) else wide
    eps = norm.eps
    assert isinstance(eps, float)
    return (centred.square().mean(dim=-1, keepdim=True) + eps).sqrt().to(x.dtype)


def _by_head(heads: int, visit: Visit) -> Visit:
    """(B, T, heads * D) shown as (B, T, heads, D)."""

    def visit_heads(x: Tensor) -> Tensor:
        return visit(x.view(*x.shape[:-1], heads, -1)).flatten(-2)

    return visit_heads


def _on_output(module: nn.Module, visit: Visit) -> RemovableHandle:
    return module.register_forward_hook(lambda module, inputs, output: visit(output))


def _on_input(module: nn.Module, visit: Visit) -> RemovableHandle:
    return module.register_forward_pre_hook(lambda module, inputs: (visit(inputs[0]), *inputs[1:]))


def _ignore(x: Tensor) -> None:
    """What is computed for the reader alone does not change the model's input."""
