"""Beam search: the most probable continuations, found by keeping a few at a time."""

import copy
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

import torch

from gpt.config import SamplingParams
from gpt.generation.runner import Runner
from gpt.generation.sequence import Request, ScheduledWork, SequenceState
from gpt.generation.tokens import SampledToken, check_finite
from gpt.system.device import widest_dtype
from gpt.system.errors import GenerationError


@dataclass(frozen=True)
class Hypothesis:
    """The ids after a prompt, the sum of their log-probabilities in nats, and what hypotheses are ranked by.

    `score` is `logprob / length ** length_penalty`; it is `finished` if it did not end by `max_new_tokens`.
    """

    tokens: tuple[int, ...]
    logprob: float
    score: float
    finished: bool


@torch.inference_mode()
def beam_search(
    runner: Runner,
    prompt: Sequence[int],
    beam: int,
    max_new_tokens: int,
    length_penalty: float = 1.0,
    ended: Callable[[Sequence[int]], Hashable | None] = lambda tokens: None,
    ids: int | None = None,
) -> list[Hypothesis]:
    """Return the `beam` best continuations found, best first.

    At each step every live hypothesis is extended by every token, and the `beam` most probable of all
    extensions are kept; those that are finished are set aside. Hypotheses of different lengths compare by
    score (Wu et al. 2016, 1609.08144, section 7, with the plain power of the length). Ties go to the
    hypothesis that was better before, then to the lower id. Once `beam` are finished, the search ends
    and those still live are dropped. Those that ended as the same count as one, the best of them.

    Args:
        runner: not used before, with room for `beam` sequences.
        prompt: at least one id.
        beam: hypotheses kept; with V ** max_new_tokens of them the search is exhaustive.
        length_penalty: 0 compares plain sums; larger favors longer hypotheses.
        ended: what a hypothesis, given as its new tokens, ended as, such as its text; None: it goes on.
        ids: number of ids that it may have, from 0 on; None: all.

    Raises:
        GenerationError: `length_penalty` is below 0 or not finite, the prompt is empty, or the logits are not finite.
    """
    if not 0 <= length_penalty < math.inf:
        raise GenerationError(f"length_penalty is {length_penalty:g}, expected a number of at least 0")
    if not len(prompt):
        raise GenerationError("a prompt needs at least one token")
    request = Request(list(prompt), SamplingParams())
    live = [(SequenceState(request, None, runner.block_size, runner.pool), 0.0)]
    done: dict[Hashable, Hypothesis] = {}
    for _ in range(max_new_tokens):
        extended: list[tuple[SequenceState, float]] = []
        kept = 0
        for logprob, row, token in _best_extensions(_extension_logprobs(runner, live, ids)):
            sequence = live[row][0]
            tokens = [*sequence.tokens[len(prompt) :], token]
            result = ended(tokens)
            if result is None:
                extended.append((_extended(sequence, token), logprob))
                kept += 1
            else:
                hypothesis = _hypothesis(tokens, logprob, length_penalty, finished=True)
                known = done.setdefault(result, hypothesis)
                kept += known is hypothesis
                done[result] = max(known, hypothesis, key=attrgetter("score"))
            if kept == beam:
                break
        for sequence, _ in live:
            sequence.table.truncate(0)
        live = extended if len(done) < beam else []
        if not live:
            break
    found = list(done.values())
    for sequence, logprob in live:
        found.append(_hypothesis(sequence.tokens[len(prompt) :], logprob, length_penalty, finished=False))
    return sorted(found, key=lambda hypothesis: -hypothesis.score)[:beam]


def _extended(sequence: SequenceState, token: int) -> SequenceState:
    """Return a copy of a sequence with one more token, which shares the blocks of its keys and values."""
    other = copy.copy(sequence)
    other.tokens, other.table = list(sequence.tokens), sequence.table.fork()
    other.append([SampledToken(token)])
    return other


def _extension_logprobs(runner: Runner, live: Sequence[tuple[SequenceState, float]], ids: int | None) -> torch.Tensor:
    """Return the log-probability of every hypothesis with every next token, (B, V) float64."""
    chunks = []
    for row, (sequence, _) in enumerate(live):
        sequence.row, tokens = row, sequence.window()[sequence.num_cached :]
        copies = sequence.table.reserve(sequence.num_cached + len(tokens))
        chunks.append(ScheduledWork(sequence, tokens, 1, copies))
    sequences, logits = runner.logits(chunks)
    check_finite(logits, [sequence.tokens for sequence in sequences])
    for sequence, tokens, *_ in chunks:
        sequence.table.append(tokens)
    so_far = torch.tensor([logprob for _, logprob in live], dtype=torch.float64)
    logprobs = logits.to(widest_dtype(logits.device)).log_softmax(dim=-1).cpu()
    return so_far.unsqueeze(1) + logprobs[:, :ids]


def _best_extensions(logprobs: torch.Tensor) -> Iterator[tuple[float, int, int]]:
    """Yield log-probability, hypothesis and token of the entries of (B, V), best first."""
    best = logprobs.flatten().sort(descending=True, stable=True)
    for value, index in zip(best.values, best.indices, strict=True):
        yield (value.item(), *divmod(int(index), logprobs.size(1)))


def _hypothesis(tokens: Sequence[int], logprob: float, length_penalty: float, finished: bool) -> Hypothesis:
    return Hypothesis(tuple(tokens), logprob, logprob * max(len(tokens), 1) ** -length_penalty, finished)
