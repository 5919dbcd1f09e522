"""Run a forward pass, and capture and edit its activations on the way."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from torch import Tensor

from gpt.data.token_ids import TextOrIds, to_batch
from gpt.data.tokenizers import Tokenizer
from gpt.extras.inspection.tracing.activation_names import (
    Activation,
    Key,
    NoSuchActivation,
    activations,
    capture_bytes,
    expand,
    select,
)
from gpt.extras.inspection.tracing.edits import Edit
from gpt.extras.inspection.tracing.hooks import with_hooks
from gpt.model import GPT
from gpt.system.errors import InputError

MEMORY_LIMIT = 4 * 2**30
"""Most bytes that a capture keeps by default."""

Change = Edit | Callable[[Tensor], Tensor]
Edits = Mapping[str, Change | Sequence[Change]]
"""Edits by name or pattern; several edits of one activation are applied in order."""


class ActivationCache(Mapping[Key, Tensor]):
    """Activations of one forward pass by full or short name, in the order they were computed."""

    def __init__(
        self, tensors: Mapping[str, Tensor], table: Mapping[str, Activation], n_layer: int
    ) -> None:
        self._tensors, self._table, self._n_layer = tensors, table, n_layer

    def __getitem__(self, key: Key) -> Tensor:
        name = expand(key, self._n_layer)
        if name not in self._tensors:
            select(self._table, name)  # raises an error for an unknown one
            raise NoSuchActivation(f"{name} was not captured; add it to names")
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"ActivationCache({len(self)} activations, {self.nbytes:,} bytes)"

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._tensors.values())

    def axes(self, key: Key) -> str:
        """Return the axes of any activation of the model, captured or not, such as `B H T S`."""
        name = expand(key, self._n_layer)
        select(self._table, name)  # raises an error for an unknown one
        return self._table[name].axes


def run_with_cache(
    model: GPT,
    idx: TextOrIds,
    names: str | Iterable[str] | None = None,
    edits: Edits | None = None,
    memory_limit: int = MEMORY_LIMIT,
    tokenizer: Tokenizer | None = None,
) -> tuple[Tensor, ActivationCache]:
    """Compute the logits (B, T, V) float32, and the activations on the way to them.

    Tensors keep the autograd graph, and with it the memory of the whole pass, unless this is called under
    `torch.no_grad()`. Names and axes are those of TransformerLens. Attention is written out if its scores or weights
    are wanted; everything else runs as usual, uncompiled, without dropout and under the caller's gradient mode.

    Args:
        idx: token ids (B, T), or (T,), or a text: one text is a batch of 1.
        names: full names or patterns, such as `blocks.*.attn.hook_pattern`; None: every activation.
        edits: by name or pattern; the edited tensor is captured, and used by everything after it. An
            edit is `zero`, `scale`, `replace`, any function of a tensor, or several of them.
        memory_limit: most bytes that may be kept.
    """
    idx = to_batch(idx, tokenizer, model.wte.weight.device)
    if idx.numel() == 0:
        raise InputError(
            f"token ids must be (batch, time) and not empty, got shape {tuple(idx.shape)}"
        )
    if (
        idx.size(1) > model.config.block_size
    ):  # the model checks this too, but only after the check of the memory
        raise InputError(
            f"sequence of {idx.size(1)} tokens is longer than block_size {model.config.block_size}"
        )
    table = activations(model.config)
    kept, changes = select(table, names), _resolve(edits or {}, table)
    needed = capture_bytes(
        model.config, kept, idx.size(0), idx.size(1), model.wte.weight.element_size()
    )
    if needed > memory_limit:
        raise InputError(
            f"capturing {len(kept)} activations of {tuple(idx.shape)} ids takes {needed:,} bytes, more than the "
            f"limit of {memory_limit:,}; capture fewer names, a shorter text, or raise memory_limit"
        )
    captured: dict[str, Tensor] = {}

    def hook(name: str, x: Tensor) -> Tensor:
        x = _changed(name, table[name], changes.get(name, ()), x)
        if name in keep:
            captured[name] = x
        return x

    keep = set(kept)
    logits = with_hooks(model, keep | changes.keys(), hook)(idx)
    return logits, ActivationCache(
        {name: captured[name] for name in kept}, table, model.config.n_layer
    )


def edited_model(model: GPT, edits: Edits) -> GPT:
    """Return a copy of a model, with the same parameters, that makes edits in every forward pass, cached ones too."""
    table = activations(model.config)
    changes = _resolve(edits, table)
    return with_hooks(
        model, changes.keys(), lambda name, x: _changed(name, table[name], changes[name], x)
    )


def _changed(name: str, activation: Activation, edits: Iterable[Edit], x: Tensor) -> Tensor:
    for edit in edits:
        x = edit.apply(name, activation, x)
    return x


def one_text(
    model: GPT, given: TextOrIds, tokenizer: Tokenizer | None, fewest: int, reader: str
) -> Tensor:
    """Return the ids (T,) int64 of one text, or of ids (T,) or (1, T), on the model's device, for a function."""
    idx = to_batch(given, tokenizer, model.wte.weight.device)
    if len(idx) != 1:
        raise InputError(f"{reader} takes one text, ids of shape (T,), not {tuple(idx.shape)}")
    if idx.size(1) < fewest:
        raise InputError(
            f"{reader} needs a text of at least {fewest} token{'s' * (fewest > 1)}, got {idx.size(1)}"
        )
    return idx[0]


def _resolve(edits: Edits, table: Mapping[str, Activation]) -> dict[str, list[Edit]]:
    changes: dict[str, list[Edit]] = {}
    for pattern, given in edits.items():
        several = given if isinstance(given, Sequence) else [given]
        for name in select(table, pattern):
            changes.setdefault(name, []).extend(
                edit if isinstance(edit, Edit) else Edit(edit) for edit in several
            )
    return changes
