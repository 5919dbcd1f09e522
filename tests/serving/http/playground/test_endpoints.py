"""What the page asks of a model: what it is, a text with what else was possible at each token, and
its readings.
"""

import json
from typing import Any

import pytest
import torch

from gpt.checkpoint import Loaded
from gpt.config import SamplingParams
from gpt.data.bpe import learn_bpe
from gpt.data.tokenizers import CharTokenizer
from gpt.extras.inspection.rendering.pages import page_data
from gpt.extras.inspection.views.attention import attention_view, without_heads
from gpt.extras.inspection.views.continuation import continuation_view
from gpt.extras.inspection.views.lens import lens_view
from gpt.extras.inspection.views.picture import picture_view
from gpt.extras.inspection.views.surprisal import surprisal
from gpt.extras.inspection.views.tokens import View, labels_of
from gpt.extras.serving.http import playground
from gpt.extras.serving.http.limits import Limits
from gpt.generation.sampling import next_token_probabilities
from gpt.model import GPT
from http_server import CharModel, Serve, Served, assert_is_error, make_loaded
from tiny import CORPUS, sharp_model

SETTINGS = {"temperature": 0.7, "top_k": 6, "top_p": 0.9}
TEXT = "It was the best"
HEADS = [[1, 2], [0, 0], [1, 2]]


