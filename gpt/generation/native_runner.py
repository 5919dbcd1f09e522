"""The C++ engine: sequences that join and leave, and several tokens a call where nothing is in the way."""

import ctypes
import math
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from gpt.config import SamplingParams
from gpt.generation.runner import Runner, Sampled
from gpt.generation.sequence import ScheduledWork, SequenceState
from gpt.generation.tokens import NOT_SAMPLING_FIELDS, to_sampled_tokens
from gpt.model import GPT
from gpt.native import fingerprint
from gpt.native.decoding.c_structs import SAMPLING, sample_in_c, sampling_in_c
from gpt.native.decoding.engine import Engine, NotFiniteError, load_engine
from gpt.native.decoding.weights import BLOCK, Weights, check_native_support, lay_out_weights
from gpt.native.fingerprint import changed_code
from gpt.system.environment import Settings
from gpt.system.progress import Report, announced

PATIENCE = 0.03
"""Seconds that a reader of the stream may wait for tokens that are sampled but not shown."""
MAX_STEPS = 64
MANY = 16  # tokens of a pass, from which on each takes about the same time
TRIAL_CALLS = 32  # after which other splits than the fastest are tried again

NativeModel = tuple[ctypes.CDLL, Weights]
"""A library compiled for this processor, and a copy of a model's weights in its layout."""


def prepare(model: GPT, settings: Settings, report: Report) -> NativeModel:
    """Return what engines for a model on the CPU are made from.

    Raises:
        DeviceError: the engine is not available here, or does not compute this model.
    """
    check_native_support(model)
    library, processor = load_engine(settings, report)
    with announced(report, "copying the weights for the native engine"):
        return library, lay_out_weights(model, processor)


def sampling_unsupported_reason(params: SamplingParams) -> str | None:
    """Return why the engine must not sample by these parameters; None if it may."""
    for name, known in type(params).model_fields.items():
        if name not in SAMPLING | NOT_SAMPLING_FIELDS | {"logprobs"} and getattr(params, name) != known.default:
            return f"the native engine does not know {name}"
    return changed_code(fingerprint.SAMPLING)


class Split(NamedTuple):
    """How a call is split among threads: each computes some sequences, or a part of every token."""

    threads: int
    by_sequence: bool = False


class SplitChoice:
    """Chooses the fastest of some splits by the clock; the tokens do not depend on it.

    Threads that share a token wait for each other dozens of times, and read what others have written: fewer are faster
    where a token is little work or another process has one of the cores; a split by sequence, where cores are many or
    share no cache.

    Args:
        splits: those beside the fastest are tried now and then, and the first.
        first: index of the one to begin with.
        first_calls: calls before others are tried; the first of them wake the threads.
    """

    def __init__(self, splits: Sequence[Split], first: int, first_calls: int) -> None:
        self.splits, self.fastest, self._first_calls = splits, splits[first], first_calls
        self._calls, self._seconds, self._trials = 0, math.inf, list[Split]()

    def next(self) -> Split:
        """Return the split of the next call."""
        self._calls += 1
        if (self._calls - self._first_calls) % TRIAL_CALLS == 1:
            self._trials = self._beside()
        return self._trials.pop() if self._trials else self.fastest

    def note(self, split: Split, seconds: float) -> None:
        """Take the time per token of a call. It falls at once and rises by halves: one slow call says little."""
        if split == self.fastest:
            self._seconds = min(seconds, (self._seconds + seconds) / 2)
        elif seconds < self._seconds:
            self.fastest, self._seconds = split, seconds
            self._trials = self._beside()

    def _beside(self) -> list[Split]:
        at = self.splits.index(self.fastest)
        return [self.splits[index] for index in sorted({0, at - 1, at + 1} - {-1, at, len(self.splits)})]


