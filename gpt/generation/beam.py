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


Ended = Callable[[Sequence[int]], Hashable | None]
"""Returns the result of a hypothesis that has ended, such as its text, from its new tokens.

None means that the hypothesis goes on.
"""


def never_ended(tokens: Sequence[int]) -> None:
    return None


@dataclass(frozen=True)
class BeamOptions:
    """What a beam search looks for.

    Attributes:
        beam: number of hypotheses that are kept. With V ** max_new_tokens of them the search is
            exhaustive.
        length_penalty: 0 compares plain sums of log-probabilities, which favors short hypotheses;
            larger values favor longer ones.
        ended: returns the result of a hypothesis that has ended, see `Ended`.
        ids: ids below this number may occur in a hypothesis; None means all ids.

    Raises:
        GenerationError: `length_penalty` is below 0 or not finite.
    """

    beam: int
    length_penalty: float = 1.0
    ended: Ended = never_ended
    ids: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.length_penalty < math.inf:
            raise GenerationError(
                f"length_penalty is {self.length_penalty:g}, expected a number of at least 0"
            )


@torch.inference_mode()
def beam_search(
    runner: Runner, prompt: Sequence[int], max_new_tokens: int, options: BeamOptions
) -> list[Hypothesis]:
    """Return the `beam` best continuations found, best first.

    At each step every live hypothesis is extended by every token, and the `beam` most probable of
    all extensions are kept; those that are finished are set aside. Hypotheses of different lengths
    compare by score (Wu et al. 2016, 1609.08144, section 7, with the plain power of the length).
    Ties go to the hypothesis that was better before, then to the lower id. Once `beam` of them are
    finished, the search ends, and the live ones are dropped. Of hypotheses with the same result,
    such as the same text from different tokens, only the best counts.

    Args:
        runner: a runner that was not used before, with room for `beam` sequences.
        prompt: at least one id.

    Raises:
        GenerationError: the prompt is empty, or the logits are not finite.
    """
    if len(prompt) == 0:
        raise GenerationError("a prompt needs at least one token")
    request = Request(list(prompt), SamplingParams())  # nothing is sampled by these parameters
    sequence = SequenceState(request, None, runner.block_size, runner.pool)
    search = _Search(sequence, options)
    for _ in range(max_new_tokens):
        search.step(_extension_logprobs(runner, search.live, options.ids))
        if not search.live:
            break
    return search.best()


class Live(NamedTuple):
    """A hypothesis that goes on: its sequence, and the sum of its log-probabilities in nats."""

    sequence: SequenceState
    logprob: float


class Extension(NamedTuple):
    """A token after a live hypothesis, and the sum of all log-probabilities in nats."""

    logprob: float
    row: int
    token: int


class _Search:
    """The hypotheses of a search in progress.

    Attributes:
        live: the hypotheses that go on, best first.

    Args:
        sequence: the sequence of the prompt, which the hypotheses continue.
    """

    def __init__(self, sequence: SequenceState, options: BeamOptions) -> None:
        self.live = [Live(sequence, 0.0)]
        self._prompt_length = len(sequence.tokens)
        self._options = options
        self._finished: dict[Hashable, Hypothesis] = {}  # by their results

    def step(self, logprobs: Tensor) -> None:
        """Replace the live hypotheses by the best of their extensions.

        Args:
            logprobs: sums of log-probabilities of each hypothesis with each next token, (B, V).
        """
        parents = self.live
        self.live = []
        # Extensions with the same result, such as the same text, count once.
        num_kept = 0
        for extension in _best_extensions(logprobs):
            parent = parents[extension.row]
            if self._keep(parent.sequence, extension):
                num_kept += 1
            if num_kept == self._options.beam:
                break
        # The parents release their blocks; those that live extensions share with them stay in use.
        for parent in parents:
            parent.sequence.table.truncate(0)
        if len(self._finished) >= self._options.beam:
            self.live = []  # the search is over

    def best(self) -> list[Hypothesis]:
        """Return the best of the finished and the live hypotheses, best first."""
        hypotheses = list(self._finished.values())
        for sequence, logprob in self.live:
            tokens = sequence.tokens[self._prompt_length :]
            hypotheses.append(self._hypothesis(tokens, logprob, finished=False))
        best_first = sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)
        return best_first[: self._options.beam]

    def _keep(self, parent: SequenceState, extension: Extension) -> bool:
        """Keep an extension as live or finished; return False if its result was found before.

        Several finished hypotheses may have the same result: different tokens can spell one text.
        """
        tokens = [*parent.tokens[self._prompt_length :], extension.token]
        result = self._options.ended(tokens)
        if result is None:
            sequence = _extended(parent, extension.token)
            self.live.append(Live(sequence, extension.logprob))
            return True
        found = self._hypothesis(tokens, extension.logprob, finished=True)
        known = self._finished.get(result)
        if known is None or found.score > known.score:
            self._finished[result] = found
        # A better hypothesis with a known result takes the place of the other, and adds none.
        return known is None

    def _hypothesis(self, tokens: Sequence[int], logprob: float, finished: bool) -> Hypothesis:
        # At least 1, since 0 has no negative power. Without tokens `logprob` and the score are 0.
        length = max(len(tokens), 1)
        score = logprob * length**-self._options.length_penalty
        return Hypothesis(tuple(tokens), logprob, score, finished)


def _extended(sequence: SequenceState, token: int) -> SequenceState:
    """Return a copy of a sequence with one more token; both share the blocks of the sequence."""
    # A shallow copy also shares the random numbers, which a beam search does not use.
    extended = copy.copy(sequence)
    extended.tokens = list(sequence.tokens)
    extended.table = sequence.table.fork()
    extended.append([SampledToken(token)])
    return extended


def _extension_logprobs(runner: Runner, live: Sequence[Live], ids: int | None) -> Tensor:
    """Return the log-probability of every hypothesis with every next token, (B, V) float64."""
    work = []
    for row, (sequence, _) in enumerate(live):
        # A copied sequence has the row of its parent, but the runner needs a row for each.
        sequence.row = row
        tokens = sequence.window()[sequence.num_cached :]
        copies = sequence.table.reserve(sequence.num_cached + len(tokens))
        work.append(ScheduledWork(sequence, tokens, max_samples=1, copies=copies))
    items, logits = runner.logits(work)  # (B, V)
    check_finite(logits, [item.sequence.tokens for item in items])
    for item in work:
        item.sequence.table.append(item.tokens)  # the runner has stored their keys and values
    # In float64 if the device has it, so that rounding decides no comparison of long sums.
    so_far = torch.tensor([each.logprob for each in live], dtype=torch.float64)  # (B,)
    logprobs = logits.to(widest_dtype(logits.device)).log_softmax(dim=-1).cpu()
    return so_far.unsqueeze(1) + logprobs[:, :ids]  # all ids if `ids` is None


def _best_extensions(logprobs: Tensor) -> Iterator[Extension]:
    """Yield the entries of (B, V), best first."""
    # A stable sort keeps ties in their order, so that they go to the better hypothesis.
    best = logprobs.flatten().sort(descending=True, stable=True)
    for value, index in zip(best.values, best.indices, strict=True):
        row, token = divmod(int(index), logprobs.size(1))
        yield Extension(value.item(), row, token)
