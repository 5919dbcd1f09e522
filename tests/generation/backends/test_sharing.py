"""What sequences share in the native engine, and that sharing changes no logits."""

from collections.abc import Sequence

import pytest
import torch
from generation.support import LETTERS, random_ids
from native_support import needs_compiler
from torch import Tensor

from gpt.config import SamplingParams
from gpt.generation.backends.native import NativeBackend
from gpt.generation.backends.selection import DecodeOptions, build_runtime
from gpt.generation.request import Request
from gpt.generation.runners import Sampled
from gpt.generation.runners.native import MAX_STEPS, NativeRunner
from gpt.generation.sequence import Chunk
from gpt.kernels.decoding.engine import Engine
from gpt.model import GPT
from tiny import sharp_model

pytestmark = needs_compiler
BLOCK_BYTES = 64 * 4 * (8 + 16) * 4
"""Of 64 positions and 4 heads, with keys 8 wide and values padded to 16."""


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The positions of each pass."""
    passes: list[int] = []
    forward = Engine.forward

    def watched(engine: Engine, tokens: list[int], *arguments: object, **options: object) -> Tensor:
        passes.append(len(tokens))
        return forward(engine, tokens, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Engine, "forward", watched)
    return passes


def model() -> GPT:
    return sharp_model(std=0.1, block_size=200, n_layer=1, position="rope")


def backend_of(model: GPT) -> NativeBackend:
    backend = build_runtime(model, DecodeOptions("native")).backend(SamplingParams())
    assert isinstance(backend, NativeBackend)
    return backend


def test_blocks_that_prompts_begin_with_are_computed_and_held_once(computed: list[int]) -> None:
    common = random_ids(130)
    prompts = [common + random_ids(20) for _ in range(5)] + [random_ids(70)]
    backend = backend_of(model())
    found = backend.next_logits(prompts)
    assert sum(computed) == 150 + 4 * (150 - 128) + 70
    assert backend.cache_bytes == (2 + 5 + 2) * BLOCK_BYTES
    alone = [backend_of(model()).next_logits([prompt]) for prompt in prompts]
    assert torch.equal(found, torch.cat(alone))
    backend.select([5])
    assert backend.cache_bytes == 2 * BLOCK_BYTES  # the others' are given back


def test_rows_that_multiply_write_blocks_of_their_own(computed: list[int]) -> None:
    prompt = random_ids(75)
    backend = backend_of(model())
    backend.next_logits([prompt, random_ids(80), random_ids(9)])
    backend.select([0, 0, 0])
    held = backend.cache_bytes
    computed.clear()
    contexts = [[*prompt, token] for token in (3, 4, 3)]
    found = backend.next_logits(contexts)
    assert computed == [3]
    assert (held, backend.cache_bytes) == (2 * BLOCK_BYTES, 4 * BLOCK_BYTES)
    again = backend_of(model()).next_logits(contexts)
    assert torch.equal(found, again)
    assert torch.equal(found[0], found[2])


def test_a_block_is_copied_before_the_row_that_had_it_computes_something_else(computed: list[int]) -> None:
    common = random_ids(100)
    rows = [[*common, 5], [*common[:70], 6, 7, 8]]
    backend = backend_of(model())
    backend.next_logits([common, common])
    backend.select([0, 0])
    alone = torch.cat([backend_of(model()).next_logits([row]) for row in rows])
    torch.testing.assert_close(backend.next_logits(rows), alone, atol=1e-4, rtol=1e-4)


def test_more_sequences_get_fewer_tokens_in_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int]] = []
    generate = NativeRunner._generate

    def watched(runner: NativeRunner, chunks: Sequence[Chunk], steps: int) -> Sampled:
        calls.append((len(chunks), steps))
        return generate(runner, chunks, steps)

    monkeypatch.setattr(NativeRunner, "_generate", watched)
    # as on a fast machine, on which one sequence alone comes to the most tokens
    monkeypatch.setattr("gpt.generation.runners.native.PATIENCE", 1e9)
    engine = build_runtime(model(), DecodeOptions("native")).engine(LETTERS, max_sequences=16)
    params = SamplingParams(max_new_tokens=150)
    engine.add(Request("a", [1], params))
    while not calls or calls[-1][1] < MAX_STEPS:
        engine.step()
    for row in range(15):
        engine.add(Request("b", [row], params))
    while calls[-1][0] < 16:
        engine.step()
    assert max(rows * steps for rows, steps in calls) <= 2 * MAX_STEPS
