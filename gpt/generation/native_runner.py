"""The runner of the C++ decoder: a step, or several tokens of all sequences, in one call."""

import ctypes
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from gpt.config import SamplingParams
from gpt.generation.burst import Burst
from gpt.generation.paged import BLOCK, BlockPool
from gpt.generation.runner import Runner, Sampled, accept
from gpt.generation.sequence import ScheduledWork, SequenceState
from gpt.generation.thread_tuner import Split, ThreadTuner, token_splits
from gpt.generation.tokens import NOT_SAMPLING_FIELDS, SampledToken, to_sampled_tokens
from gpt.native.decoding.c_structs import SAMPLING_FIELDS, sample_in_c, sampling_in_c
from gpt.native.decoding.decoder import Decoder, NotFiniteError, TokenBatch
from gpt.native.decoding.weights import Weights
from gpt.system.progress import Report

PREFILL_TUNING_MIN_TOKENS = 16
"""From this number of tokens on the time per token is nearly constant, so steps can be compared."""
FIRST_PREFILLS = 1
FIRST_DECODES = 5
"""Calls before other numbers of threads are tried. A prompt takes few calls, a text takes many."""
TRIAL_DIVISOR = 4
"""A call that tries another split samples a quarter of the tokens.

So it does not take longer than usual even if that split is four times slower.
"""
KNOWN_FIELDS = SAMPLING_FIELDS | NOT_SAMPLING_FIELDS | {"logprobs"}
"""Fields of `SamplingParams` that do not keep C++ from sampling, whatever their value."""


@dataclass(frozen=True)
class NativeModel:
    """What decoders of one model are made from.

    Attributes:
        library: compiled for this processor.
        weights: a copy of the model's, in the layout of the library.
        edited_sampling: which code of sampling was edited, so that C++ computes something else and
            PyTorch samples from the decoder's logits; None if no such code was edited.
    """

    library: ctypes.CDLL
    weights: Weights
    edited_sampling: str | None


class Pass(NamedTuple):
    """Tokens that go through the weights at once: as many tokens of a step as fit.

    Attributes:
        wanted: indices of the tokens in the batch after which a token is sampled.
    """

    batch: TokenBatch
    wanted: list[int]


