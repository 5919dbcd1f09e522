"""The runner of CUDA devices: a token of all sequences is the replay of a CUDA graph.

PyTorch launches some fifteen kernels a layer for each token, and to launch them takes longer than
to run them. A graph launches all kernels of a token at once, the sampling included, and the next
token needs nothing from the CPU. So several tokens are sampled before any is read back.
"""

import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gpt.config import SamplingParams
from gpt.config.components import SHIPPED
from gpt.generation.burst import MAX_BURST, Burst
from gpt.generation.runner import NOT_FINITE, Sampled, TorchRunner, sample_each
from gpt.generation.sampling import next_token_probabilities, sample
from gpt.generation.sequence import ScheduledWork, SequenceState
from gpt.generation.static_cache import Part, StaticCache, StaticView, StoredRange, parts_of
from gpt.generation.tokens import NOT_SAMPLING_FIELDS, SampledToken
from gpt.model import GPT, eval_mode
from gpt.native.coverage import changed_module, uncovered_option
from gpt.system.cuda_graphs import Call, ReplayedCalls, call_plainly
from gpt.system.device import to_device

FIELDS_IN_GRAPH = NOT_SAMPLING_FIELDS | {"temperature", "top_k", "top_p", "min_p"}
"""Fields of `SamplingParams` that a graph samples by, or that are not about sampling.

Other fields need the tokens so far, or the log-probabilities.
"""
NO_TOKEN = -1
"""Stands for a token whose logits are not finite, on the device."""


class Contents(NamedTuple):
    """What a slot holds: the keys and values of the window of a sequence.

    Attributes:
        start: index of the window's first token.
        length: number of stored positions.
    """

    sequence: SequenceState
    start: int
    length: int


def why_no_graph(model: GPT) -> str | None:
    """Return why a model must not be computed by graphs; None if it may.

    A replay runs no Python: neither hooks, nor what a plugin or a notebook has put into the model.
    """
    device = next(model.parameters()).device
    if device.type != "cuda":
        return f"it is for CUDA devices, and the model is on {device}"
    # Either an option that a plugin has added, or a module that differs from the configured one.
    not_covered = uncovered_option(model.config, SHIPPED["model.mlp"]) or changed_module(model)
    return None if not_covered is None else f"it does not cover {not_covered}"


