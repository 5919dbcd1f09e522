"""How many tokens a call of the native engine samples."""

from collections.abc import Sequence

import pytest
from generation.support import LETTERS
from native_support import needs_compiler

from gpt.config import SamplingParams
from gpt.generation.native_runner import MAX_STEPS, NativeRunner
from gpt.generation.request import Request
from gpt.generation.runner import Sampled
from gpt.generation.runtime import DecodeOptions, build_runtime
from gpt.generation.sequence import Chunk
from gpt.model import GPT
from tiny import sharp_model

pytestmark = needs_compiler


def model() -> GPT:
    return sharp_model(std=0.1, block_size=200, n_layer=1, position="rope")


def test_more_sequences_get_fewer_tokens_in_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int]] = []
    generate = NativeRunner._generate

    def watched(runner: NativeRunner, chunks: Sequence[Chunk], steps: int) -> Sampled:
        calls.append((len(chunks), steps))
        return generate(runner, chunks, steps)

    monkeypatch.setattr(NativeRunner, "_generate", watched)
    # as on a fast machine, on which one sequence alone comes to the most tokens
    monkeypatch.setattr("gpt.generation.native_runner.PATIENCE", 1e9)
    engine = build_runtime(model(), DecodeOptions("native")).engine(LETTERS, max_sequences=16)
    params = SamplingParams(max_new_tokens=150)
    engine.add(Request([1], params))
    while not calls or calls[-1][1] < MAX_STEPS:
        engine.step()
    for row in range(15):
        engine.add(Request([row], params))
    while calls[-1][0] < 16:
        engine.step()
    assert max(rows * steps for rows, steps in calls) <= 2 * MAX_STEPS
