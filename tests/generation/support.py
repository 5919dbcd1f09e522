"""What the tests of the engine share: one that is driven step by step, and what it should answer."""

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Any

import torch

from gpt.cache.paged import BLOCK
from gpt.config import SamplingParams
from gpt.data import CharTokenizer
from gpt.generation import Batch, SampledToken, TextBatch, TextChunk
from gpt.generation.engine import Engine
from gpt.generation.request import Request
from gpt.generation.runner import Runner, Sampled
from gpt.generation.runtime import build_runtime
from gpt.generation.sequence import Chunk, SequenceState, Window
from gpt.model import GPT

LETTERS = CharTokenizer("\nabcdefghijklmnopqrstuv")  # 23 ids
BLOCK_SIZE = 200
WINDOW_BLOCKS = -(-BLOCK_SIZE // BLOCK)


def random_ids(count: int) -> list[int]:
    return torch.randint(23, (count,)).tolist()


def rows_of(batch: Batch, steps: int) -> list[list[int]]:
    """The tokens of each row in the next steps."""
    rows: list[list[int]] = [[] for _ in batch.active]
    for _ in range(steps):
        for row, chunk in batch.step().items():
            assert chunk.token is not None
            rows[row].append(chunk.token.id)
    return rows


class MemoryRunner(Runner):
    """Stores tokens where keys and values would lie, and samples from all that a sequence finds in its blocks.

    Attributes:
        computed: tokens of each step.
    """

    def __init__(self, blocks: int, max_sequences: int = 4, prefill_chunk: int = 32, ahead: int = 1) -> None:
        super().__init__(BLOCK_SIZE, blocks, 0)
        self.max_sequences, self.prefill_chunk = max_sequences, prefill_chunk
        self._ahead, self.computed = ahead, list[int]()
        self._memory = [[-1] * BLOCK for _ in range(blocks)]

    @property
    def ahead(self) -> int:
        return self._ahead

    def logits(self, chunks: Items[Chunk]) -> tuple[list[SequenceState], torch.Tensor]:
        raise NotImplementedError

    def run(self, chunks: Items[Chunk]) -> Sampled:
        self.computed.append(sum(len(chunk.tokens) for chunk in chunks))
        for target, source in (pair for chunk in chunks for pair in chunk.copies):
            self._memory[target] = list(self._memory[source])
        written: list[tuple[int, int]] = []
        for sequence, tokens, _, _ in chunks:
            written += self._write(sequence, sequence.stored, tokens)
        sampled: Sampled = {}
        for sequence, tokens, steps, _ in chunks:
            found = self._read(sequence, sequence.stored + len(tokens))
            assert found == sequence.window()[: len(found)]
            if steps:
                sampled[sequence] = []
            for uniform in sequence.random.peek(steps):
                sampled[sequence].append(SampledToken(token_after(found, uniform)))
                if len(sampled[sequence]) < steps:
                    written += self._write(sequence, len(found), [sampled[sequence][-1].id])
                    found = self._read(sequence, len(found) + 1)
        assert len(set(written)) == len(written)
        return sampled

    def _write(self, sequence: SequenceState, start: int, tokens: Items[int]) -> list[tuple[int, int]]:
        places = [(sequence.table.blocks[i // BLOCK], i % BLOCK) for i in range(start, start + len(tokens))]
        for (block, offset), token in zip(places, tokens, strict=True):
            self._memory[block][offset] = token
        return places

    def _read(self, sequence: SequenceState, length: int) -> list[int]:
        return [self._memory[sequence.table.blocks[i // BLOCK]][i % BLOCK] for i in range(length)]


def token_after(window: Items[int], uniform: float) -> int:
    """What the model in memory says next: anything that depends on every token and on the number."""
    return hash((*window, uniform)) % 23


def expected_tokens(prompt: Items[int], params: SamplingParams, uniforms: Items[float]) -> list[int]:
    """The tokens of a sequence that is alone."""
    tokens, window = list(prompt), Window(BLOCK_SIZE)
    for uniform in uniforms:
        tokens.append(token_after(window.of(tokens), uniform))
    return tokens[len(prompt) :]


@dataclass
class Text:
    """The chunks of a text that have come."""

    chunks: list[TextChunk] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def tokens(self) -> list[SampledToken]:
        return [chunk.token for chunk in self.chunks if chunk.token is not None]

    @property
    def finish(self) -> str | None:
        return self.chunks[-1].finish if self.chunks else None


@dataclass
class Answer(Text):
    """The chunks of a request that have come."""

    request: Request = field(kw_only=True)


def complete(
    model: GPT, prompts: Items[str], params: SamplingParams, seeds: Items[int] | None = None, **options: Any
) -> list[Text]:
    """The texts after prompts, each as if it were alone."""
    runtime, tokenizer = options.get("runtime") or build_runtime(model), options.get("tokenizer", LETTERS)
    texts = [Text() for _ in prompts]
    for chunk in TextBatch(runtime, tokenizer, prompts, params, seeds):
        texts[chunk.row].chunks.append(chunk._replace(row=0))
    return texts


class Drive:
    """An engine, and the answers to all requests that it was given."""

    def __init__(self, engine: Engine | MemoryRunner) -> None:
        if isinstance(engine, MemoryRunner):
            engine = Engine(engine, LETTERS, engine.max_sequences, engine.prefill_chunk)
        self.engine = engine
        self.answers: dict[Request, Answer] = {}

    def add(self, prompt: str, **params: object) -> Answer:
        sampling = SamplingParams.model_validate(params)
        request = Request(LETTERS.encode(prompt).tolist(), sampling)
        self.answers[request] = Answer(request=request)
        self._note(self.engine.add(request))
        return self.answers[request]

    def cancel(self, answer: Answer) -> None:
        self._note(self.engine.end(answer.request, "cancelled"))

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self._note(self.engine.step())

    def finish(self) -> None:
        """Steps until all requests have ended."""
        for _ in range(100_000):
            if not self.engine.requests:
                break
            self.step()
        stats = self.engine.stats()
        assert (stats.running, stats.waiting, stats.blocks_in_use) == (0, 0, 0)
        assert all(answer.finish for answer in self.answers.values())

    def _note(self, new: list[tuple[Request, list[TextChunk]]]) -> None:
        for request, chunks in new:
            assert self.answers[request].finish is None, "chunks after the last one"
            self.answers[request].chunks += chunks
