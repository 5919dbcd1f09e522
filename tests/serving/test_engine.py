"""The engine from outside: threads, answers, limits, ends."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from generation.support import LETTERS
from native_support import needs_compiler

import gpt
from gpt.config import SamplingParams
from gpt.data import ByteTokenizer, CharTokenizer
from gpt.generation import TextChunk
from gpt.generation.text import TextStream, decode_text
from gpt.model import GPT
from gpt.serving import EngineClosedError, QueueFullError, ServingEngine
from gpt.system.errors import DataError, GenerationError, InputError
from patience import PATIENCE
from tiny import sharp_model

pytestmark = needs_compiler
ENDLESS = SamplingParams(max_new_tokens=10**9)
SHORT = SamplingParams(max_new_tokens=5)
Make = Callable[..., ServingEngine]
every_backend = pytest.mark.parametrize("backend", ["eager", "native"])


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

    @property
    def text(self) -> str:
        assert self.ended.wait(PATIENCE)
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def finish(self) -> str | None:
        assert self.ended.wait(PATIENCE)
        return self.chunks[-1].finish


def answer(engine: ServingEngine, prompt: str | list[int], params: SamplingParams) -> str:
    received = Receiver()
    engine.submit(prompt, params, received)
    return received.text


@pytest.fixture(scope="module")
def model() -> GPT:
    return sharp_model(std=0.25, position="rope", block_size=200)


@pytest.fixture
def make(model: GPT) -> Iterator[Make]:
    """Makes engines, which are closed at the end."""
    engines: list[ServingEngine] = []

    def made(of: GPT = model, tokenizer: Any = LETTERS, **options: Any) -> ServingEngine:
        engines.append(ServingEngine(of, tokenizer, **options))
        return engines[-1]

    yield made
    for engine in engines:
        engine.close()


def test_answers_to_several_threads_are_those_of_generate_alone(make: Make, model: GPT) -> None:
    engine = make(max_sequences=8)
    asked = [
        ("abc" * n, SamplingParams(max_new_tokens=250, temperature=0.9 * (n % 2), seed=n, repetition_penalty=1 + n % 3))
        for n in range(20)
    ]
    answers = [Receiver() for _ in asked]

    def submit(first: int) -> None:
        for (prompt, params), answer in zip(asked[first::4], answers[first::4], strict=True):
            engine.submit(prompt, params, answer)

    threads = [threading.Thread(target=submit, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for (prompt, params), received in zip(asked, answers, strict=True):
        assert received.text == gpt.generate(model, LETTERS, prompt, **params.model_dump())
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.blocks_in_use) == (0, 0, 0)
    assert stats.tokens_generated == 20 * 250
    for thread in threads:
        thread.join()


@every_backend
def test_ids_are_a_prompt_as_they_are_and_their_last_character_is_completed(make: Make, backend: str) -> None:
    byte_model, tokenizer = sharp_model(std=0.05, block_size=64, vocab_size=256), ByteTokenizer()
    engine = make(byte_model, tokenizer, backend=backend)
    whole = 0
    for ids in ([0xC3], [0x61, 0xE2, 0x82], [0xFF, 0x61]):
        params = SamplingParams(max_new_tokens=50, seed=3)
        text, sampled = answer(engine, ids, params), list(gpt.generate_tokens(byte_model, ids, params))
        stream = TextStream(tokenizer)
        stream.begin(ids)
        assert text == "".join(map(stream.feed, sampled)) + stream.flush()
        whole += text != decode_text(tokenizer, sampled)
    assert whole
    with pytest.raises(InputError, match="256"):
        engine.submit([1, 256], SHORT, Receiver())


@every_backend
def test_ids_that_the_tokenizer_does_not_have_are_not_sampled(make: Make, backend: str) -> None:
    model, few = sharp_model(block_size=64), CharTokenizer("\nabcdef")
    engine = make(model, few, backend=backend)
    for options in ({}, {"temperature": 0}, {"logprobs": 3}):
        params = SamplingParams(max_new_tokens=70, seed=3, **options)
        text = answer(engine, "abc", params)
        assert text == gpt.generate(model, few, "abc", **params.model_dump())
        assert set(text) <= set("\nabcdef")


def test_prompts_that_cannot_be_used_are_refused_at_once(make: Make) -> None:
    engine = make()
    with pytest.raises(DataError, match="outside the vocabulary"):
        engine.submit("ABC", SHORT, Receiver())
    with pytest.raises(GenerationError, match="201 tokens, more than the window of 200"):
        engine.submit("a" * 201, SHORT, Receiver())
    assert engine.stats().waiting == 0


def test_running_and_waiting_requests_are_cancelled_from_any_thread(make: Make) -> None:
    engine = make(max_sequences=1)
    running, waiting, last, cancelled = Receiver(), Receiver(), Receiver(), threading.Event()

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
    assert (waiting.finish, waiting.text) == ("cancelled", "")
    engine.cancel(first)
    engine.cancel(first)
    assert running.finish == "cancelled"
    assert len(last.text) == 5
    assert engine.stats().blocks_in_use == 0


def test_as_many_requests_wait_as_are_accepted(make: Make) -> None:
    engine = make(max_sequences=1, max_waiting=2)
    running = Receiver()
    engine.submit("a", ENDLESS, running)
    assert running.begun.wait(PATIENCE)
    others = [Receiver(), Receiver()]
    requests = [engine.submit("a", ENDLESS, received) for received in others]
    assert engine.stats().waiting == 2
    with pytest.raises(QueueFullError, match="2 requests are waiting already"):
        engine.submit("a", SHORT, Receiver())
    engine.cancel(requests[0])
    assert others[0].finish == "cancelled"
    engine.submit("a", ENDLESS, Receiver())


def test_a_reader_that_raises_ends_its_request_and_no_other(make: Make) -> None:
    engine, calls = make(), []

    def gone(chunks: list[TextChunk]) -> None:
        calls.append(chunks)
        raise RuntimeError("the event loop is closed")

    engine.submit("abc", ENDLESS, gone)
    assert len(answer(engine, "abc", SamplingParams(max_new_tokens=50))) == 50
    assert len(calls) == 1
    assert engine.stats().blocks_in_use == 0


def test_closing_cancels_all_requests_and_accepts_no_more(make: Make) -> None:
    engine, answers = make(max_sequences=1), [Receiver(), Receiver()]
    for received in answers:
        engine.submit("abc", ENDLESS, received)
    assert answers[0].begun.wait(PATIENCE)
    engine.close()
    assert [received.finish for received in answers] == ["cancelled"] * 2
    with pytest.raises(EngineClosedError, match="is closed"):
        engine.submit("abc", SHORT, Receiver())
    assert engine.stats().blocks_in_use == 0
    engine.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_bug_ends_all_requests_and_the_engine_with_it(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, received = make(), Receiver()

    def broken(chunks: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(engine._engine._runner, "run", broken)
    request = engine.submit("abc", SHORT, received)
    assert received.finish == "error"
    assert request.error is engine.failure
    assert isinstance(engine.failure, ZeroDivisionError)
    with pytest.raises(EngineClosedError, match="the engine has failed: a bug"):
        engine.submit("abc", SHORT, Receiver())
    engine.close()
