"""Speculative decoding: a small model drafts tokens, and the large one checks them in one pass.

A pass of a large model takes about as long for five tokens as for one, since it waits for the
weights. So a draft that is often right makes decoding several times faster (Leviathan et al. 2023,
2211.17192).

The draft samples each token by the same random number by which the large model samples its own
(common random numbers; Daliri et al. 2024, 2408.07978, call this drafter-invariant). A token of the
draft is accepted if the large model samples the same one. So every token is sampled by the large
model from its own distribution, and a seed gives the same text with any draft and without one. The
rule of Leviathan et al. accepts more tokens, but its text depends on the draft and its length.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from gpt.generation.draft_length import LENGTHS, Acceptance, DraftLength
from gpt.generation.runner import Runner, Sampled
from gpt.generation.sequence import Request, ScheduledWork, SequenceState
from gpt.generation.tokens import KnownNumbers

ENDLESS = 2**62
"""A number of new tokens that no text reaches: the target decides where a text ends."""


@dataclass
class Experience:
    """Statistics of the drafts for a model, shared by all runners of its runtime.

    Attributes:
        passes: number of passes in which the target checked drafts, counted for each sequence.
        drafted: number of tokens in these drafts.
        accepted: how many of them the target sampled too.
        acceptance: how often a token was accepted in the last rounds.
        length_choosers: each chooses the length of drafts for a number of sequences that share a
            pass; by that number.
    """

    passes: int = 0
    drafted: int = 0
    accepted: int = 0
    acceptance: Acceptance = field(default_factory=Acceptance)
    length_choosers: dict[int, DraftLength] = field(default_factory=dict)

    def describe(self) -> str:
        """Return the counts as a line for a person."""
        if self.passes == 0:
            return "draft: not used"
        share = self.accepted / self.drafted
        # In each pass the target also samples one token of its own.
        tokens_per_pass = 1 + self.accepted / self.passes
        return (
            f"draft: {self.accepted} of {self.drafted} tokens accepted ({share:.0%}), "
            f"{tokens_per_pass:.2f} tokens a pass in {self.passes} passes"
        )


class SpeculativeRunner(Runner):
    """Computes steps of a large model, the target, with drafts of a small one.

    Drafts are made in steps in which every sequence needs its next token. Prompts, and windows that
    have moved, go to the target alone.

    Args:
        target: computes what is sampled.
        draft: of a model with the same token ids, with room for as many sequences.
        experience: the statistics of earlier runners with the same models, to which this one adds.
    """

    def __init__(self, target: Runner, draft: Runner, experience: Experience) -> None:
        super().__init__(target.block_size, target.pool)
        self._target = target
        self._draft = draft
        self._experience = experience
        self._drafts: dict[int, _Draft] = {}  # by the row of their sequences

    @property
    def max_samples_per_call(self) -> int:
        return max(self._target.max_samples_per_call, LENGTHS[-1] + 1)

    def logits(self, work: Sequence[ScheduledWork]) -> tuple[list[ScheduledWork], Tensor]:
        return self._target.logits(work)

    def run(self, work: Sequence[ScheduledWork]) -> Sampled:
        """Compute a step, with drafts if every sequence needs only its next token.

        Some of these steps deliberately have no drafts: the lengths of later drafts are chosen by
        the times of both kinds.
        """
        # Nothing is sampled after a part of a prompt, so that `max_samples` is 0.
        if any(item.max_samples == 0 or len(item.tokens) > 1 for item in work):
            return self._target.run(work)
        chooser = self._length_chooser(len(work))
        length = chooser.next()
        # The target samples one token more than the draft has. Shortly before a window moves, or a
        # text ends, there is no room for so many.
        most_samples = min(item.max_samples for item in work)
        if length >= most_samples:
            return self._target.run(work)
        start = time.perf_counter()
        # Without drafts (length 0) the target may sample several tokens, one after another.
        drafted = self._drafted(work, length) if length > 0 else work
        sampled = self._target.run(drafted)
        seconds = time.perf_counter() - start
        chooser.record(length, seconds, _num_passes(drafted, sampled))
        if length > 0:
            self._count(drafted, sampled)
        return sampled

    def _length_chooser(self, sequences: int) -> DraftLength:
        """Return what chooses the length of drafts in steps of `sequences` sequences."""
        chooser = self._experience.length_choosers.get(sequences)
        if chooser is None:
            chooser = DraftLength(self._experience.acceptance)
            self._experience.length_choosers[sequences] = chooser
        return chooser

    def _drafted(self, work: Sequence[ScheduledWork], length: int) -> list[ScheduledWork]:
        """Return the items with drafts of `length` tokens, or fewer where a draft ends."""
        drafts = [self._draft_of(item.sequence) for item in work]
        for draft in drafts:
            draft.begin(length)
        # The small model computes all drafts together, but some take more steps than others: they
        # have more tokens to catch up with, or their windows move.
        while True:
            unfinished = [draft for draft in drafts if draft.num_missing > 0]
            if not unfinished:
                break
            steps = [draft.next_step() for draft in unfinished]
            sampled = self._draft.run(steps)
            for draft, step in zip(unfinished, steps, strict=True):
                draft.take(step, [token.id for token in sampled[step.sequence]])
        return [
            ScheduledWork(item.sequence, item.tokens, item.max_samples, item.copies, draft.guesses)
            for item, draft in zip(work, drafts, strict=True)
        ]

    def _draft_of(self, target: SequenceState) -> "_Draft":
        """Return the draft of a sequence of the target, which has the same row."""
        draft = self._drafts.get(target.row)
        if draft is not None and draft.target is target:
            return draft
        if draft is not None:
            draft.release()  # it belongs to a sequence that has left the row
        draft = _Draft(target, self._draft)
        self._drafts[target.row] = draft
        return draft

    def _count(self, drafted: Sequence[ScheduledWork], sampled: Sampled) -> None:
        """Count how many tokens of the drafts were accepted."""
        for item in drafted:
            num_sampled = len(sampled[item.sequence])
            if num_sampled == 0:
                continue  # the target's logits are not finite, which says nothing about the draft
            if not item.draft:
                # The draft's logits are not finite. It counts as one wrong guess, so that fewer
                # drafts are made, but the target has checked nothing.
                self._experience.acceptance.record(accepted=0, compared=1)
                continue
            num_accepted = num_sampled - 1  # the last token is the target's own
            # The first token that differed was compared too, but those after it were not.
            num_compared = min(num_accepted + 1, len(item.draft))
            self._experience.acceptance.record(num_accepted, num_compared)
            self._experience.passes += 1
            self._experience.drafted += len(item.draft)
            self._experience.accepted += num_accepted


def _num_passes(drafted: Sequence[ScheduledWork], sampled: Sampled) -> int:
    """Return in how many passes the target has computed a step.

    All tokens of drafts are checked in one pass. Without any draft, the target may sample several
    tokens after each sequence, one in each pass.
    """
    if any(item.draft for item in drafted):
        return 1
    most_tokens = max(len(tokens) for tokens in sampled.values())
    return max(1, most_tokens)  # there may be no tokens: logits that are not finite take a pass too


class _Draft:
    """What the small model guesses of a sequence.

    Attributes:
        target: the sequence, which the large model samples.
        guesses: the guesses at its next tokens.
    """

    def __init__(self, target: SequenceState, runner: Runner) -> None:
        self.target = target
        self.guesses: list[int] = []
        # The target decides where the text ends. The small model's window may be shorter, and then
        # slides before the target's does.
        params = target.params.model_copy(
            update={"max_new_tokens": ENDLESS, "overflow": "slide", "logprobs": None}
        )
        request = Request(list(target.tokens), params)
        # The sequence of the small model: the target's tokens, and then the guesses. It needs no
        # tokenizer, since nobody sees its text.
        self._sequence = SequenceState(
            request, tokenizer=None, block_size=runner.block_size, pool=runner.pool
        )
        self._sequence.row = target.row
        # The number of tokens that the target had when the last draft began.
        self._num_target_tokens = len(target.tokens)
        self._num_wanted = 0  # the number of guesses that the present draft has at its end

    @property
    def num_missing(self) -> int:
        """Return how many guesses the draft still lacks."""
        return self._num_wanted - len(self.guesses)

    def begin(self, length: int) -> None:
        """Begin a draft of `length` tokens after the newest token of the target."""
        # The sequence of the small model begins with the tokens that the target had before the last
        # draft, and then has the guesses of that draft. The guesses that the target has sampled too
        # are kept. Only what follows is replaced, and computed again.
        num_agreed = self._num_target_tokens
        guesses = self._sequence.tokens[num_agreed:]
        new_tokens = self.target.tokens[num_agreed:]
        for guess, token in zip(guesses, new_tokens, strict=False):  # either may be longer
            if guess != token:
                break
            num_agreed += 1
        self._sequence.replace_end(num_agreed, self.target.tokens[num_agreed:])
        self._num_target_tokens = len(self.target.tokens)
        # The draft samples by the numbers by which the target will sample the same tokens.
        self._sequence.random = KnownNumbers(self.target.random.peek(length))
        self.guesses = []
        self._num_wanted = length

    def next_step(self) -> ScheduledWork:
        """Return what the small model computes next, with blocks reserved for it."""
        sequence = self._sequence
        tokens = sequence.window()[sequence.num_cached :]
        # A runner samples several tokens in a step only where a single one is to be computed.
        max_samples = 1
        if len(tokens) == 1:
            max_samples = min(self.num_missing, sequence.tokens_before_slide)
        # Every sampled token except the last is stored too.
        length = sequence.num_cached + len(tokens) + max_samples - 1
        copies = sequence.table.reserve(length)
        return ScheduledWork(sequence, tokens, max_samples, copies)

    def take(self, step: ScheduledWork, sampled: list[int]) -> None:
        """Add the guesses that were sampled in a step: none if its logits are not finite."""
        # The last token has not been through the model yet, so that it is not stored.
        self._sequence.table.append([*step.tokens, *sampled[:-1]])
        self._sequence.extend(sampled)
        self.guesses += sampled
        # Without a guess, or after the end token, the draft ends early: no more are wanted.
        is_over = not sampled or sampled[-1] == self.target.params.end_id
        if is_over:
            self._num_wanted = len(self.guesses)

    def release(self) -> None:
        """Release the blocks of the keys and values."""
        self._sequence.table.truncate(0)