class GraphRunner(TorchRunner):
    """Decodes in a static cache, by graphs that also sample, and computes prompts as its parent.

    A sequence that decodes has a slot of the static cache. Its keys and values are copied there
    from its blocks, and new ones back into its blocks, where other sequences find them. Where the
    sequences of a step are not sampled alike, or not by their logits alone, a graph computes the
    logits and PyTorch samples. On a CPU the same functions run without graphs.

    Args:
        sequences: the most sequences that decode at a time.
    """

    def __init__(
        self, model: GPT, sequences: int, blocks: int, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(model, blocks, dtype)
        self._device = self._store.device
        slots = parts_of(sequences)[-1].slots.stop  # `sequences`, rounded up to whole parts
        self._cache = StaticCache(model.config, slots, self._store)
        # What each occupied slot holds; these are the first slots. The list is empty while a step
        # is decoded: after an exception in between, every sequence is copied into its slot anew.
        self._contents: list[Contents] = []
        # What graphs read and write, at addresses that stay the same: the newest token of each slot
        # with its position, and the random numbers and results of each step of a burst.
        self._tokens = torch.zeros(slots, dtype=torch.int64, device=self._device)
        self._positions = torch.zeros_like(self._tokens)
        self._uniforms = torch.zeros(MAX_BURST, slots, device=self._device, dtype=torch.float32)
        self._sampled = torch.zeros(MAX_BURST, slots, dtype=torch.int64, device=self._device)
        # The row of `_uniforms` and `_sampled` that the next token reads and writes. It is counted
        # on the device, so that the same graph can be replayed for one row after another.
        self._next_row = torch.zeros(1, dtype=torch.int64, device=self._device)
        self._burst = Burst()
        self._call: Call = call_plainly
        if self._device.type == "cuda":
            calls = ReplayedCalls(self._device, what="a decoding step", remedy="take backend eager")
            self._call = calls.call

    @property
    def max_samples_per_call(self) -> int:
        return self._burst.length

    def run(self, work: Sequence[ScheduledWork]) -> Sampled:
        """Compute a step: decode in the static cache, compute prompts as the parent class does."""
        decoding = [item for item in work if _decodes(item)]
        others = [item for item in work if not _decodes(item)]
        for item in decoding:
            # All blocks are copied before any is written: another sequence may write into the block
            # from which this one's is copied. The parent copies those of `others`.
            self._store.copy_blocks(item.copies)
        sampled: Sampled = {}
        max_steps = MAX_BURST
        if others:
            sampled |= super().run(others)
            max_steps = 1  # more steps would delay the sequences whose prompts are computed
        if decoding:
            with eval_mode(self._model):
                sampled |= self._decode(decoding, max_steps)
        return sampled

    def _decode(self, work: Sequence[ScheduledWork], max_steps: int) -> Sampled:
        """Sample tokens after each sequence, and copy its new keys and values into its blocks."""
        # From here on the sequences are in the order of their slots.
        sequences = self._place([item.sequence for item in work])
        self._burst.begin(len(sequences))  # fewer steps if there are more sequences than before
        # No sequence samples more tokens than it has blocks for, or than are left before its end.
        steps = min(max_steps, self._burst.length, *(item.max_samples for item in work))
        start = time.perf_counter()
        if _can_sample_in_graph(sequences):
            sampled = self._sample(sequences, steps)
        else:
            steps = 1  # PyTorch samples outside of the graph, whose next step needs the token
            item_of = {item.sequence: item for item in work}
            items = [item_of[sequence] for sequence in sequences]
            sampled = sample_each(items, self._logits_of(sequences))
        self._burst.end(steps, time.perf_counter() - start)
        self._cache.copy_out([_stored(slot, each, steps) for slot, each in enumerate(sequences)])
        # Only now do the slots hold what the next `_place` may keep. Each sampled token has stored
        # the position of the token before it. Slots after those of the sequences may hold padding,
        # and are left out.
        self._contents = [
            Contents(each, each.start, each.num_cached + len(sampled[each])) for each in sequences
        ]
        return sampled

    def _place(self, sequences: Sequence[SequenceState]) -> list[SequenceState]:
        """Give each sequence one of the first slots; return them in the order of their slots.

        A sequence keeps its slot, unless that slot is no longer among the first ones. The record of
        what the slots hold is empty afterward, and `_decode` writes it when the step is complete.
        """
        wanted = [Contents(each, each.start, each.num_cached) for each in sequences]
        wanted_set = set(wanted)
        held_before = self._contents[: len(sequences)]
        # The slots change from here on. If an exception ends the step, the record of what they held
        # would be wrong.
        self._contents = []
        placed: dict[int, Contents] = {}
        for slot, contents in enumerate(held_before):
            if contents in wanted_set:
                placed[slot] = contents
        kept = set(placed.values())
        missing = [contents for contents in wanted if contents not in kept]
        free_slots = [slot for slot in range(len(sequences)) if slot not in placed]
        for slot, contents in zip(free_slots, missing, strict=True):
            blocks = contents.sequence.table.blocks
            self._cache.copy_in(StoredRange(slot, blocks, 0, contents.length))
            placed[slot] = contents
        return [placed[slot].sequence for slot in range(len(sequences))]

    def _sample(self, sequences: Sequence[SequenceState], steps: int) -> Sampled:
        """Sample `steps` tokens after each sequence, or fewer if its logits become not finite."""
        # `_can_sample_in_graph` has made sure that all sequences are sampled alike, so that the
        # parameters of the first one are those of all.
        first = sequences[0]
        # `peek` leaves the random numbers in their streams: a sampled token may yet be dropped, and
        # `SequenceState.append` uses up the numbers of the tokens that are kept.
        uniforms = torch.tensor([each.random.peek(steps) for each in sequences]).t()  # (steps, B)
        _fill(self._uniforms[:steps, : len(sequences)], uniforms)
        for part in self._write_newest_tokens(sequences):
            self._next_row.zero_()  # each part begins with the first step
            # A graph is recorded once for each part and way of sampling.
            key = (part, first.sampled_by)
            for _ in range(steps):
                self._call(key, self._compute_and_sample, part, first.params)
        # Reading the tokens waits for the device, and so happens only once, after the last step.
        rows = self._sampled[:steps, : len(sequences)].t().tolist()
        return {sequence: _to_tokens(row) for sequence, row in zip(sequences, rows, strict=True)}

    def _logits_of(self, sequences: Sequence[SequenceState]) -> Tensor:
        """Return the logits (B, V) after each sequence."""
        logits = []
        for part in self._write_newest_tokens(sequences):
            # A copy, since the next replay may write its results to the same memory.
            logits.append(self._call((part, "logits"), self._compute, part).clone())
        return torch.cat(logits)[: len(sequences)]

    def _write_newest_tokens(self, sequences: Sequence[SequenceState]) -> list[Part]:
        """Write the newest token of each sequence, and its position, to where graphs read them.

        Slots that belong to no sequence are padded with token 0 at position 0.

        Returns:
            The parts of the static cache that hold the sequences, each of which a graph computes.
        """
        parts = parts_of(len(sequences))
        num_slots = parts[-1].slots.stop  # more than sequences where the last part is not full
        padding = [0] * (num_slots - len(sequences))
        tokens = [each.tokens[-1] for each in sequences]
        positions = [each.num_cached for each in sequences]
        _fill(self._tokens[:num_slots], torch.tensor(tokens + padding))
        _fill(self._positions[:num_slots], torch.tensor(positions + padding))
        return parts

    def _compute(self, part: Part) -> Tensor:
        """Store the newest tokens of a part; return the logits (B, V) after them."""
        positions = self._positions[part.slots]
        dtype = self._model.wte.weight.dtype
        view = StaticView(self._cache, part, positions, dtype)
        logits: Tensor = self._model(self._tokens[part.slots].unsqueeze(1), cache=view)  # (B, 1, V)
        return logits[:, -1]

    def _compute_and_sample(self, part: Part, params: SamplingParams) -> None:
        """Sample the next token of each sequence of a part, and make it the newest one."""
        logits = self._compute(part)
        uniforms = self._uniforms[:, part.slots].index_select(0, self._next_row)  # (1, B)
        tokens = sample(next_token_probabilities(logits, params), uniforms[0])  # (B,)
        is_finite = torch.isfinite(logits).all(dim=-1)
        marked = tokens.masked_fill(~is_finite, NO_TOKEN)
        self._sampled[:, part.slots].index_copy_(0, self._next_row, marked.unsqueeze(0))
        # The next replay begins with these values. Its tokens are not the marked ones, since the
        # embedding has no row -1; `_to_tokens` drops what is sampled after a mark.
        self._tokens[part.slots].copy_(tokens)
        self._positions[part.slots].add_(1)
        self._next_row.add_(1)


def _decodes(item: ScheduledWork) -> bool:
    """Return whether a sequence needs only its next token, which is not its first one."""
    needs_one = len(item.input_ids) == 1 and item.max_samples > 0
    return needs_one and not item.sequence.is_new


def _can_sample_in_graph(sequences: Sequence[SequenceState]) -> bool:
    """Return whether a graph can sample: all sequences alike, and by nothing but their logits."""
    first = sequences[0]
    if any(each.sampled_by != first.sampled_by for each in sequences):
        return False
    if torch.are_deterministic_algorithms_enabled():
        return False  # the distribution is then on the CPU
    # Parameters that a graph does not know, such as those of plugins, have no effect by default.
    for name, field in type(first.params).model_fields.items():
        if name not in FIELDS_IN_GRAPH and getattr(first.params, name) != field.default:
            return False
    return True


def _to_tokens(ids: list[int]) -> Sequence[SampledToken]:
    """Return the tokens up to the first one whose logits were not finite."""
    if NO_TOKEN in ids:
        ids = ids[: ids.index(NO_TOKEN)]
    if not ids:
        return NOT_FINITE
    return [SampledToken(index) for index in ids]


def _stored(slot: int, sequence: SequenceState, count: int) -> StoredRange:
    """Return the positions that a decode of `count` tokens has stored."""
    begin = sequence.num_cached
    return StoredRange(slot, sequence.table.blocks, begin, begin + count)


def _fill(memory: Tensor, values: Tensor) -> None:
    """Overwrite memory that graphs read by values from the CPU, without waiting for the device."""
    memory.copy_(to_device(values, memory.device))