class NativeRunner(Runner):
    """Computes a step in one call of the C++ decoder.

    Where each sequence needs one token and all have the same sampling parameters, a call samples
    several tokens of each, see `Burst`. If the decoder cannot sample by the parameters of a
    sequence, PyTorch samples the step from the decoder's logits.

    Args:
        tokens_per_sequence: number of tokens of each sequence that fit into one pass.
        report: gets a line for each reason why PyTorch samples, once.
    """

    def __init__(
        self,
        native: NativeModel,
        sequences: int,
        tokens_per_sequence: int,
        kv_dtype: str,
        blocks: int,
        report: Report,
    ) -> None:
        model = native.weights.model
        super().__init__(model.block_size, BlockPool(blocks, BLOCK))
        self._decoder = Decoder(
            native.library, native.weights, sequences, tokens_per_sequence, kv_dtype, blocks
        )
        self._edited_sampling = native.edited_sampling
        self._vocab_size = model.vocab_size
        self._report = report
        self._reported: set[str] = set()
        # The keys are weak references, so that the entry of an ended sequence disappears with it.
        self._is_sampled_in_c: WeakKeyDictionary[SequenceState, bool] = WeakKeyDictionary()
        self._burst = Burst()
        # How many threads are fastest depends on the work, so that each kind of work has a tuner.
        self._all_threads = Split(self._decoder.threads)
        self._token_splits = token_splits(self._decoder.threads)
        self._prefill_tuner = ThreadTuner(self._token_splits, self._all_threads, FIRST_PREFILLS)
        self._decode_tuners: dict[int, ThreadTuner] = {}  # by the number of sequences
        self._short_tuners: dict[int, ThreadTuner] = {}  # by the number of tokens, if it is small

    @property
    def max_samples_per_call(self) -> int:
        return self._burst.length

    def run(self, work: Sequence[ScheduledWork]) -> Sampled:
        """Compute a step, or a burst of several steps, each of which samples a token per sequence.

        A burst is possible if each sequence has only its newest token to compute, and all have the
        same sampling parameters.
        """
        # Nothing is sampled after a part of a prompt that is not its last one.
        sampled_sequences = [item.sequence for item in work if item.max_samples > 0]
        # A list, so that the reason of every sequence is reported: `all` stops at the first False.
        can_sample = [self._can_sample(sequence) for sequence in sampled_sequences]
        if not all(can_sample):
            return super().run(work)  # PyTorch samples from the decoder's logits
        self._set_blocks(work)
        if _is_pure_decode(work):
            return self._decode(work)
        # There are prompts, drafts or different parameters. The step is timed, so that a tuner
        # learns how many threads are fastest.
        return self._timed_step(work)

    def logits(self, work: Sequence[ScheduledWork]) -> tuple[list[ScheduledWork], Tensor]:
        self._set_blocks(work)
        logits = [self._decoder.forward(part.batch, part.wanted) for part in self._passes(work)]
        return [item for item in work if item.max_samples > 0], torch.cat(logits)

    def _can_sample(self, sequence: SequenceState) -> bool:
        """Return whether C++ can sample the tokens of a sequence; report each reason why not once.

        The answer is kept, since the sampling parameters of a sequence do not change.
        """
        known = self._is_sampled_in_c.get(sequence)
        if known is not None:
            return known
        reason = _unknown_field(sequence.params) or self._edited_sampling
        if reason is not None and reason not in self._reported:
            self._report(f"sampling with PyTorch's operators: {reason}")
            self._reported.add(reason)
        self._is_sampled_in_c[sequence] = reason is None
        return reason is None

    def _set_blocks(self, work: Sequence[ScheduledWork]) -> None:
        """Copy blocks that are no longer shared, then tell the decoder where sequences are stored.

        All blocks are copied before the step writes anything: one sequence may write into the block
        from which another one's is copied.
        """
        for item in work:
            self._decoder.copy_blocks(item.copies)
        for item in work:
            self._decoder.set_blocks(item.sequence.row, item.sequence.table.blocks)

    def _timed_step(self, work: Sequence[ScheduledWork]) -> Sampled:
        """Compute a step that is no burst, and let a tuner learn from its time."""
        num_tokens = sum(len(item.input_ids) for item in work)
        tuner = self._step_tuner(num_tokens)
        split = tuner.next()  # the fastest number of threads, or now and then another, as a trial
        self._decoder.use_threads(split.threads)
        start = time.perf_counter()
        sampled = self._step(work)
        seconds = time.perf_counter() - start
        tuner.record(split, seconds / num_tokens)
        return sampled

    def _step_tuner(self, num_tokens: int) -> ThreadTuner:
        """Return the tuner for steps of `num_tokens` tokens.

        All steps of many tokens share one tuner. In steps of few tokens, such as those of drafts,
        the time per token depends on their number, so each number has a tuner of its own.
        """
        if num_tokens >= PREFILL_TUNING_MIN_TOKENS:
            return self._prefill_tuner
        tuner = self._short_tuners.get(num_tokens)
        if tuner is None:
            tuner = ThreadTuner(self._token_splits, self._all_threads, FIRST_DECODES)
            self._short_tuners[num_tokens] = tuner
        return tuner

    def _decode(self, work: Sequence[ScheduledWork]) -> Sampled:
        """Sample several tokens after each sequence in one call, and learn from its time."""
        tuner = self._decode_tuner(len(work))
        split = tuner.next()  # the fastest split of the work, or now and then another, as a trial
        is_trial = split != tuner.fastest
        # If there are more sequences than in the last call, the burst becomes shorter.
        self._burst.begin(len(work))
        steps = self._burst.length
        if is_trial:
            # The other split may be slower, and nobody sees a token before the call returns.
            steps = max(1, steps // TRIAL_DIVISOR)
        # No sequence samples more tokens than it has blocks for, or than are left before its end.
        steps = min(steps, *(item.max_samples for item in work))
        start = time.perf_counter()
        sampled = self._generate(work, steps, split)
        seconds = time.perf_counter() - start
        # Fewer tokens than `steps` are sampled if logits are not finite, perhaps none. The time is
        # divided by this number, which therefore is at least 1.
        num_sampled = max(1, *(len(tokens) for tokens in sampled.values()))
        # The next call most likely uses the fastest split, so that the time of a trial says nothing
        # about how many tokens it can sample.
        if not is_trial:
            self._burst.end(num_sampled, seconds)
        tuner.record(split, seconds / num_sampled)
        return sampled

    def _decode_tuner(self, sequences: int) -> ThreadTuner:
        """Return the tuner for a number of sequences, on which the fastest split depends."""
        tuner = self._decode_tuners.get(sequences)
        if tuner is None:
            splits = self._token_splits
            # Each thread may also compute whole sequences by itself, if there are several of both.
            if sequences > 1 and self._all_threads.threads > 1:
                splits = [Split(self._all_threads.threads, by_sequence=True), *splits]
            tuner = ThreadTuner(splits, self._all_threads, FIRST_DECODES)
            self._decode_tuners[sequences] = tuner
        return tuner

    def _generate(self, work: Sequence[ScheduledWork], steps: int, split: Split) -> Sampled:
        """Sample `steps` tokens after each sequence, all by the same parameters."""
        sequences = [item.sequence for item in work]
        params = sequences[0].params
        # `peek` leaves the numbers in their streams: a sequence may end before its last token here,
        # and `SequenceState.append` uses up only the numbers of the tokens that are kept.
        uniforms = [sequence.random.peek(steps) for sequence in sequences]
        seen = None
        if params.repetition_penalty != 1.0:
            seen = torch.stack([self._seen(sequence) for sequence in sequences])  # (B, V)
        newest = TokenBatch(
            tokens=[sequence.tokens[-1] for sequence in sequences],
            sequences=[sequence.row for sequence in sequences],
            positions=[sequence.num_cached for sequence in sequences],
        )
        self._decoder.use_threads(split.threads)
        try:
            tokens, logits = self._decoder.generate(
                newest,
                uniforms=torch.tensor(uniforms, dtype=torch.float32),  # (B, steps)
                params=params,
                seen=seen,
                keep_logits=params.logprobs is not None,  # for the log-probabilities
                by_sequence=split.by_sequence,
            )
        except NotFiniteError as error:
            if error.step > 0:
                # All logits of the earlier steps are finite, so that those steps are computed again
                # and their tokens are returned. The next call fails in its first step.
                return self._generate(work, error.step, split)
            # `_step` finds out which of the sequences have logits that are not finite.
            return self._step(work)
        sampled: Sampled = {}
        for row, sequence in enumerate(sequences):
            row_logits = None if logits is None else logits[:, row]  # (steps, V) of (steps, B, V)
            sampled[sequence] = to_sampled_tokens(tokens[row], row_logits, params)
        return sampled

    def _step(self, work: Sequence[ScheduledWork]) -> Sampled:
        """Compute one step, and sample after each sequence whose last token is computed in it.

        If a sequence has a draft, a token is sampled after each token of the draft too.
        """
        items = [item for item in work if item.max_samples > 0]
        # C++ gets only pointers to these tensors: the two lists keep them alive during its calls.
        seen: list[Tensor | None] = []
        logits: list[Tensor | None] = []
        samples = []
        for item in items:
            params = item.sequence.params
            sampling = sampling_in_c(params)
            uniforms = item.sequence.random.peek(item.num_sampled)  # one number for each token
            for index, uniform in enumerate(uniforms):
                # The repetition penalty counts the tokens of the draft before this one too.
                seen.append(self._seen_if_penalized(item.sequence, item.draft[:index]))
                logits.append(self._logits_if_described(params))
                samples.append(sample_in_c(sampling, uniform, seen[-1], logits[-1]))
        tokens: list[int] = []
        for part in self._passes(work):
            # Each token that an earlier pass has sampled belongs to one of the first samples.
            num_used = len(tokens)
            part_samples = samples[num_used : num_used + len(part.wanted)]
            tokens += self._decoder.step(part.batch, part.wanted, part_samples)
        sampled: Sampled = {}
        first = 0
        for item in items:
            end = first + item.num_sampled
            described = [
                _described(token, token_logits, item.sequence.params)
                for token, token_logits in zip(tokens[first:end], logits[first:end], strict=True)
            ]
            # Tokens after the first one that differs from the draft follow a wrong guess.
            sampled[item.sequence] = accept(described, item.draft)
            first = end
        return sampled

    def _passes(self, work: Sequence[ScheduledWork]) -> Iterator[Pass]:
        """Yield the tokens of a step in passes, each of as many as the decoder has memory for."""
        tokens: list[int] = []
        rows: list[int] = []  # the row of the sequence of each token
        positions: list[int] = []
        is_wanted: list[bool] = []
        for item in work:
            sequence = item.sequence
            begin = sequence.num_cached  # the first position that is not stored
            count = len(item.input_ids)
            tokens += item.input_ids
            rows += [sequence.row] * count
            positions += range(begin, begin + count)
            is_wanted += [False] * (count - item.num_sampled)
            is_wanted += [True] * item.num_sampled  # tokens are sampled only after the last ones
        size = self._decoder.max_tokens
        for start in range(0, len(tokens), size):
            part = slice(start, start + size)
            # Indices are counted from the beginning of the pass.
            wanted = [index for index, flag in enumerate(is_wanted[part]) if flag]
            yield Pass(TokenBatch(tokens[part], rows[part], positions[part]), wanted)

    def _seen_if_penalized(self, sequence: SequenceState, draft: Sequence[int]) -> Tensor | None:
        if sequence.params.repetition_penalty == 1.0:
            return None
        return self._seen(sequence, draft)

    def _seen(self, sequence: SequenceState, draft: Sequence[int] = ()) -> Tensor:
        """Return which tokens a sequence and its draft have, (V,) uint8: C++ has no bool."""
        seen = torch.zeros(self._vocab_size, dtype=torch.uint8)
        seen[list({*sequence.tokens, *draft})] = 1
        return seen

    def _logits_if_described(self, params: SamplingParams) -> Tensor | None:
        """Return memory for the logits (V,) if log-probabilities of the token are asked for."""
        if params.logprobs is None:
            return None
        return torch.empty(self._vocab_size, dtype=torch.float32)


def _described(token: int, logits: Tensor | None, params: SamplingParams) -> SampledToken | None:
    """Describe a token that C++ sampled from logits (V,); None where they are not finite."""
    if token < 0:  # C++'s mark of logits that are not finite
        return None
    rows = None if logits is None else logits.unsqueeze(0)  # (1, V)
    return to_sampled_tokens([token], rows, params)[0]


def _is_pure_decode(work: Sequence[ScheduledWork]) -> bool:
    """Return whether each sequence computes one token, without a draft, and all sample alike."""
    if any(item.max_samples == 0 or len(item.input_ids) > 1 for item in work):
        return False
    first = work[0].sequence.sampled_by
    return all(item.sequence.sampled_by == first for item in work)


def _unknown_field(params: SamplingParams) -> str | None:
    """Return which parameter C++ does not know, as part of a message; None if it knows all.

    A field that a plugin adds is unknown too, but with its default it has no effect.
    """
    for name, field in type(params).model_fields.items():
        if name not in KNOWN_FIELDS and getattr(params, name) != field.default:
            return f"the native engine does not know {name}"
    return None
