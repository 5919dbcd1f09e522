"""The C++ engine as a backend: prepared once for a model; it computes next-token logits, and samples tokens itself."""

import ctypes
import itertools
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from gpt.config import ModelConfig, SamplingParams
from gpt.environment import Settings
from gpt.generation.backends import TokenIds, Window
from gpt.generation.backends.agreement import check_logits, why_not_sample
from gpt.generation.backends.paged import PagedSequences
from gpt.kernels.decoding.c_structs import SAMPLING, sample_in_c, sampling_in_c, unknown_sampling
from gpt.kernels.decoding.engine import Engine, load_engine
from gpt.kernels.decoding.layout import Weights
from gpt.kernels.decoding.weights import check_native_support, lay_out_weights
from gpt.model import GPT
from gpt.model.gpt import outside_vocabulary
from gpt.processor import supported_processors
from gpt.progress import Report, announced

Version = tuple[ModelConfig, Settings, int]
"""What a prepared engine depends on; the number is a checksum of the weights."""
MakeEngine = Callable[[int], Engine]
"""Makes an engine for a number of sequences."""


@dataclass(frozen=True)
class Prepared:
    """A compiled engine and the weights it reads.

    Attributes:
        library: compiled for this processor.
        weights: a copy, in the engine's layout.
    """

    library: ctypes.CDLL
    weights: Weights
    _sampling: dict[tuple[float, ...], str | None] = field(default_factory=dict)

    def why_not_sample(self, params: SamplingParams) -> str | None:
        """Return why the engine must not sample by these parameters; None if it may. Each are tried once."""
        if (unknown := unknown_sampling(params)) is not None:
            return f"the native engine does not know {unknown}"
        key = tuple(getattr(params, name) for name in sorted(SAMPLING))
        if key not in self._sampling:
            self._sampling[key] = why_not_sample(self.library, params)
        return self._sampling[key]


_KEPT: WeakKeyDictionary[GPT, tuple[Version, Prepared]] = WeakKeyDictionary()
"""The results of `prepare`, as long as their models are alive."""


