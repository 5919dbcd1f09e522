"""The engine from outside: threads, answers, limits, ends."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from generation.support import LETTERS
from native_support import needs_compiler

import gpt
from gpt.config import SamplingParams
from gpt.data import CharTokenizer
from gpt.extras.serving import EngineClosedError, EngineThread, QueueFullError
from gpt.extras.serving.engine_thread import EngineLimits
from gpt.generation.runner import TorchRunner
from gpt.generation.runtime import DecodeOptions
from gpt.generation.sequence import TextChunk
from gpt.model import GPT
from patience import PATIENCE
from tiny import sharp_model

pytestmark = needs_compiler
ENDLESS = SamplingParams(max_new_tokens=10**9)
SHORT = SamplingParams(max_new_tokens=5)
Make = Callable[..., EngineThread]


class Receiver:
    """Collects the chunks of a request."""

    def __init__(self) -> None:
        self.chunks: list[TextChunk] = []
        self.begun, self.ended = threading.Event(), threading.Event()

    def __call__(self, chunks: list[TextChunk]) -> None:
        assert not self.ended.is_set()
        self.chunks += chunks
        self.begun.set()
        if chunks[-1].finish is not None:
            self.ended.set()

    def wait(self) -> tuple[str, str | None]:
        """Return the text, and why it ended."""
        assert self.ended.wait(PATIENCE)
        return "".join(chunk.text for chunk in self.chunks), self.chunks[-1].finish


def answer(engine: EngineThread, prompt: str | list[int], params: SamplingParams) -> str:
    received = Receiver()
    engine.submit(prompt, params, received)
    return received.wait()[0]


@pytest.fixture(scope="module")
def model() -> GPT:
    return sharp_model(std=0.25, position="rope", block_size=200)


@pytest.fixture
def make(model: GPT) -> Iterator[Make]:
    """Makes engines, which are closed at the end."""
    engines: list[EngineThread] = []

    def made(
        of: GPT = model, tokenizer: Any = LETTERS, backend: str = "auto", **limits: Any
    ) -> EngineThread:
        options = DecodeOptions(backend)
        engines.append(EngineThread(of, tokenizer, EngineLimits(**limits), options))
        return engines[-1]

    yield made
    for engine in engines:
        engine.close()


def test_several_threads_get_answers_of_generate(make: Make, model: GPT) -> None:
    engine = make(max_sequences=8)
    asked = [
        (
            "abc" * n,
            SamplingParams(
                max_new_tokens=250, temperature=0.9 * (n % 2), seed=n, repetition_penalty=1 + n % 3
            ),
        )
        for n in range(20)
    ]
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda request: answer(engine, *request), asked))
    for (prompt, params), text in zip(asked, answers, strict=True):
        assert text == gpt.generate(model, LETTERS, prompt, **params.model_dump())
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.blocks_in_use) == (0, 0, 0)
    assert stats.tokens_generated == 20 * 250


def test_answers_with_a_draft_are_those_without(model: GPT) -> None:
    draft = sharp_model(std=0.25, position="rope", n_layer=1)
    engine = EngineThread(model, LETTERS, draft=draft)
    try:
        for seed in range(3):
            params = SamplingParams(max_new_tokens=100, temperature=0.8, seed=seed)
            expected = gpt.generate(model, LETTERS, "abc", **params.model_dump())
            assert answer(engine, "abc", params) == expected
    finally:
        engine.close()


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_ids_without_a_token_are_not_sampled(make: Make, backend: str) -> None:
    model = sharp_model(block_size=64)
    few = CharTokenizer("\nabcdef")
    engine = make(model, few, backend=backend)
    for options in ({}, {"temperature": 0}, {"logprobs": 3}):
        params = SamplingParams(max_new_tokens=70, seed=3, **options)
        assert answer(engine, "abc", params) == gpt.generate(
            model, few, "abc", **params.model_dump()
        )


def test_requests_are_cancelled_from_any_thread(make: Make) -> None:
    engine = make(max_sequences=1)
    running = Receiver()
    waiting = Receiver()
    last = Receiver()
    cancelled = threading.Event()

    def hold(chunks: list[TextChunk]) -> None:
        """Keep the engine from giving the place to another sequence."""
        running(chunks)
        assert cancelled.wait(PATIENCE)

    first = engine.submit("abc", ENDLESS, hold)
    second = engine.submit("abc", ENDLESS, waiting)
    engine.submit("abc", SHORT, last)
    assert running.begun.wait(PATIENCE)
    engine.cancel(second)
    cancelled.set()
    assert waiting.wait() == ("", "cancelled")
    engine.cancel(first)
    engine.cancel(first)
    assert running.wait()[1] == "cancelled"
    assert len(last.wait()[0]) == 5
    assert engine.stats().blocks_in_use == 0


def test_queue_is_limited_and_closing_cancels_all(make: Make) -> None:
    engine = make(max_sequences=1, max_waiting=2)
    answers = [Receiver() for _ in range(4)]
    engine.submit("a", ENDLESS, answers[0])
    assert answers[0].begun.wait(PATIENCE)
    requests = [engine.submit("a", ENDLESS, received) for received in answers[1:3]]
    assert engine.stats().waiting == 2
    with pytest.raises(QueueFullError, match="2 requests are waiting already"):
        engine.submit("a", SHORT, Receiver())
    engine.cancel(requests[0])
    assert answers[1].wait()[1] == "cancelled"
    engine.submit("a", ENDLESS, answers[3])
    engine.close()
    assert [received.wait()[1] for received in answers] == ["cancelled"] * 4
    with pytest.raises(EngineClosedError, match="is closed"):
        engine.submit("abc", SHORT, Receiver())
    assert engine.stats().blocks_in_use == 0
    engine.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_bug_ends_engine_and_its_requests(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make(backend="eager")
    received = Receiver()

    def broken(runner: TorchRunner, chunks: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(TorchRunner, "run", broken)
    request = engine.submit("abc", SHORT, received)
    assert received.wait()[1] == "error"
    assert request.error is engine.failure
    assert isinstance(engine.failure, ZeroDivisionError)
    with pytest.raises(EngineClosedError, match="the engine has failed: a bug"):
        engine.submit("abc", SHORT, Receiver())
    engine.close()
