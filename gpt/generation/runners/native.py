"""The C++ engine: sequences that join and leave, and several tokens a call where nothing is in the way."""

import time
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from gpt.cache.paged import BLOCK, BlockPool
from gpt.generation.backends.native import Prepared
from gpt.generation.runners import Runner, Sampled, sample_each
from gpt.generation.scheduler import Scheduler
from gpt.generation.sequence import Chunk, SequenceState
from gpt.generation.speculative import MAX_DRAFTS, Drafts, Speculation
from gpt.generation.tokens import to_sampled_tokens
from gpt.kernels.decoding.c_structs import sample_in_c, sampling_in_c
from gpt.kernels.decoding.engine import Engine, NotFiniteError
from gpt.progress import Report

PATIENCE = 0.03
"""Seconds that a reader of the stream may wait for tokens that are sampled but not shown."""
MAX_STEPS = 64


class NativeRunner(Runner):
    """Computes a step in one call of the C++ engine.

    Where each sequence needs one token and all are sampled alike, a call samples several: twice as many as the one
    before, as long as that takes no longer than `PATIENCE`, so that the first token comes at once. Or it verifies
    drafts, where these are faster. What the engine cannot sample by, see `Prepared.why_not_sample`, is sampled in
    PyTorch from the engine's logits.

    Args:
        engine: must have a sequence for each running one.
        prepared: what the engine was made from.
        report: receives a line when a request is the first that PyTorch samples for a reason.
        prefill_chunk: most prompt tokens in a step, of all sequences; None: all.
        pass_tokens: most prompt tokens in a pass over the weights; None: as many as the engine has room for.
        speculate: use speculative decoding.
    """

    def __init__(
        self,
        engine: Engine,
        prepared: Prepared,
        report: Report,
        prefill_chunk: int | None = None,
        pass_tokens: int | None = None,
        speculate: bool = False,
    ) -> None:
        pool = BlockPool(engine.blocks, BLOCK)
        super().__init__(pool, Scheduler(pool, engine.sequences, prefill_chunk))
        self._engine, self._prepared, self._block_bytes = engine, prepared, engine.block_bytes
        self._report, self._reported = report, set[str]()
        self._pass_tokens = min(pass_tokens or engine.max_tokens, engine.max_tokens)
        self._vocab_size = prepared.weights.model.vocab_size
        self._in_pytorch: WeakKeyDictionary[SequenceState, bool] = WeakKeyDictionary()
        self.speculation = Speculation() if speculate else None
        self._steps, self._width = 1, 0
        self._drafts: WeakKeyDictionary[SequenceState, Drafts] = WeakKeyDictionary()

    @property
    def ahead(self) -> int:
        drafts = self.speculation is not None and not self.speculation.is_paused
        return 1 + MAX_DRAFTS if drafts else self._steps

    @property
    def cache_bytes(self) -> int:
        return self.pool.in_use * self._block_bytes

    def run(self, chunks: Sequence[Chunk]) -> Sampled:
        self._engine.copy_blocks([pair for chunk in chunks for pair in chunk.copies])
        for chunk in chunks:
            self._engine.set_blocks(chunk.sequence.row, chunk.sequence.table.blocks)
        sequences = [chunk.sequence for chunk in chunks if chunk.steps]
        by_pytorch = [sequence for sequence in sequences if self._needs_pytorch(sequence)]
        if by_pytorch or not all(chunk.steps and len(chunk.tokens) == 1 for chunk in chunks):
            return self._step(chunks, [[]] * len(chunks))
        if self.speculation is not None and not self.speculation.is_paused:
            return self._step_with_drafts(chunks, self.speculation)
        if any(sequence.sampled_by != sequences[0].sampled_by for sequence in sequences[1:]):
            return self._step(chunks, [[]] * len(chunks))
        if len(chunks) > self._width:
            # more sequences than in the call by whose time it was set
            self._steps = max(1, self._steps * self._width // len(chunks))
        self._width = len(chunks)
        start = time.perf_counter()
        sampled = self._generate(chunks, min(self._steps, *(chunk.steps for chunk in chunks)))
        seconds, steps = time.perf_counter() - start, max([1, *map(len, sampled.values())])
        self._steps = max(1, min(2 * self._steps, MAX_STEPS, int(PATIENCE * steps / max(seconds, 1e-9))))
        if self.speculation is not None:
            self.speculation.weigh_plain(seconds, steps, len(chunks), steps >= MAX_STEPS)
        return sampled

    def _step_with_drafts(self, chunks: Sequence[Chunk], speculation: Speculation) -> Sampled:
        start = time.perf_counter()
        drafts = [self._draft(chunk, speculation) for chunk in chunks]
        sampled = self._step(chunks, drafts)
        verified, tokens = len(chunks) + sum(map(len, drafts)), sum(map(len, sampled.values()))
        speculation.weigh_drafts(time.perf_counter() - start, verified, tokens)
        return sampled

    def _draft(self, chunk: Chunk, speculation: Speculation) -> list[int]:
        """Return drafts after a chunk of one token, within the reserved blocks."""
        if chunk.sequence not in self._drafts:
            self._drafts[chunk.sequence] = Drafts(speculation)
        return self._drafts[chunk.sequence].propose(chunk.sequence.tokens, chunk.steps - 1)

    def _generate(self, chunks: Sequence[Chunk], steps: int) -> Sampled:
        """Sample several tokens after each chunk of one token, all by the same parameters."""
        sequences = [chunk.sequence for chunk in chunks]
        params = sequences[0].params
        uniforms = torch.tensor([sequence.random.peek(steps) for sequence in sequences], dtype=torch.float32)
        seen = None if params.repetition_penalty == 1.0 else torch.stack([self._seen(each) for each in sequences])
        places = (
            [each.row for each in sequences],
            [each.tokens[-1] for each in sequences],
            [e.stored for e in sequences],
        )
        try:
            sampled, logits = self._engine.generate(*places, uniforms, params, seen, params.logprobs is not None)
        except NotFiniteError as error:
            # those before it are sampled as usual; then the step by itself says which sequence it is
            return self._generate(chunks, error.step) if error.step else self._step(chunks, [[]] * len(chunks))
        return {
            sequence: to_sampled_tokens(tokens, None if logits is None else logits[:, row], params)
            for row, (sequence, tokens) in enumerate(zip(sequences, sampled, strict=True))
        }

    def _step(self, chunks: Sequence[Chunk], drafts: Sequence[list[int]]) -> Sampled:
        """Sample after each chunk that is the end of a window, and after each of its drafts."""
        tokens: list[int] = []
        rows: list[int] = []
        positions: list[int] = []
        sampled_of: dict[SequenceState, range] = {}
        wanted: list[int] = []
        for (sequence, new, steps, _), draft in zip(chunks, drafts, strict=True):
            tokens += [*new, *draft]
            rows += [sequence.row] * (len(new) + len(draft))
            positions += range(sequence.stored, sequence.stored + len(new) + len(draft))
            if steps:
                sampled_of[sequence] = range(len(wanted), len(wanted) + 1 + len(draft))
                wanted += range(len(tokens) - len(draft) - 1, len(tokens))
        draft_of = {chunk.sequence: draft for chunk, draft in zip(chunks, drafts, strict=True)}
        # alive until the call is over
        seen = [row for sequence in sampled_of for row in self._seen_by_each(sequence, draft_of[sequence])]
        logits = [self._logits(sequence) for sequence, places in sampled_of.items() for _ in places]
        uniforms = [number for each, places in sampled_of.items() for number in each.random.peek(len(places))]
        samplings = [sampling_in_c(each.params) for each, places in sampled_of.items() for _ in places]
        samples = list(map(sample_in_c, samplings, uniforms, seen, logits))
        found: list[int] = []
        size = self._engine.max_tokens if max(len(chunk.tokens) for chunk in chunks) == 1 else self._pass_tokens
        for start in range(0, len(tokens), size):
            end = start + size
            here = [index - start for index in wanted[len(found) :] if index < end]
            part = samples[len(found) : len(found) + len(here)]
            found += self._engine.step(tokens[start:end], rows[start:end], positions[start:end], here, part)
        return self._sampled(sampled_of, draft_of, found, logits)

    def _sampled(
        self,
        places: dict[SequenceState, range],
        drafts: dict[SequenceState, list[int]],
        found: Sequence[int],
        logits: Sequence[Tensor | None],
    ) -> Sampled:
        """Return the tokens of each sequence: the accepted drafts, and what was sampled after them."""
        by_pytorch = [sequence for sequence in places if self._in_pytorch[sequence]]
        rows = [row for each in by_pytorch if (row := logits[places[each].start]) is not None]
        sampled = sample_each(by_pytorch, torch.stack(rows)) if rows else {}
        for sequence, where in places.items():
            if sequence in sampled:
                continue
            tokens = list(found[where.start : where.stop])
            if drafts[sequence]:
                tokens = tokens[: 1 + self._drafts[sequence].accept(drafts[sequence], tokens)]
            if tokens[-1] < 0:
                # not finite: where it is not the first, the next step says so, if its token is needed
                tokens.pop()
            kept = [row for row in logits[where.start : where.start + len(tokens)] if row is not None]
            described = torch.stack(kept) if kept else None
            sampled[sequence] = to_sampled_tokens(tokens, described, sequence.params) if tokens else []
        return sampled

    def _needs_pytorch(self, sequence: SequenceState) -> bool:
        """Return whether PyTorch has to sample for a sequence; the first time for a reason, report it."""
        if sequence not in self._in_pytorch:
            reason = self._prepared.why_not_sample(sequence.params)
            self._in_pytorch[sequence] = reason is not None
            if reason is not None and reason not in self._reported:
                without = ", without speculation" * (self.speculation is not None)
                self._report(f"sampling with PyTorch's operators{without}: {reason}")
                self._reported.add(reason)
        return self._in_pytorch[sequence]

    def _logits(self, sequence: SequenceState) -> Tensor | None:
        """Return memory for logits of a sequence if PyTorch samples from them or describes them."""
        needed = self._in_pytorch[sequence] or sequence.params.logprobs is not None
        return torch.empty(self._vocab_size, dtype=torch.float32) if needed else None

    def _seen(self, sequence: SequenceState) -> Tensor:
        """Return which tokens a sequence has, (V,) uint8."""
        seen = torch.zeros(self._vocab_size, dtype=torch.uint8)
        seen[list(set(sequence.tokens))] = 1
        return seen

    def _seen_by_each(self, sequence: SequenceState, draft: Sequence[int]) -> list[Tensor | None]:
        """Return the tokens (V,) before each sampled one, those of the drafts up to it included, for the penalty."""
        if sequence.params.repetition_penalty == 1.0:
            return [None] * (1 + len(draft))
        seen: list[Tensor | None] = [row := self._seen(sequence)]
        for token in draft:
            row = row.clone()
            row[token] = 1
            seen.append(row)
        return seen