def prepare(model: GPT, settings: Settings, report: Report) -> Prepared:
    """Return the engine for a model, prepared anew only if the model has changed since the last call.

    All weights are read once to detect a change: torch's version counters miss what is written through `.data`.

    Args:
        model: on the CPU.
        settings: say where compiled code is kept, and for which processor.
        report: takes a line if the engine has to be compiled, or if this takes long.

    Raises:
        DeviceError: the engine is not available here, or does not compute this model.
    """
    check_native_support(model)
    version = (model.config, settings, _checksum(model))
    kept = _KEPT.get(model)
    if kept is not None and kept[0] == version:
        return kept[1]
    processor = supported_processors(settings.processor)[0]
    library = load_engine(settings.cache_dir, report, processor)
    with announced(report, "copying the weights for the native engine, and comparing it with the model"):
        prepared = Prepared(library, lay_out_weights(model, processor))
        check_logits(model, Engine(library, prepared.weights, sequences=1))
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
    """Computes next-token logits by an engine, and samples tokens inside it.

    Args:
        make_engine: called at the first use, when the number of sequences is known.
        model: the one the engine computes.
        slide_chunk: see `Window`; None: a quarter of the window.
        prefill_chunk: most positions computed at a time; None: as many as the engine has room for.
    """

    def __init__(
        self, make_engine: MakeEngine, model: GPT, slide_chunk: int | None = None, prefill_chunk: int | None = None
    ) -> None:
        self.window, self.vocab_size = Window.build(model.config.block_size, slide_chunk), model.vocab_size
        self._make_engine, self._prefill_chunk = make_engine, prefill_chunk
        self._paged: PagedSequences | None = None

    @property
    def cache_bytes(self) -> int:
        return self._paged.nbytes if self._paged is not None else 0

    def next_logits(self, sequences: Sequence[TokenIds]) -> Tensor:
        indices, windows = range(len(sequences)), self._windows(sequences)
        paged = self._prepare(indices, windows, [1] * len(indices))
        logits = paged.engine.forward(*_newest(windows), indices)
        for index, window in enumerate(windows):
            paged.append(index, window[-1:])
        return logits

    def room(self, sequences: Sequence[TokenIds]) -> int:
        """Return how many tokens `generate` can sample before a window has to move."""
        return self.window.size + 1 - max(len(sequence) - self.window.start(len(sequence)) for sequence in sequences)

    def generate(
        self,
        sequences: Sequence[TokenIds],
        uniforms: Tensor,
        params: SamplingParams,
        seen: Tensor | None,
        keep_logits: bool,
    ) -> tuple[list[list[int]], Tensor | None]:
        """Sample several tokens after each sequence; arguments and result are those of `Engine.generate`.

        Raises:
            NotFiniteError: logits are not finite.
        """
        indices, windows = range(len(sequences)), self._windows(sequences)
        paged = self._prepare(indices, windows, [uniforms.size(1)] * len(indices))
        tokens, _, positions = _newest(windows)
        sampled, logits = paged.engine.generate(indices, tokens, positions, uniforms, params, seen, keep_logits)
        for index, (token, more) in enumerate(zip(tokens, sampled, strict=True)):
            paged.append(index, [token, *more[:-1]])
        return sampled, logits

    def verify(
        self,
        indices: Sequence[int],
        sequences: Sequence[TokenIds],
        drafts: Sequence[Sequence[int]],
        uniforms: Sequence[Sequence[float]],
        params: SamplingParams,
        seen: Tensor | None,
        keep_logits: bool,
    ) -> list[tuple[list[int], Tensor | None]]:
        """Sample after each sequence, and after each of its drafts as if those before it were accepted.

        Args:
            indices: of the B sequences in the batch, in order; the other sequences are left alone.
            sequences: their tokens.
            drafts: tokens proposed for each, at most as many as its window has room for.
            uniforms: for each sequence a number in [0, 1), and one more for each of its drafts.
            params: how to sample.
            seen: (B, V) uint8, 1 for the tokens of each sequence; None without a repetition penalty.
            keep_logits: return the logits too.

        Returns:
            For each sequence its sampled tokens, one more than drafts, -1 where logits are not finite; and the
            logits (tokens, V) or None.
        """
        windows = self._windows(sequences)
        for draft in drafts:
            self._check(draft)
        sizes = [1 + len(draft) for draft in drafts]
        paged = self._prepare(indices, windows, sizes)
        tokens: list[int] = []
        sequence_of: list[int] = []
        positions: list[int] = []
        for index, window, draft in zip(indices, windows, drafts, strict=True):
            tokens += [window[-1], *draft]
            sequence_of += [index] * (1 + len(draft))
            positions += range(len(window) - 1, len(window) + len(draft))
        logits = torch.empty(len(tokens), self.vocab_size, dtype=torch.float32) if keep_logits else None
        logits_of = [None] * len(tokens) if logits is None else list(logits)
        seen_by = [None] * len(tokens) if seen is None else _seen_by_each(seen, drafts)  # alive until the call is over
        numbers = itertools.chain.from_iterable(uniforms)
        samples = list(map(partial(sample_in_c, sampling_in_c(params)), numbers, seen_by, logits_of))
        sampled = paged.engine.step(tokens, sequence_of, positions, range(len(tokens)), samples)
        for index, window, draft in zip(indices, windows, drafts, strict=True):
            paged.append(index, [window[-1], *draft])
        ends = list(itertools.accumulate(sizes))
        return [
            (sampled[end - size : end], None if logits is None else logits[end - size : end])
            for size, end in zip(sizes, ends, strict=True)
        ]

    def select(self, indices: Sequence[int]) -> None:
        if self._paged is None:
            return
        if len(indices) > self._paged.engine.sequences:
            self._paged = None  # the next call makes a larger engine
        else:
            self._paged.select(indices)

    def _check(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if not 0 <= token < self.vocab_size:  # the engine would read past its embedding
                raise outside_vocabulary(token, self.vocab_size)

    def _windows(self, sequences: Sequence[TokenIds]) -> list[TokenIds]:
        return [self.window.of(sequence) for sequence in sequences]

    def _prepare(self, indices: Sequence[int], windows: Sequence[TokenIds], counts: Sequence[int]) -> PagedSequences:
        """Store the windows of some sequences but for their newest tokens, and reserve `counts[i]` more positions.

        Raises:
            InputError: a token is outside the vocabulary.
        """
        paged = self._paged
        if paged is None:
            paged = self._paged = PagedSequences(self._make_engine(len(windows)), self._prefill_chunk)
        for index, window in zip(indices, windows, strict=True):
            self._check(paged.missing(index, window))
        paged.store(indices, [window[:-1] for window in windows])
        paged.reserve(indices, counts)
        return paged


def _newest(windows: Sequence[TokenIds]) -> tuple[list[int], list[int], list[int]]:
    """Return the newest token of each window, the index of its sequence, and its position."""
    return [window[-1] for window in windows], list(range(len(windows))), [len(window) - 1 for window in windows]


def _seen_by_each(seen: Tensor, drafts: Sequence[Sequence[int]]) -> list[Tensor]:
    """Return the tokens (V,) before each sampled one: those of its sequence, from (B, V), and the drafts up to it."""
    rows = []
    for row, draft in zip(seen, drafts, strict=True):
        rows.append(row)
        for token in draft:
            row = row.clone()
            row[token] = 1
            rows.append(row)
    return rows
