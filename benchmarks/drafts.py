"""Decoding with a draft that guesses right at a given rate.

Models with random weights agree on nothing, so that the acceptance is simulated; the small model
that drafts is computed all the same, and takes its time.
"""

import time
from collections.abc import Sequence
from random import Random

from torch import Tensor

from benchmarks.decoders import Decode, Entrant, Subject, matrix_bytes
from gpt.cli.command import report
from gpt.config import SamplingParams
from gpt.generation.batch import Batch
from gpt.generation.engine import Engine
from gpt.generation.runner import Runner, Sampled
from gpt.generation.runtime import Runtime, build_runtime
from gpt.generation.sequence import Request, ScheduledWork
from gpt.generation.speculation import Experience, SpeculativeRunner
from gpt.generation.tokens import SampledToken
from gpt.model.quantized import weights_format


class SimulatedDraft(Runner):
    """Computes the steps of a small model, and guesses tokens that are right at some rate.

    Args:
        texts: the tokens of each sequence, by its row, which a right guess is taken from.
    """

    def __init__(self, small: Runner, rate: float, texts: Sequence[list[int]]) -> None:
        super().__init__(small.block_size, small.pool)
        self._small = small
        self._rate = rate
        self._texts = texts
        self._random = Random(0)

    def logits(self, work: Sequence[ScheduledWork]) -> tuple[list[ScheduledWork], Tensor]:
        return self._small.logits(work)

    def run(self, work: Sequence[ScheduledWork]) -> Sampled:
        sampled = self._small.run(work)
        guesses: Sampled = {}
        for item in work:
            begin = len(item.sequence.tokens)
            end = begin + len(sampled[item.sequence])
            right = self._texts[item.sequence.row][begin:end]
            guesses[item.sequence] = [self._guess(token) for token in right]
        return guesses

    def _guess(self, right: int) -> SampledToken:
        if self._random.random() < self._rate:
            return SampledToken(right)
        return SampledToken(1 if right == 0 else 0)  # any other token


def simulated(subject: Subject, small: Subject, rate: float) -> Entrant:
    """Return the fastest backend with drafts of a small model, right at a rate."""
    runtime = build_runtime(subject.model, report=report)
    decode = _with_draft(runtime, build_runtime(small.model, report=report), rate)
    return Entrant(decode, weights_format(subject.model), matrix_bytes(subject.model))


def _with_draft(runtime: Runtime, small: Runtime, rate: float) -> Decode:
    """Return a function that decodes with drafts of which each token is right at a rate."""
    experience = Experience()

    def decode(idx: Tensor, params: SamplingParams) -> list[float]:
        seeds = range(params.seed, params.seed + len(idx))
        texts = idx.tolist()
        # A draft may reach beyond the end of a text by its longest length.
        longer = params.model_copy(update={"max_new_tokens": params.max_new_tokens + 32})
        for chunk in Batch(runtime, idx.tolist(), longer, seeds):
            assert chunk.token is not None
            texts[chunk.row].append(chunk.token.id)
        target = runtime.runner(len(idx))
        draft = SimulatedDraft(small.runner(len(idx)), rate, texts)
        engine = Engine(SpeculativeRunner(target, draft, experience), None, len(idx))
        start = time.perf_counter()
        for row, (ids, seed) in enumerate(zip(idx.tolist(), seeds, strict=True)):
            seeded = params.model_copy(update={"seed": seed})
            engine.add(Request(ids, seeded, row=row))
        while engine.requests:
            engine.step()
        return [start, time.perf_counter()]

    return decode
