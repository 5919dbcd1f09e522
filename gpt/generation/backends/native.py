"""The C++ engine as a backend: prepared once for a model, then next-token logits, and tokens sampled inside it."""

import ctypes
import itertools
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from gpt.config import ModelConfig, SamplingParams
from gpt.environment import Settings
from gpt.generation.backends import TokenIds, Window
from gpt.generation.backends.paged import PagedSequences
from gpt.kernels.decoding.engine import Engine, load_engine
from gpt.kernels.decoding.layout import Weights
from gpt.kernels.decoding.weights import check_native_support, lay_out_weights
from gpt.model import GPT
from gpt.model.gpt import outside_vocabulary
from gpt.processor import supported_processors
from gpt.progress import Report

Version = tuple[ModelConfig, Settings, int]
"""Of a model and what runs it; the number is a checksum of the weights."""
MakeEngine = Callable[[int], Engine]
"""Makes an engine for so many sequences."""


@dataclass(frozen=True)
class Prepared:
    """A compiled engine and the weights it reads.

    Attributes:
        library: compiled for this processor.
        weights: a copy, in its layout.
    """

    library: ctypes.CDLL
    weights: Weights


_KEPT: WeakKeyDictionary[GPT, tuple[Version, Prepared]] = WeakKeyDictionary()
"""What `prepare` made for the models that are alive."""


def prepare(model: GPT, settings: Settings, report: Report) -> Prepared:
    """Return the engine for a model, prepared anew only if the model has changed since the last call.

    To see whether it has, all weights are read once. No count of changes is trusted: torch's misses those by `.data`.

    Args:
        model: on the CPU.
        settings: where compiled code is kept, and for which processor.
        report: told of a compilation.

    Raises:
        DeviceError: the engine is not available here, or not for this model.
    """
    check_native_support(model)
    version = (model.config, settings, _checksum(model))
    kept = _KEPT.get(model)
    if kept is not None and kept[0] == version:
        return kept[1]
    processor = supported_processors(settings.processor)[0]
    prepared = Prepared(load_engine(settings.cache_dir, report, processor), lay_out_weights(model, processor))
    _KEPT[model] = version, prepared
    return prepared


def _checksum(model: GPT) -> int:
    """Return the CRC-32 of all parameters and buffers, with their names, types and shapes."""
    checksum = 0
    for tensors in (model.named_parameters(), model.named_buffers()):
        for name, tensor in tensors:
            checksum = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), checksum)
            checksum = zlib.crc32(tensor.detach().flatten().contiguous().view(torch.uint8).numpy().data, checksum)
    return checksum


