"""Beam search: the most probable continuations, found by keeping a few at a time."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from gpt.device import widest_dtype
from gpt.errors import GenerationError
from gpt.generation.backends import Backend
from gpt.generation.tokens import check_finite


@dataclass(frozen=True)
class Hypothesis:
    """A continuation of the prompt.

    Attributes:
        tokens: ids after the prompt.
        logprob: sum of their log-probabilities, in nats.
        score: `logprob / length ** length_penalty`, what hypotheses are ranked by.
        finished: it ended by itself, not by `max_new_tokens`.
    """

    tokens: tuple[int, ...]
    logprob: float
    score: float
    finished: bool


@torch.inference_mode()
def beam_search(
    backend: Backend,
    prompt: Sequence[int],
    beam: int,
    max_new_tokens: int,
    length_penalty: float = 1.0,
    is_finished: Callable[[Sequence[int]], bool] = lambda tokens: False,
    ids: int | None = None,
) -> list[Hypothesis]:
    """Return the `beam` best continuations found, best first.

    At each step every live hypothesis is extended by every token, and the `beam` most probable of all
    extensions are kept; those that are finished are set aside. Hypotheses of different lengths compare by
    score (Wu et al. 2016, 1609.08144, section 7, with the plain power of the length). Ties go to the
    hypothesis that was better before, then to the lower id. Once `beam` are finished, the search ends
    and those still live are dropped.

    Args:
        backend: not used before.
        prompt: at least one id.
        beam: hypotheses kept; with V ** max_new_tokens of them the search is exhaustive.
        max_new_tokens: length at which a hypothesis ends.
        length_penalty: 0 compares plain sums; larger favors longer hypotheses.
        is_finished: whether a hypothesis, given as its new tokens, ends here.
        ids: number of ids that it may have, from 0 on; None: all.

    Raises:
        GenerationError: `beam` is below 1, `length_penalty` is below 0 or not finite, the prompt is
            empty, or the logits are not finite.
    """
    if beam < 1:
        raise GenerationError(f"beam is {beam}, expected at least 1")
    if not 0 <= length_penalty < math.inf:
        raise GenerationError(f"length_penalty is {length_penalty:g}, expected a number of at least 0")
    if not len(prompt):
        raise GenerationError("a prompt needs at least one token")
    live: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    done: list[Hypothesis] = []
    for _ in range(max_new_tokens):
        rows: list[int] = []
        extended: list[tuple[tuple[int, ...], float]] = []
        for value, row, token in _best_extensions(_extension_logprobs(backend, prompt, live, ids), beam):
            tokens = (*live[row][0], token)
            if is_finished(tokens):
                done.append(_hypothesis(tokens, value, length_penalty, finished=True))
            else:
                rows.append(row)
                extended.append((tokens, value))
        live = extended if len(done) < beam else []
        if not live:
            break
        backend.select(rows)
    done += [_hypothesis(tokens, logprob, length_penalty, finished=False) for tokens, logprob in live]
    return sorted(done, key=lambda hypothesis: -hypothesis.score)[:beam]


def _extension_logprobs(
    backend: Backend, prompt: Sequence[int], live: Sequence[tuple[tuple[int, ...], float]], ids: int | None
) -> torch.Tensor:
    """Return the log-probability of every hypothesis with every next token, (B, V) float64."""
    sequences = [[*prompt, *tokens] for tokens, _ in live]
    logits = backend.next_logits(sequences)
    check_finite(logits, sequences)
    so_far = torch.tensor([logprob for _, logprob in live], dtype=torch.float64)
    logprobs = logits.to(widest_dtype(logits.device)).log_softmax(dim=-1).cpu()
    return so_far.unsqueeze(1) + logprobs[:, :ids]


def _best_extensions(logprobs: torch.Tensor, beam: int) -> Iterator[tuple[float, int, int]]:
    """Yield log-probability, hypothesis and token of the `beam` best entries of (B, V), best first."""
    best = logprobs.flatten().sort(descending=True, stable=True)
    for value, index in zip(best.values[:beam].tolist(), best.indices[:beam].tolist(), strict=True):
        yield (value, *divmod(index, logprobs.size(1)))


def _hypothesis(tokens: tuple[int, ...], logprob: float, length_penalty: float, finished: bool) -> Hypothesis:
    return Hypothesis(tokens, logprob, logprob * max(len(tokens), 1) ** -length_penalty, finished)
