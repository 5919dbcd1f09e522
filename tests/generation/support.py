"""What the tests of generation share: texts and what came beside them, an engine driven by hand,
given logits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gpt.config import SamplingParams
from gpt.data import CharTokenizer
from gpt.generation.batch import Batch, TextBatch
from gpt.generation.engine import Engine
from gpt.generation.paged import BLOCK, BlockPool
from gpt.generation.runner import Runner
from gpt.generation.runtime import DecodeOptions, Runtime, build_runtime
from gpt.generation.sequence import Request, ScheduledWork, TextChunk
from gpt.generation.tokens import SampledToken
from gpt.model import GPT

LETTERS = CharTokenizer("\nabcdefghijklmnopqrstuv")  # 23 ids


def runtime_of(
    model: GPT, backend: str, kv_dtype: str = "fp32", draft: Runtime | None = None
) -> Runtime:
    """A runtime of a backend; `graph` decodes as on a CUDA device, but without graphs."""
    if backend == "graph":
        return Runtime(model, kv_dtype, uses_graphs=True, draft=draft)
    small = None if draft is None else draft.model
    return build_runtime(model, DecodeOptions(backend, kv_dtype), draft=small)


def rows_of(batch: Batch, steps: int) -> list[list[int]]:
    """The tokens of each row in the next steps."""
    rows: list[list[int]] = [[] for _ in batch.active]
    for _ in range(steps):
        for row, chunk in batch.step().items():
            assert chunk.token is not None
            rows[row].append(chunk.token.id)
    return rows


class Scripted(Runner):
    """A runner whose logits are a function of the tokens so far."""

    def __init__(
        self, logits: Callable[[Sequence[int]], list[float]], block_size: int = 64
    ) -> None:
        super().__init__(block_size, BlockPool(400, BLOCK))
        self._logits = logits

    def logits(self, work: Sequence[ScheduledWork]) -> tuple[list[ScheduledWork], Tensor]:
        items = [item for item in work if item.max_samples]
        return items, torch.tensor([self._logits(item.sequence.tokens) for item in items])


@dataclass
class Text:
    """The chunks of a text that have come, and the request that it answers, if there was one."""

    chunks: list[TextChunk] = field(default_factory=list)
    request: Request | None = None

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def tokens(self) -> list[SampledToken]:
        return [chunk.token for chunk in self.chunks if chunk.token is not None]

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.tokens]

    @property
    def finish(self) -> str | None:
        return self.chunks[-1].finish if self.chunks else None


def complete(
    model: GPT,
    prompts: Sequence[str],
    params: SamplingParams,
    seeds: Sequence[int] | None = None,
    **options: Any,
) -> list[Text]:
    """The texts after prompts, each as if it were alone."""
    runtime = options.get("runtime") or build_runtime(model)
    tokenizer = options.get("tokenizer", LETTERS)
    texts = [Text() for _ in prompts]
    for chunk in TextBatch(runtime, tokenizer, prompts, params, seeds):
        texts[chunk.row].chunks.append(chunk._replace(row=0))
    return texts


class Drive:
    """An engine, and the answers to all requests that it was given."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.answers: dict[Request, Text] = {}

    def add(self, prompt: str, **params: object) -> Text:
        request = Request(LETTERS.encode(prompt).tolist(), SamplingParams.model_validate(params))
        self.answers[request] = Text(request=request)
        self._note(self.engine.add(request))
        return self.answers[request]

    def cancel(self, answer: Text) -> None:
        assert answer.request is not None
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
