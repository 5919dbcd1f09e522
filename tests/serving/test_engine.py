"""The engine from outside: threads, answers, limits."""

import threading
from collections.abc import Iterator

import pytest
from native_support import needs_compiler

import gpt
from gpt.config import SamplingParams
from gpt.data import CharTokenizer
from gpt.generation import Piece
from gpt.model import GPT
from gpt.serving import ServingEngine
from tiny import sharp_model

pytestmark = needs_compiler
LETTERS = CharTokenizer("\nabcdefghijklmnopqrstuv")  # 23 ids


class Answer:
    """Collects the pieces of a request."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.ended = threading.Event()

    def __call__(self, pieces: list[Piece]) -> None:
        assert not self.ended.is_set()
        self.pieces += pieces
        if pieces[-1].finish is not None:
            self.ended.set()

    @property
    def text(self) -> str:
        assert self.ended.wait(60)
        return "".join(piece.text for piece in self.pieces)


@pytest.fixture(scope="module")
def model() -> GPT:
    return sharp_model(std=0.25, position="rope", block_size=200)


@pytest.fixture
def engine(model: GPT) -> Iterator[ServingEngine]:
    engine = ServingEngine(model, LETTERS, max_sequences=8)
    yield engine
    engine.close()


def test_answers_are_those_of_generate_alone(engine: ServingEngine, model: GPT) -> None:
    asked = [
        (
            "abc" * n,
            SamplingParams(max_new_tokens=250, temperature=0.9 * (n % 2), seed=n, repetition_penalty=1 + n % 3 / 5),
        )
        for n in range(20)
    ]
    answers = [Answer() for _ in asked]
    for (prompt, params), answer in zip(asked, answers, strict=True):
        engine.submit(prompt, params, answer)
    for (prompt, params), answer in zip(asked, answers, strict=True):
        assert answer.text == gpt.generate(model, LETTERS, prompt, **params.model_dump())
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.blocks_in_use) == (0, 0, 0)
    assert stats.tokens_generated == 20 * 250
