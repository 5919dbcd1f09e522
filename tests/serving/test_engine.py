"""The engine from outside: threads, answers, limits, ends."""

import threading
from collections.abc import Callable, Iterator

import pytest
from generation.support import LETTERS
from native_support import needs_compiler

import gpt
from gpt.config import SamplingParams
from gpt.data import ByteTokenizer, CharTokenizer
from gpt.errors import DataError, GenerationError, InputError
from gpt.generation import TextChunk
from gpt.generation.text import TextStream, decode_text
from gpt.model import GPT
from gpt.serving import EngineClosedError, QueueFullError, ServingEngine
from patience import PATIENCE
from tiny import sharp_model

pytestmark = needs_compiler
BACKENDS = ("eager", "native")
ENDLESS = SamplingParams(max_new_tokens=10**9)
SHORT = SamplingParams(max_new_tokens=5)


class Answer:
    """Collects the pieces of a request."""

    def __init__(self) -> None:
        self.pieces: list[TextChunk] = []
        self.begun, self.ended = threading.Event(), threading.Event()

    def __call__(self, pieces: list[TextChunk]) -> None:
        assert not self.ended.is_set()
        self.pieces += pieces
        self.begun.set()
        if pieces[-1].finish is not None:
            self.ended.set()

    @property
    def text(self) -> str:
        assert self.ended.wait(PATIENCE)
        return "".join(piece.text for piece in self.pieces)

    @property
    def finish(self) -> str | None:
        assert self.ended.wait(PATIENCE)
        return self.pieces[-1].finish


@pytest.fixture(scope="module")
def model() -> GPT:
    return sharp_model(std=0.25, position="rope", block_size=200)


@pytest.fixture
def make(model: GPT) -> Iterator[Callable[..., ServingEngine]]:
    """Makes engines, which are closed at the end."""
    engines: list[ServingEngine] = []

    def made(**options: object) -> ServingEngine:
        engines.append(ServingEngine(model, LETTERS, **options))  # type: ignore[arg-type]
        return engines[-1]

    yield made
    for engine in engines:
        engine.close()


