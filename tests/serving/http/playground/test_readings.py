"""The endpoints of the reading views: numbers, limits, errors."""

import threading
from typing import Any

import pytest
import torch

from gpt.data.tokenizers import CharTokenizer
from gpt.inspection.rendering.pages import page_data
from gpt.inspection.tracing.activation_cache import Edits
from gpt.inspection.views.attention import attention_view, without_heads
from gpt.inspection.views.continuation import continuation_view
from gpt.inspection.views.lens import lens_view
from gpt.inspection.views.picture import picture_view
from gpt.inspection.views.surprisal import surprisal
from gpt.inspection.views.tokens import View, labels_of
from gpt.model import GPT
from gpt.serving.http.limits import Limits
from gpt.serving.http.playground import inspection
from http_server import CharModel, ManualEngine, Serve, Served, assert_is_error, make_loaded
from patience import PATIENCE

TEXT = "It was the best"
NAMES = ("attention", "lens", "surprisal", "picture", "continue")
HEADS = [[1, 2], [0, 0], [1, 2]]
every_view = pytest.mark.parametrize("name", NAMES)


def ask(served: Served, name: str, **body: Any) -> Any:
    return served.post(f"/api/{name}", **{"text": TEXT, **body})


def bits_of(model: GPT, tokenizer: CharTokenizer, idx: torch.Tensor, edits: Edits) -> View:
    found = surprisal(model, idx, edits=edits)
    labels = labels_of(tokenizer, idx.tolist())
    return {"labels": labels, "bits": [None, *found.bits.tolist()], "mean_bits": found.mean_bits}


def expected(name: str, model: GPT, tokenizer: CharTokenizer, ablate: list[list[int]]) -> View:
    idx = torch.tensor(tokenizer.encode(TEXT).tolist())
    edits = without_heads([(layer, head) for layer, head in ablate])
    view = {
        "attention": lambda: attention_view(model, tokenizer, idx, edits),
        "lens": lambda: lens_view(model, tokenizer, idx, 10, edits),
        "surprisal": lambda: bits_of(model, tokenizer, idx, edits),
        "picture": lambda: picture_view(model, tokenizer, idx, edits),
        "continue": lambda: continuation_view(model, tokenizer, idx, 5, edits),
    }[name]()
    return page_data(name, view)


def assert_close(found: Any, wanted: Any) -> None:
    """Equal, but for the last digits of numbers."""
    if isinstance(wanted, dict | list | tuple):
        assert len(found) == len(wanted)
        for key in wanted if isinstance(wanted, dict) else range(len(wanted)):
            assert_close(found[key], wanted[key])
    else:
        assert found == (pytest.approx(wanted, rel=1e-3, abs=1e-6) if isinstance(wanted, float) else wanted)


@every_view
@pytest.mark.parametrize("ablate", [[], HEADS])
def test_the_numbers_are_those_of_the_views(
    server: Served, char_model: CharModel, name: str, ablate: list[list[int]]
) -> None:
    options = {"count": 5} if name == "continue" else {}
    answer = ask(server, name, model="second", ablate=ablate, **options)
    assert answer.status_code == 200, answer.text
    assert_close(answer.json(), expected(name, *char_model, ablate))


@pytest.mark.parametrize(
    ("name", "param", "value", "words"),
    [
        ("lens", "text", "", "at least 1"),
        ("lens", "text", "Zürich", "ü"),
        ("surprisal", "text", "I", "1 token"),
        ("attention", "ablate", [[2, 0]], "2 layers of 4"),
        ("attention", "ablate", [[0, 4]], "no head 4"),
        ("attention", "ablate", [[0, -1]], "greater"),
        ("attention", "ablate", [[0]], "2 items"),
        ("picture", "model", "third", "'third'"),
        ("continue", "count", 129, "128"),
        ("picture", "heads", [], "not permitted"),
    ],
)
def test_a_wrong_field_is_named(server: Served, name: str, param: str, value: Any, words: str) -> None:
    assert_is_error(ask(server, name, **{param: value}), 404 if value == "third" else 400, param, words)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "continue"])
def test_a_text_longer_than_the_window_is_refused(server: Served, name: str) -> None:
    assert ask(server, name, text="It" * 32).status_code == 200
    assert_is_error(ask(server, name, text="It" * 32 + "I"), 400, "text", "65", "64")


def test_a_text_longer_than_the_window_is_continued_from_its_end(server: Served) -> None:
    whole, end = (ask(server, "continue", text=text, count=4).json()["ids"] for text in ("It" * 40, "It" * 32))
    assert whole == end


@pytest.mark.parametrize("text", ["é" * 40, "a" * 70])
def test_bytes_are_counted_as_tokens(byte_server: Served, text: str) -> None:
    assert_is_error(ask(byte_server, "lens", text=text), 400, "text", "64")


@every_view
def test_the_limits_are_those_that_were_given(serve: Serve, name: str) -> None:
    with serve(limits=Limits(view_tokens=5, view_bytes=1 << 20)) as served:
        assert ask(served, name, text="It wa").status_code == 200
        assert_is_error(ask(served, name, text="It was"), 400, "text", "6", "5")


@pytest.mark.parametrize(
    ("name", "limit"),
    [("attention", 1000), ("lens", 1000), ("picture", 9000)],  # more than its weights alone have
)
def test_an_answer_that_is_too_large_is_refused(serve: Serve, name: str, limit: int) -> None:
    with serve(limits=Limits(view_bytes=limit)) as served:
        assert_is_error(ask(served, name), 400, "text", f"more than this server's limit of {limit:,}", "shorten")


def test_one_is_computed_at_a_time_and_few_wait(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one is computed, the event loop answers others, another one waits, and a third is refused."""
    running, proceed, most = threading.Semaphore(0), threading.Event(), []
    alone = threading.Lock()

    def slow(*arguments: Any) -> View:
        most.append(alone.acquire(blocking=False))
        running.release()
        assert proceed.wait(PATIENCE)
        alone.release()
        return {"labels": []}

    monkeypatch.setattr(inspection, "lens_view", slow)
    with serve(lambda loaded: ManualEngine(), limits=Limits(views=2)) as served:
        answers: list[Any] = []
        threads = [threading.Thread(target=lambda: answers.append(ask(served, "lens"))) for _ in range(4)]
        for thread in threads:
            thread.start()
        assert running.acquire(timeout=PATIENCE)
        while len(answers) < 2:
            with served.http() as client:
                assert client.get("/health").status_code == 200
        for answer in answers:
            assert_is_error(answer, 429, None, "wait")
            assert int(answer.headers["Retry-After"]) >= 1
        proceed.set()
        for thread in threads:
            thread.join()
        assert [answer.status_code for answer in answers] == [429, 429, 200, 200]
        assert most == [True, True]


def test_a_weak_point_of_the_model_is_said(serve: Serve, char_model: CharModel) -> None:
    model, tokenizer = char_model
    broken = GPT(model.config).eval()
    with torch.no_grad():
        broken.lm_head.weight.fill_(float("nan"))
    with serve(loaded=make_loaded(broken, tokenizer)) as served:
        assert_is_error(ask(served, "lens"), 400, "text", "not finite")