class NativeRunner(Runner):
    """Computes a step in one call of the C++ engine.

    Where each sequence needs one token and all are sampled alike, a call samples several: twice as many as the one
    before, as long as that takes no longer than `PATIENCE`, so that the first token comes at once. A step with
    parameters by which the engine cannot sample is sampled in PyTorch from the engine's logits, which `report` is told
    once for each reason.
    """

    def __init__(
        self,
        prepared: NativeModel,
        sequences: int,
        tokens_per_sequence: int,
        kv_dtype: str,
        blocks: int,
        report: Report,
    ) -> None:
        self._engine, model = Engine(*prepared, sequences, tokens_per_sequence, kv_dtype, blocks), prepared[1].model
        super().__init__(model.block_size, blocks)
        assert self.pool.block_size == BLOCK
        self._report, self._reported, self._vocab_size = report, set[str](), model.vocab_size
        self._in_pytorch: WeakKeyDictionary[SequenceState, bool] = WeakKeyDictionary()
        self._steps, self._width, most = 1, 0, self._engine.threads
        splits = [Split(most >> halvings) for halvings in range(most.bit_length())]
        both = [Split(most, by_sequence=True), *splits] if most > 1 else splits
        self._reading = SplitChoice(splits, 0, 1)
        self._writing = [SplitChoice(splits, 0, 5), *(SplitChoice(both, most > 1, 5) for _ in range(1, sequences))]

    @property
    def max_samples_per_call(self) -> int:
        return self._steps

    def run(self, chunks: Sequence[ScheduledWork]) -> Sampled:
        """Sample several tokens a call where every sequence needs only its next one, by the same parameters."""
        sequences = [chunk.sequence for chunk in chunks if chunk.max_samples]
        self._check(sequences)
        if any(self._in_pytorch[sequence] for sequence in sequences):
            return super().run(chunks)
        self._set_blocks(chunks)
        is_short = all(chunk.max_samples and len(chunk.tokens) == 1 for chunk in chunks)
        if not is_short or any(sequence.sampled_by != sequences[0].sampled_by for sequence in sequences[1:]):
            tokens = sum(len(chunk.tokens) for chunk in chunks)
            split, start = self._reading.next() if tokens >= MANY else self._reading.splits[0], time.perf_counter()
            self._engine.use_threads(split.threads)
            sampled = self._step(chunks)
            if tokens >= MANY:
                self._reading.note(split, (time.perf_counter() - start) / tokens)
            return sampled
        if len(chunks) > self._width:
            # more sequences than in the call by whose time it was set
            self._steps = max(1, self._steps * self._width // len(chunks))
        self._width = len(chunks)
        choice = self._writing[self._width - 1]
        split = choice.next()
        steps = self._steps if split == choice.fastest else max(1, self._steps // 4)
        start = time.perf_counter()
        sampled = self._generate(chunks, min(steps, *(chunk.max_samples for chunk in chunks)), split)
        seconds, steps = time.perf_counter() - start, max([1, *map(len, sampled.values())])
        if split == choice.fastest:
            self._steps = max(1, min(2 * self._steps, MAX_STEPS, int(PATIENCE * steps / max(seconds, 1e-9))))
        choice.note(split, seconds / steps)
        return sampled

    def _generate(self, chunks: Sequence[ScheduledWork], steps: int, split: Split) -> Sampled:
        """Sample several tokens after each chunk of one token, all by the same parameters."""
        sequences = [chunk.sequence for chunk in chunks]
        params = sequences[0].params
        uniforms = torch.tensor([sequence.random.peek(steps) for sequence in sequences], dtype=torch.float32)
        seen = None if params.repetition_penalty == 1.0 else torch.stack([self._seen(each) for each in sequences])
        rows, newest = [each.row for each in sequences], [each.tokens[-1] for each in sequences]
        places = (rows, newest, [each.num_cached for each in sequences])
        described = params.logprobs is not None
        self._engine.use_threads(split.threads)
        try:
            sampled, logits = self._engine.generate(*places, uniforms, params, seen, described, split.by_sequence)
        except NotFiniteError as error:
            # those before it are sampled as usual; then the step by itself says which sequence it is
            return self._generate(chunks, error.step, split) if error.step else self._step(chunks)
        return {
            sequence: to_sampled_tokens(tokens, None if logits is None else logits[:, row], params)
            for row, (sequence, tokens) in enumerate(zip(sequences, sampled, strict=True))
        }

    def logits(self, chunks: Sequence[ScheduledWork]) -> tuple[list[SequenceState], Tensor]:
        self._set_blocks(chunks)
        parts = [self._engine.forward(*part) for part in self._passes(chunks)]
        return [chunk.sequence for chunk in chunks if chunk.max_samples], torch.cat(parts)

    def _set_blocks(self, chunks: Sequence[ScheduledWork]) -> None:
        self._engine.copy_blocks([pair for chunk in chunks for pair in chunk.copies])
        for chunk in chunks:
            self._engine.set_blocks(chunk.sequence.row, chunk.sequence.table.blocks)

    def _passes(self, chunks: Sequence[ScheduledWork]) -> Iterator[tuple[list[int], list[int], list[int], list[int]]]:
        """Yield tokens, their rows and positions, and which of them to sample after: a pass over the weights each."""
        tokens: list[tuple[int, int, int, bool]] = []
        for sequence, new, max_samples, _ in chunks:
            for offset, token in enumerate(new):
                is_wanted = max_samples > 0 and offset == len(new) - 1
                tokens.append((token, sequence.row, sequence.num_cached + offset, is_wanted))
        for start in range(0, len(tokens), self._engine.max_tokens):
            ids, rows, positions, wanted = zip(*tokens[start : start + self._engine.max_tokens], strict=True)
            yield list(ids), list(rows), list(positions), [index for index, is_wanted in enumerate(wanted) if is_wanted]

    def _step(self, chunks: Sequence[ScheduledWork]) -> Sampled:
        """Sample after each chunk that is the end of a window."""
        sequences = [chunk.sequence for chunk in chunks if chunk.max_samples]
        # alive until the call is over
        seen = [None if each.params.repetition_penalty == 1.0 else self._seen(each) for each in sequences]
        logits = [
            None if each.params.logprobs is None else torch.empty(self._vocab_size, dtype=torch.float32)
            for each in sequences
        ]
        uniforms = [each.random.peek(1)[0] for each in sequences]
        samples = list(map(sample_in_c, [sampling_in_c(each.params) for each in sequences], uniforms, seen, logits))
        found: list[int] = []
        for part in self._passes(chunks):
            found += self._engine.step(*part, samples[len(found) : len(found) + len(part[3])])
        sampled: Sampled = {}
        for sequence, token, row in zip(sequences, found, logits, strict=True):
            described = None if row is None else row.unsqueeze(0)
            sampled[sequence] = [] if token < 0 else to_sampled_tokens([token], described, sequence.params)
        return sampled

    def _check(self, sequences: Sequence[SequenceState]) -> None:
        """Note which new sequences PyTorch has to sample for; the first time for a reason, report it."""
        new = [sequence for sequence in sequences if sequence not in self._in_pytorch]
        for key, params in {sequence.sampled_by: sequence.params for sequence in new}.items():
            reason = sampling_unsupported_reason(params)
            if reason is not None and reason not in self._reported:
                self._report(f"sampling with PyTorch's operators: {reason}")
                self._reported.add(reason)
            self._in_pytorch |= {each: reason is not None for each in new if each.sampled_by == key}

    def _seen(self, sequence: SequenceState) -> Tensor:
        """Return which tokens a sequence has, (V,) uint8."""
        seen = torch.zeros(self._vocab_size, dtype=torch.uint8)
        seen[list(set(sequence.tokens))] = 1
        return seen