def test_answers_to_several_threads_are_those_of_generate_alone(make: Callable[..., ServingEngine], model: GPT) -> None:
    engine = make(max_sequences=8)
    asked = [
        ("abc" * n, SamplingParams(max_new_tokens=250, temperature=0.9 * (n % 2), seed=n, repetition_penalty=1 + n % 3))
        for n in range(20)
    ]
    answers = [Answer() for _ in asked]

    def submit(first: int) -> None:
        for (prompt, params), answer in zip(asked[first::4], answers[first::4], strict=True):
            engine.submit(prompt, params, answer)

    threads = [threading.Thread(target=submit, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for (prompt, params), answer in zip(asked, answers, strict=True):
        assert answer.text == gpt.generate(model, LETTERS, prompt, **params.model_dump())
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.blocks_in_use) == (0, 0, 0)
    assert stats.tokens_generated == 20 * 250
    for thread in threads:
        thread.join()


def test_stop_strings_and_characters_of_several_bytes_come_whole() -> None:
    model, tokenizer = sharp_model(std=0.05, block_size=64, vocab_size=256), ByteTokenizer()
    engine = ServingEngine(model, tokenizer)
    for seed in range(5):
        params = SamplingParams(max_new_tokens=300, seed=seed, stop=("ab", "z"))
        answer = Answer()
        engine.submit("caf\u00e9", params, answer)
        assert answer.text == gpt.generate(model, tokenizer, "caf\u00e9", **params.model_dump())
    engine.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_ids_are_a_prompt_as_they_are_and_their_last_character_is_completed(backend: str) -> None:
    model, tokenizer = sharp_model(std=0.05, block_size=64, vocab_size=256), ByteTokenizer()
    engine = ServingEngine(model, tokenizer, backend=backend)
    whole = 0
    for ids in ([0xC3], [0x61, 0xE2, 0x82], [0xFF, 0x61]):
        params, answer = SamplingParams(max_new_tokens=50, seed=3), Answer()
        engine.submit(ids, params, answer)
        sampled = list(gpt.generate_tokens(model, ids, params))
        stream = TextStream(tokenizer)
        stream.begin(ids)
        assert answer.text == "".join(map(stream.feed, sampled)) + stream.flush()
        whole += answer.text != decode_text(tokenizer, sampled)
    assert whole
    with pytest.raises(InputError, match="256"):
        engine.submit([1, 256], SamplingParams(), Answer())
    engine.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_ids_that_the_tokenizer_does_not_have_are_not_sampled(backend: str) -> None:
    model, few = sharp_model(block_size=64), CharTokenizer("\nabcdef")
    engine = ServingEngine(model, few, backend=backend)
    for options in ({}, {"temperature": 0}, {"logprobs": 3}):
        params, answer = SamplingParams(max_new_tokens=70, seed=3, **options), Answer()
        engine.submit("abc", params, answer)
        assert answer.text == gpt.generate(model, few, "abc", **params.model_dump())
        assert set(answer.text) <= set("\nabcdef")
    engine.close()


def test_a_request_for_no_tokens_gets_one_piece(make: Callable[..., ServingEngine]) -> None:
    answer = Answer()
    make().submit("abc", SamplingParams(max_new_tokens=0), answer)
    assert (answer.text, answer.pieces) == ("", [TextChunk(0, "", None, "length")])


def test_prompts_that_cannot_be_used_are_refused_at_once(make: Callable[..., ServingEngine]) -> None:
    engine = make()
    with pytest.raises(DataError, match="outside the vocabulary"):
        engine.submit("ABC", SHORT, Answer())
    with pytest.raises(GenerationError, match="201 tokens, more than the window of 200"):
        engine.submit("a" * 201, SHORT, Answer())
    with pytest.raises(GenerationError, match="empty"):
        engine.submit("", SamplingParams(empty_prompt="refuse"), Answer())
    assert engine.stats().waiting == 0


def test_running_and_waiting_requests_are_cancelled_from_any_thread(make: Callable[..., ServingEngine]) -> None:
    engine = make(max_sequences=1)
    running, waiting, last = Answer(), Answer(), Answer()
    first = engine.submit("abc", ENDLESS, running)
    second = engine.submit("abc", ENDLESS, waiting)
    engine.submit("abc", SHORT, last)
    assert running.begun.wait(PATIENCE)
    engine.cancel(second)
    assert (waiting.finish, waiting.text) == ("cancelled", "")
    engine.cancel(first)
    engine.cancel(first)
    assert running.finish == "cancelled"
    assert len(last.text) == 5
    assert engine.stats().blocks_in_use == 0


def test_as_many_requests_wait_as_are_accepted(make: Callable[..., ServingEngine]) -> None:
    engine = make(max_sequences=1, max_waiting=2)
    running = Answer()
    engine.submit("a", ENDLESS, running)
    assert running.begun.wait(PATIENCE)
    others = [Answer(), Answer()]
    requests = [engine.submit("a", ENDLESS, answer) for answer in others]
    assert engine.stats().waiting == 2
    with pytest.raises(QueueFullError, match="2 requests are waiting already"):
        engine.submit("a", SHORT, Answer())
    engine.cancel(requests[0])
    assert others[0].finish == "cancelled"
    engine.submit("a", ENDLESS, Answer())


def test_a_reader_that_raises_ends_its_request_and_no_other(make: Callable[..., ServingEngine]) -> None:
    engine, calls, other = make(), [], Answer()

    def gone(pieces: list[TextChunk]) -> None:
        calls.append(pieces)
        raise RuntimeError("the event loop is closed")

    engine.submit("abc", ENDLESS, gone)
    engine.submit("abc", SamplingParams(max_new_tokens=50), other)
    assert len(other.text) == 50
    assert len(calls) == 1
    assert engine.stats().blocks_in_use == 0


def test_closing_lets_requests_finish_and_accepts_no_more(make: Callable[..., ServingEngine]) -> None:
    engine, answers = make(max_sequences=1), [Answer(), Answer()]
    for answer in answers:
        engine.submit("abc", SamplingParams(max_new_tokens=100), answer)
    engine.close(drain_seconds=PATIENCE)
    assert [(answer.finish, len(answer.text)) for answer in answers] == [("length", 100)] * 2
    with pytest.raises(EngineClosedError, match="is closed"):
        engine.submit("abc", SHORT, Answer())
    engine.close()


def test_closing_cancels_what_is_not_finished_in_time(make: Callable[..., ServingEngine]) -> None:
    engine, answers = make(max_sequences=1), [Answer(), Answer()]
    for answer in answers:
        engine.submit("abc", ENDLESS, answer)
    assert answers[0].begun.wait(PATIENCE)
    engine.close()
    assert [answer.finish for answer in answers] == ["cancelled", "cancelled"]
    assert engine.stats().blocks_in_use == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_bug_ends_all_requests_and_the_engine_with_it(
    make: Callable[..., ServingEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, answer = make(), Answer()

    def broken(chunks: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(engine._engine._runner, "run", broken)
    request = engine.submit("abc", SHORT, answer)
    assert answer.finish == "error"
    assert request.error is engine.failure
    assert isinstance(engine.failure, ZeroDivisionError)
    with pytest.raises(EngineClosedError, match="the engine has failed: a bug"):
        engine.submit("abc", SHORT, Answer())
    engine.close(drain_seconds=PATIENCE)
