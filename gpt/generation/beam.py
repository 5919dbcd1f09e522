"""Beam search: the most probable continuations, found by keeping a few at a time."""

import copy
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gpt.config import SamplingParams
from gpt.generation.runner import Runner
from gpt.generation.sequence import Request, ScheduledWork, SequenceState
from gpt.generation.tokens import SampledToken, check_finite
from gpt.system.device import widest_dtype
from gpt.system.errors import GenerationError


@dataclass(frozen=True)
class Hypothesis:
    """A continuation of a prompt.

    Attributes:
        tokens: the ids after the prompt.
        logprob: the sum of their log-probabilities in nats.
        score: what hypotheses are ranked by, `logprob / length ** length_penalty`.
        finished: whether it ended by itself, and not by `max_new_tokens`.
    """

    tokens: tuple[int, ...]
    logprob: float
    score: float
    finished: bool


class Live(NamedTuple):
    """A hypothesis that goes on: its sequence, and the sum of its log-probabilities in nats."""

    sequence: SequenceState
    logprob: float


Ended = Callable[[Sequence[int]], Hashable | None]
"""What a hypothesis, given as its new tokens, ended as, such as its text; None: it goes on."""


def never_ended(tokens: Sequence[int]) -> None:
    return None


@torch.inference_mode()
def beam_search(
    runner: Runner,
    prompt: Sequence[int],
    beam: int,
    max_new_tokens: int,
    length_penalty: float = 1.0,
    ended: Ended = never_ended,
    ids: int | None = None,
) -> list[Hypothesis]:
    """Return the `beam` best continuations found, best first.

    At each step every live hypothesis is extended by every token, and the `beam` most probable of
    all extensions are kept; those that are finished are set aside. Hypotheses of different lengths
    compare by score (Wu et al. 2016, 1609.08144, section 7, with the plain power of the length).
    Ties go to the hypothesis that was better before, then to the lower id. Once `beam` are
    finished, the search ends and those still live are dropped. Those that ended as the same count
    as one, the best of them.

    Args:
        runner: not used before, with room for `beam` sequences.
        prompt: at least one id.
        beam: hypotheses kept; with V ** max_new_tokens of them the search is exhaustive.
        length_penalty: 0 compares plain sums; larger favors longer hypotheses.
        ended: see `Ended`.
        ids: number of ids that it may have, from 0 on; None: all.

    Raises:
        GenerationError: `length_penalty` is below 0 or not finite, the prompt is empty, or the
            logits are not finite.
    """
    if not 0 <= length_penalty < math.inf:
        raise GenerationError(
            f"length_penalty is {length_penalty:g}, expected a number of at least 0"
        )
    if not len(prompt):
        raise GenerationError("a prompt needs at least one token")
    request = Request(list(prompt), SamplingParams())
    sequence = SequenceState(request, None, runner.block_size, runner.pool)
    live = [Live(sequence, 0.0)]
    finished: dict[Hashable, Hypothesis] = {}
    for _ in range(max_new_tokens):
        extended: list[Live] = []
        kept = 0
        for logprob, row, token in _best_extensions(_extension_logprobs(runner, live, ids)):
            parent = live[row].sequence
            tokens = [*parent.tokens[len(prompt) :], token]
            result = ended(tokens)
            if result is None:
                extended.append(Live(_extended(parent, token), logprob))
                kept += 1
            else:
                found = _hypothesis(tokens, logprob, length_penalty, finished=True)
                if result not in finished:
                    finished[result] = found
                    kept += 1
                elif found.score > finished[result].score:
                    finished[result] = found
            if kept == beam:
                break
        for each in live:
            each.sequence.table.truncate(0)  # the extensions share the blocks that they need
        live = extended if len(finished) < beam else []
        if not live:
            break
    found_so_far = list(finished.values())
    for each in live:
        tokens = each.sequence.tokens[len(prompt) :]
        found_so_far.append(_hypothesis(tokens, each.logprob, length_penalty, finished=False))
    return sorted(found_so_far, key=lambda hypothesis: -hypothesis.score)[:beam]


def _extended(sequence: SequenceState, token: int) -> SequenceState:
    """Return a copy of a sequence with one more token, which shares the blocks of the sequence."""
    extended = copy.copy(sequence)
    extended.tokens = list(sequence.tokens)
    extended.table = sequence.table.fork()
    extended.append([SampledToken(token)])
    return extended


def _extension_logprobs(runner: Runner, live: Sequence[Live], ids: int | None) -> Tensor:
    """Return the log-probability of every hypothesis with every next token, (B, V) float64."""
    work = []
    for row, (sequence, _) in enumerate(live):
        sequence.row = row
        tokens = sequence.window()[sequence.num_cached :]
        copies = sequence.table.reserve(sequence.num_cached + len(tokens))
        work.append(ScheduledWork(sequence, tokens, max_samples=1, copies=copies))
    sequences, logits = runner.logits(work)  # (B, V)
    check_finite(logits, [sequence.tokens for sequence in sequences])
    for item in work:
        item.sequence.table.append(item.tokens)
    so_far = torch.tensor([each.logprob for each in live], dtype=torch.float64)  # (B,)
    logprobs = logits.to(widest_dtype(logits.device)).log_softmax(dim=-1).cpu()
    return so_far.unsqueeze(1) + logprobs[:, :ids]


def _best_extensions(logprobs: Tensor) -> Iterator[tuple[float, int, int]]:
    """Yield log-probability, hypothesis and token of the entries of (B, V), best first."""
    # A stable sort keeps ties in their order, so that they go to the better hypothesis.
    best = logprobs.flatten().sort(descending=True, stable=True)
    for value, index in zip(best.values, best.indices, strict=True):
        row, token = divmod(int(index), logprobs.size(1))
        yield value.item(), row, token


def _hypothesis(
    tokens: Sequence[int], logprob: float, length_penalty: float, finished: bool
) -> Hypothesis:
    length = max(len(tokens), 1)  # the empty one has a length to divide by too
    score = logprob * length**-length_penalty
    return Hypothesis(tuple(tokens), logprob, score, finished)