class NativeBackend:
    """Next-token logits from an engine, and tokens sampled inside it.

    Args:
        make_engine: called at the first use, when it is known how many sequences there are.
        model: that the engine runs.
        slide_chunk: see `Window`; None: a quarter of the window.
        prefill_chunk: most positions computed at a time; None: as many as the engine has room for.
    """

    def __init__(
        self, make_engine: MakeEngine, model: GPT, slide_chunk: int | None = None, prefill_chunk: int | None = None
    ) -> None:
        self.window, self.vocab_size = Window.build(model.config.block_size, slide_chunk), model.vocab_size
        self._make_engine, self._prefill_chunk = make_engine, prefill_chunk
        self._sequences: PagedSequences | None = None

    @property
    def cache_bytes(self) -> int:
        return self._sequences.nbytes if self._sequences is not None else 0

    def next_logits(self, contexts: Sequence[TokenIds]) -> Tensor:
        rows, windows = range(len(contexts)), self._windows(contexts)
        sequences = self._prepare(rows, windows, [1] * len(rows))
        logits = sequences.engine.forward(*_newest(windows), rows)
        for row, window in enumerate(windows):
            sequences.append(row, window[-1:])
        return logits

    def room(self, contexts: Sequence[TokenIds]) -> int:
        """Return how many tokens `generate` can sample before a window has to move."""
        return self.window.size + 1 - max(len(context) - self.window.start(len(context)) for context in contexts)

    def generate(
        self,
        contexts: Sequence[TokenIds],
        uniforms: Tensor,
        params: SamplingParams,
        seen: Tensor | None,
        keep_logits: bool,
    ) -> tuple[list[list[int]], Tensor | None]:
        """Sample several tokens after each context; arguments and result are those of `Engine.generate`.

        Raises:
            NotFiniteError: logits are not finite.
        """
        rows, windows = range(len(contexts)), self._windows(contexts)
        sequences = self._prepare(rows, windows, [uniforms.size(1)] * len(rows))
        tokens, _, positions = _newest(windows)
        sampled, logits = sequences.engine.generate(rows, tokens, positions, uniforms, params, seen, keep_logits)
        for row, (token, more) in enumerate(zip(tokens, sampled, strict=True)):
            sequences.append(row, [token, *more[:-1]])
        return sampled, logits

    def verify(
        self,
        rows: Sequence[int],
        contexts: Sequence[TokenIds],
        drafts: Sequence[Sequence[int]],
        uniforms: Sequence[Sequence[float]],
        params: SamplingParams,
        seen: Tensor | None,
        keep_logits: bool,
    ) -> list[tuple[list[int], Tensor | None]]:
        """Sample after each context, and after each of its drafts as if those before it were accepted.

        Args:
            rows: B different rows of this backend's, in order; the others are left alone.
            contexts: of these rows.
            drafts: of each, at most as many as its window has room for.
            uniforms: one for the context and one for each draft.
            params: how to sample.
            seen: (B, V), see `Engine.generate`; overwritten.
            keep_logits: return them too.

        Returns:
            For each context its tokens, one more than drafts, -1 where logits are not finite; and the
            logits (tokens, V) or None.
        """
        windows = self._windows(contexts)
        for draft in drafts:
            self._check(draft)
        sequences = self._prepare(rows, windows, [1 + len(draft) for draft in drafts])
        tokens: list[int] = []
        sequence_of: list[int] = []
        positions: list[int] = []
        for row, window, draft in zip(rows, windows, drafts, strict=True):
            tokens += [window[-1], *draft]
            sequence_of += [row] * (1 + len(draft))
            positions += range(len(window) - 1, len(window) + len(draft))
        sampled, logits = sequences.engine.verify(
            tokens, sequence_of, positions, [u for each in uniforms for u in each], params, seen, keep_logits
        )
        for row, window, draft in zip(rows, windows, drafts, strict=True):
            sequences.append(row, [window[-1], *draft])
        sizes = [1 + len(draft) for draft in drafts]
        ends = list(itertools.accumulate(sizes))
        return [
            (sampled[end - size : end], None if logits is None else logits[end - size : end])
            for size, end in zip(sizes, ends, strict=True)
        ]

    def select(self, rows: Sequence[int]) -> None:
        if self._sequences is None:
            return
        if len(rows) > self._sequences.engine.sequences:
            self._sequences = None  # the next call makes a larger engine
        else:
            self._sequences.select(rows)

    def _check(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if not 0 <= token < self.vocab_size:  # the engine would read past its embedding
                raise outside_vocabulary(token, self.vocab_size)

    def _windows(self, contexts: Sequence[TokenIds]) -> list[TokenIds]:
        return [self.window.of(context) for context in contexts]

    def _prepare(self, rows: Sequence[int], windows: Sequence[TokenIds], new: Sequence[int]) -> PagedSequences:
        """Store all but the newest token of some rows' windows, with room for so many `new` ones after that.

        Raises:
            InputError: a token is outside the vocabulary.
        """
        sequences = self._sequences
        if sequences is None:
            sequences = self._sequences = PagedSequences(self._make_engine(len(windows)), self._prefill_chunk)
        for row, window in zip(rows, windows, strict=True):
            self._check(sequences.missing(row, window))
        sequences.store(rows, [window[:-1] for window in windows])
        sequences.reserve(rows, new)
        return sequences


def _newest(windows: Sequence[TokenIds]) -> tuple[list[int], list[int], list[int]]:
    """Return the newest token of each window, its sequence and its position."""
    return [window[-1] for window in windows], list(range(len(windows))), [len(window) - 1 for window in windows]
