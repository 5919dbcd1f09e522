"""The C++ engine, prepared once for a model, and as a backend that computes next-token logits."""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from gpt.cache.paged import BLOCK, BlockPool, BlockTable
from gpt.config import SamplingParams
from gpt.environment import Settings
from gpt.generation.backends import TokenIds, Window
from gpt.generation.text import check_ids
from gpt.generation.tokens import OF_TEXTS
from gpt.kernels import fingerprint
from gpt.kernels.decoding.c_structs import SAMPLING
from gpt.kernels.decoding.engine import Engine, load_engine
from gpt.kernels.decoding.weights import Weights, check_native_support, lay_out_weights
from gpt.kernels.fingerprint import changed_code
from gpt.model import GPT
from gpt.progress import Report, announced

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

    def why_not_sample(self, params: SamplingParams) -> str | None:
        """Return why the engine must not sample by these parameters; None if it may."""
        for name, known in type(params).model_fields.items():
            if name not in SAMPLING | OF_TEXTS | {"logprobs"} and getattr(params, name) != known.default:
                return f"the native engine does not know {name}"
        return changed_code(fingerprint.SAMPLING)


def prepare(model: GPT, settings: Settings, report: Report) -> Prepared:
    """Return the engine for a model on the CPU.

    Args:
        model: its weights are copied.
        settings: say where compiled code is kept, and for which processor.
        report: takes a line if the engine has to be compiled, or if this takes long.

    Raises:
        DeviceError: the engine is not available here, or does not compute this model.
    """
    check_native_support(model)
    library, processor = load_engine(settings, report)
    with announced(report, "copying the weights for the native engine"):
        return Prepared(library, lay_out_weights(model, processor))


class NativeBackend:
    """Computes next-token logits by an engine; what sequences begin with in common is stored once.

    Args:
        make_engine: called at the first use, when the number of sequences is known.
        model: the one the engine computes.
        slide_chunk: see `Window.build`.
        prefill_chunk: most positions computed at a time; None: as many as the engine has room for.
    """

    def __init__(
        self, make_engine: MakeEngine, model: GPT, slide_chunk: int | None = None, prefill_chunk: int | None = None
    ) -> None:
        self.window, self.vocab_size = Window.build(model.config.block_size, slide_chunk), model.vocab_size
        self._make_engine, self._prefill_chunk = make_engine, prefill_chunk
        self._engine: Engine | None = None

    @property
    def cache_bytes(self) -> int:
        return 0 if self._engine is None else self._pool.in_use * self._engine.block_bytes

    def next_logits(self, sequences: Sequence[TokenIds]) -> Tensor:
        engine, windows = self._store(sequences), [self.window.of(sequence) for sequence in sequences]
        newest, positions = [window[-1] for window in windows], [len(window) - 1 for window in windows]
        logits = engine.forward(newest, range(len(windows)), positions, range(len(windows)))
        for table, token in zip(self._tables, newest, strict=False):
            table.append([token])
        return logits

    def select(self, indices: Sequence[int]) -> None:
        if self._engine is None:
            return
        if len(indices) > self._engine.sequences:
            # the next call makes a larger one
            self._engine = None
            return
        chosen = [self._tables[index].fork() for index in indices]
        for table in self._tables:
            table.truncate(0)
        self._tables[: len(chosen)] = chosen

    def _store(self, sequences: Sequence[TokenIds]) -> Engine:
        """Store the windows of sequences but for their newest tokens, for which blocks are reserved.

        Raises:
            InputError: a token is outside the vocabulary.
        """
        engine = self._engine
        if engine is None:
            engine = self._engine = self._make_engine(len(sequences))
            self._pool = BlockPool(engine.blocks, BLOCK)
            self._tables = [BlockTable(self._pool) for _ in range(engine.sequences)]
        for row, sequence in enumerate(sequences):
            table, window = self._tables[row], self.window.of(sequence)
            table.truncate(_common_prefix(table.tokens, window[:-1]))
            check_ids(window[len(table.tokens) :], self.vocab_size)
            if not table.tokens:
                table.match(window[:-1])
            if len(table.tokens) < len(window) - 1:
                self._compute(engine, row, window[len(table.tokens) : -1])
            # at once: the next row may compute into the block that this one copies
            engine.copy_blocks(table.reserve(len(table.tokens) + 1))
            engine.set_blocks(row, table.blocks)
        return engine

    def _compute(self, engine: Engine, row: int, tokens: TokenIds) -> None:
        table, first = self._tables[row], len(self._tables[row].tokens)
        engine.copy_blocks(table.reserve(first + len(tokens)))
        engine.set_blocks(row, table.blocks)
        size = min(self._prefill_chunk or engine.max_tokens, engine.max_tokens)
        for start in range(0, len(tokens), size):
            part = tokens[start : start + size]
            engine.forward(part, [row] * len(part), range(first + start, first + start + len(part)), wanted=())
        table.append(tokens)


def _common_prefix(stored: Sequence[int], tokens: TokenIds) -> int:
    if stored[: len(tokens)] == list(tokens):
        return len(tokens)
    return next((i for i, (a, b) in enumerate(zip(stored, tokens, strict=False)) if a != b), len(stored))