def test_model_is_described_and_its_example_found_once(
    server: Served,
    byte_server: Served,
    char_model: CharModel,
    serve: Serve,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, tokenizer = char_model
    described = server.post("/api/models/first").json()
    assert 1 < len(tokenizer.encode(described.pop("example"))) <= 64
    about = described.pop("about")
    assert (about["parameters"], about["vocab_size"]) == (described["parameters"], 29)
    assert described == {
        "model": "first",
        "step": 5,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "n_layer": 2,
        "n_head": 4,
        "block_size": 64,
        "vocab_size": tokenizer.vocab_size,
        "token": "character",
        "characters": tokenizer.itos,
        "marks": {"kind": "text", "begin": None, "ends": [], "answer": "", "turn": ""},
        "longest_item": 500,
        "examples": [],  # its corpus is gone
        "sample": {"temperature": 0.8, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    }
    of_bytes = byte_server.post("/api/models/first").json()
    assert (of_bytes["token"], of_bytes["vocab_size"]) == ("byte", 256)
    asked: list[Loaded] = []
    monkeypatch.setattr(playground, "example_of", lambda loaded: asked.append(loaded) or "It was")
    with serve() as served:
        assert [served.post("/api/models/second").json()["example"] for _ in range(2)] == [
            "It was"
        ] * 2
    assert len(asked) == 1


def tokens(served: Served, **body: Any) -> list[dict[str, Any]]:
    answer = served.post("/api/generate", **body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    *found, done = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert done == "[DONE]"
    return [token for event in found for token in json.loads(event)["tokens"]]


def text_of(found: list[dict[str, Any]]) -> str:
    return "".join(token["text"] for token in found)


def test_probabilities_are_those_of_model_and_sampling(
    server: Served, char_model: CharModel
) -> None:
    model, tokenizer = char_model
    found = tokens(server, prompt="It was", max_tokens=40, seed=3, **SETTINGS)
    ids = [token["id"] for token in found]
    assert ids[:6] == tokenizer.encode("It was").tolist()
    labels = labels_of(tokenizer, range(model.vocab_size))
    with torch.inference_mode():
        logits = model(torch.tensor([ids]))[0]
    assert (found[0]["probability"], found[0]["own"], found[0]["sampled"]) == (None, [], [])
    for position, token in enumerate(found[1:]):
        own = logits[position].softmax(-1)
        sampled = next_token_probabilities(logits[position], SamplingParams(**SETTINGS))
        assert token["label"] == labels[token["id"]]
        assert token["probability"] == pytest.approx(float(own[token["id"]]), rel=1e-3, abs=1e-5)
        assert token["chance"] == pytest.approx(float(sampled[token["id"]]), rel=1e-3, abs=1e-5)
        for name, expected in (("own", own), ("sampled", sampled)):
            count = min(10, int((expected > 0).sum()))
            assert [p for _, _, p in token[name]] == pytest.approx(
                expected.sort(descending=True).values[:count].tolist(), rel=1e-3, abs=1e-5
            )
            assert all(label == labels[index] for index, label, _ in token[name])
            assert all(
                p == pytest.approx(float(expected[index]), rel=1e-3, abs=1e-5)
                for index, _, p in token[name]
            )
    sampled_ids = [
        index for token in found[6:] for index, _, _ in token["sampled"] if index == token["id"]
    ]
    assert sampled_ids == ids[6:]


def test_prompt_may_be_ids_and_known(server: Served, char_model: CharModel) -> None:
    whole = tokens(server, prompt="It was", max_tokens=8)
    assert tokens(server, prompt=char_model[1].encode("It was").tolist(), max_tokens=8) == whole
    assert tokens(server, prompt="It was", max_tokens=8, known=4) == whole[4:]
    assert tokens(server, prompt="It was", max_tokens=0, known=5) == whole[5:6]
    assert len(tokens(server, prompt="It was")) == 306
    size = char_model[0].vocab_size
    (token,) = tokens(server, prompt="It was", max_tokens=1, known=6, alternatives=size)
    assert sorted(index for index, _, _ in token["own"]) == list(range(size))
    assert sum(p for _, _, p in token["own"]) == pytest.approx(1, abs=1e-3)
    # The first tokens of a longer prompt lie before the window, and have no probability.
    found = tokens(server, prompt="It was\n" * 10, max_tokens=2)
    assert [index for index, token in enumerate(found) if token["probability"] is None] == list(
        range(70 - 64 + 1)
    )
    assert text_of(found[:70]) == "It was\n" * 10


def test_bytes_that_begin_a_character_have_no_text(byte_server: Served) -> None:
    found = tokens(byte_server, prompt="é€", max_tokens=30, seed=1)
    assert [(token["label"], token["text"]) for token in found[:5]] == [
        ("c3", ""), ("a9", "é"), ("e2", ""), ("82", ""), ("ac", "€")
    ]  # fmt: skip
    assert len(found) == 5 + 30
    unfinished = tokens(byte_server, prompt=[0xE2, 0x82], max_tokens=1)
    assert [(token["label"], token["text"]) for token in unfinished[:2]] == [("e2", ""), ("82", "")]


def ask(served: Served, name: str, **body: Any) -> Any:
    return served.post(f"/api/{name}", **{"text": TEXT, **body})


def view_of(name: str, model: GPT, tokenizer: CharTokenizer, heads: list[list[int]]) -> View:
    idx = torch.tensor(tokenizer.encode(TEXT).tolist())
    edits = without_heads([(layer, head) for layer, head in heads])
    if name == "surprisal":
        found = surprisal(model, idx, edits=edits)
        labels = labels_of(tokenizer, idx.tolist())
        return {
            "labels": labels,
            "bits": [None, *found.bits.tolist()],
            "mean_bits": found.mean_bits,
        }
    if name in ("lens", "continue"):
        view, count = {"lens": (lens_view, 10), "continue": (continuation_view, 5)}[name]
        return view(model, tokenizer, idx, count, edits)
    return {"attention": attention_view, "picture": picture_view}[name](
        model, tokenizer, idx, edits
    )


def assert_close(found: Any, wanted: Any) -> None:
    """Equal, but for the last digits of numbers."""
    if isinstance(wanted, dict | list | tuple):
        assert len(found) == len(wanted)
        for key in wanted if isinstance(wanted, dict) else range(len(wanted)):
            assert_close(found[key], wanted[key])
    else:
        assert found == (
            pytest.approx(wanted, rel=1e-3, abs=1e-6) if isinstance(wanted, float) else wanted
        )


@pytest.mark.parametrize("name", ["attention", "lens", "surprisal", "picture", "continue"])
def test_readings_are_the_views(server: Served, char_model: CharModel, name: str) -> None:
    for heads in ([], HEADS):
        answer = ask(
            server,
            name,
            model="first",
            ablate=heads,
            **({"count": 5} if name == "continue" else {}),
        )
        assert answer.status_code == 200, answer.text
        assert_close(answer.json(), page_data(name, view_of(name, *char_model, heads)))


@pytest.mark.parametrize(
    ("name", "param", "value", "words"),
    [
        ("lens", "text", "", "at least 1"),
        ("lens", "text", "Zürich", "ü"),
        ("picture", "text", "It" * 32 + "I", "65"),
        ("surprisal", "text", "I", "1 token"),
        ("attention", "ablate", [[2, 0]], "2 layers of 4"),
        ("attention", "ablate", [[0, 4]], "no head 4"),
        ("attention", "ablate", [[0, -1]], "greater"),
        ("attention", "ablate", [[0]], "2 items"),
        ("continue", "count", 129, "128"),
        ("picture", "heads", [], "not permitted"),
        ("generate", "alternatives", 5000, "4096"),
        *(("generate", "prompt", prompt, "") for prompt in (5, "\u0416", [10**6])),
        *(("generate", "max_tokens", count, "") for count in (10**6, -1)),
        *(("generate", name, -1, "") for name in ("top_k", "top_p", "known")),
        ("generate", "temperature", 3.0, ""),
        ("generate", "stop", ["a"], "not permitted"),
    ],
)
def test_wrong_field_is_named(
    server: Served, name: str, param: str, value: Any, words: str
) -> None:
    text = "prompt" if name == "generate" else "text"
    assert_is_error(
        server.post(f"/api/{name}", **{text: "It was", param: value}), 400, param, words
    )


def test_text_fills_the_window_and_is_continued_from_its_end(
    server: Served, byte_server: Served
) -> None:
    for name in ("attention", "lens", "surprisal", "picture"):
        assert ask(server, name, text="It" * 32).status_code == 200
    whole, end = (
        ask(server, "continue", text=text, count=4).json()["ids"] for text in ("It" * 40, "It" * 32)
    )
    assert whole == end
    for text in ("é" * 40, "a" * 70):
        assert_is_error(ask(byte_server, "lens", text=text), 400, "text", "64")


def test_tokens_of_a_text_are_counted_and_not_its_characters(serve: Serve) -> None:
    tokenizer = learn_bpe([CORPUS], 320)
    text = CORPUS[:60]
    window = len(tokenizer.encode(text))
    assert window < len(text)
    model = sharp_model(vocab_size=tokenizer.vocab_size, block_size=window)
    with serve(loaded=make_loaded(model, tokenizer)) as served:
        for name in ("attention", "lens", "surprisal", "picture"):
            assert ask(served, name, text=text).status_code == 200
            assert_is_error(
                ask(served, name, text=text + "?"),
                400,
                "text",
                f"{window + 1} tokens",
                f"the {window}",
            )
            assert_is_error(
                ask(served, name, text="e" * 10**6),
                400,
                "text",
                "1000000 characters",
                f"{window} tokens",
            )
            whole = ask(served, name, text=text).json()
            assert ask(served, name, text=text, last=1000).json() == whole
        ids = tokenizer.encode("It " * 2000 + text).tolist()
        for last, read in ((5, 5), (1000, window)):
            answer = ask(served, "lens", text="It " * 2000 + text, last=last).json()
            assert (answer["read"], answer["labels"]) == (read, labels_of(tokenizer, ids[-read:]))


def test_given_limits_are_kept_and_no_reading_is_infinite(
    serve: Serve, char_model: CharModel
) -> None:
    with serve(limits=Limits(view_tokens=5, view_bytes=1 << 20)) as served:
        for name in ("lens", "continue"):
            assert ask(served, name, text="It wa").status_code == 200
            assert_is_error(ask(served, name, text="It was"), 400, "text", "6", "5")
    for name, limit in (
        ("attention", 1000),
        ("lens", 10_000),
        ("picture", 9000),
    ):  # more than its weights alone have
        with serve(limits=Limits(view_bytes=limit)) as served:
            assert_is_error(
                ask(served, name),
                400,
                "text",
                f"more than this server's limit of {limit:,}",
                "shorten",
            )
    broken = GPT(char_model[0].config).eval()
    broken.lm_head.weight.data.fill_(float("nan"))
    with serve(loaded=make_loaded(broken, char_model[1])) as served:
        assert_is_error(ask(served, "lens"), 400, "text", "not finite")
