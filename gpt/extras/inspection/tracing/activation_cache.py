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
"""Most bytes that a capture keeps by default: 4 GiB."""

Change = Edit | Callable[[Tensor], Tensor]
"""One edit: a function of a tensor alone edits the whole activation."""
Edits = Mapping[str, Change | Sequence[Change]]
"""Edits by name or pattern; several edits of one activation are applied in order."""


class ActivationCache(Mapping[Key, Tensor]):
    """Activations of one forward pass by full or short name, in the order they were computed."""

    def __init__(
        self, tensors: Mapping[str, Tensor], table: Mapping[str, Activation], n_layer: int
    ) -> None:
        self._tensors = tensors
        self._table = table  # every activation of the model, captured or not
        self._n_layer = n_layer

    def __getitem__(self, key: Key) -> Tensor:
        name = expand(key, self._n_layer)
        if name not in self._tensors:
            select(self._table, name)  # raises NoSuchActivation if the model has no such one
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
        """Return the bytes of all captured activations."""
        return sum(tensor.nbytes for tensor in self._tensors.values())

    def axes(self, key: Key) -> str:
        """Return the axes of an activation, such as `B H T S`, whether it was captured or not."""
        name = expand(key, self._n_layer)
        select(self._table, name)  # raises NoSuchActivation if the model has no such one
        return self._table[name].axes


def run_with_cache(
    model: GPT,
    idx: TextOrIds,
    names: str | Iterable[str] | None = None,
    edits: Edits | None = None,
    memory_limit: int = MEMORY_LIMIT,
    tokenizer: Tokenizer | None = None,
) -> tuple[Tensor, ActivationCache]:
    """Compute the logits (B, T, V) float32, and capture the activations on the way to them.

    Names and axes are those of TransformerLens. Tensors keep the autograd graph, and with it the
    memory of the whole pass, unless this is called under `torch.no_grad()`. Attention is written
    out if its scores or weights are wanted. Everything else runs as usual, but uncompiled and
    without dropout.

    Args:
        idx: token ids (B, T) or (T,), or a text; one text is a batch of 1.
        names: full names or patterns, such as `blocks.*.attn.hook_pattern`; None: every activation.
        edits: by name or pattern: `zero`, `scale`, `replace`, any function of a tensor, or several
            of them. The edited tensor is captured, and used by everything after it.
        memory_limit: most bytes that may be kept.
    """
    idx = to_batch(idx, tokenizer, model.wte.weight.device)
    _require_fitting_ids(model, idx)
    table = activations(model.config)
    kept = select(table, names)
    changes = _by_name(edits or {}, table)
    _require_memory(model, idx, kept, memory_limit)

    hook = _EditAndKeep(kept, table, changes)
    hooked = [*kept, *changes]
    logits = with_hooks(model, hooked, hook)(idx)
    captured = {name: hook.tensors[name] for name in kept}
    return logits, ActivationCache(captured, table, model.config.n_layer)


def _require_fitting_ids(model: GPT, idx: Tensor) -> None:
    """Raise InputError where a model cannot read token ids (B, T).

    The model checks their length too, but only after the memory would have been checked.
    """
    if idx.numel() == 0:
        raise InputError(
            f"token ids must be (batch, time) and not empty, got shape {tuple(idx.shape)}"
        )
    block_size = model.config.block_size
    if idx.size(1) > block_size:
        raise InputError(f"sequence of {idx.size(1)} tokens is longer than block_size {block_size}")


def _require_memory(model: GPT, idx: Tensor, names: Sequence[str], memory_limit: int) -> None:
    """Raise InputError where the activations of ids (B, T) would take more bytes than allowed."""
    batch, length = idx.shape
    itemsize = model.wte.weight.element_size()
    needed = capture_bytes(model.config, names, batch, length, itemsize)
    if needed > memory_limit:
        raise InputError(
            f"capturing {len(names)} activations of {tuple(idx.shape)} ids takes {needed:,} bytes, "
            f"more than the limit of {memory_limit:,}; capture fewer names, a shorter text, or "
            "raise memory_limit"
        )


def edited_model(model: GPT, edits: Edits) -> GPT:
    """Return a copy of a model that makes edits in every forward pass, those with a cache too.

    The copy has the same parameters, not copies of them.
    """
    table = activations(model.config)
    changes = _by_name(edits, table)
    return with_hooks(model, changes.keys(), _EditAndKeep((), table, changes))


class _EditAndKeep:
    """A hook that edits activations, and then keeps some of them.

    Attributes:
        tensors: the kept activations by name, in the order in which they are computed.
    """

    def __init__(
        self,
        kept: Iterable[str],
        table: Mapping[str, Activation],
        changes: Mapping[str, Sequence[Edit]],
    ) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._kept = set(kept)
        self._table = table
        self._changes = changes

    def __call__(self, name: str, x: Tensor) -> Tensor:
        for edit in self._changes.get(name, ()):
            x = edit.apply(name, self._table[name], x)
        if name in self._kept:
            self.tensors[name] = x
        return x


def one_text(
    model: GPT, given: TextOrIds, tokenizer: Tokenizer | None, min_tokens: int, reader: str
) -> Tensor:
    """Return the ids (T,) int64 of one text on the device of a model.

    Args:
        given: ids (T,) or (1, T), or a text with its tokenizer.
        min_tokens: fewer raise InputError.
        reader: the function that reads the text, for the message.
    """
    idx = to_batch(given, tokenizer, model.wte.weight.device)
    if len(idx) != 1:
        raise InputError(f"{reader} takes one text, ids of shape (T,), not {tuple(idx.shape)}")
    if idx.size(1) < min_tokens:
        tokens = "1 token" if min_tokens == 1 else f"{min_tokens} tokens"
        raise InputError(f"{reader} needs a text of at least {tokens}, got {idx.size(1)}")
    return idx[0]


def as_sequence(given: Change | Sequence[Change]) -> Sequence[Change]:
    """Return edits as a sequence, also where one was given alone."""
    return given if isinstance(given, Sequence) else [given]


def _by_name(edits: Edits, table: Mapping[str, Activation]) -> dict[str, list[Edit]]:
    """Return edits by the full names that their patterns stand for, in the given order."""
    changes: dict[str, list[Edit]] = {}
    for pattern, given in edits.items():
        several = [edit if isinstance(edit, Edit) else Edit(edit) for edit in as_sequence(given)]
        for name in select(table, pattern):
            changes.setdefault(name, []).extend(several)
    return changes
