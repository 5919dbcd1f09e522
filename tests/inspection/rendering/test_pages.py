"""The pages as text: whole, harmless, and with the numbers of the view inside."""

import base64
import fnmatch
import json
import re
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from torch import Tensor

import gpt
from gpt.config import SamplingParams
from gpt.data.tokenizers import CharTokenizer
from gpt.errors import InputError
from gpt.inspection.rendering import pages
from gpt.inspection.rendering.pages import KINDS, render_page
from gpt.inspection.views.attention import attention_view
from gpt.inspection.views.lens import lens_view
from gpt.inspection.views.operations import trace_view
from gpt.inspection.views.surprisal import surprisal_view
from gpt.inspection.views.tokens import View
from tiny import sharp_model

TEXT = "the key,\nthe door"
HOSTILE = "</script><img src=x onerror=alert(1)><!-- $data ${title} &amp; \u2028 \ud800"
VOID = {"meta", "link", "input", "br", "wbr", "img"}
every_kind = pytest.mark.parametrize("kind", KINDS)


def view_of(kind: str, text: str = TEXT) -> View:
    tokenizer = CharTokenizer(TEXT)
    model = sharp_model(vocab_size=tokenizer.vocab_size, block_size=len(TEXT))
    idx = torch.as_tensor(tokenizer.encode(text)).long()
    if kind == "surprisal":
        return surprisal_view(model, tokenizer, idx, SamplingParams(temperature=0.7, top_k=3))
    return {"attention": attention_view, "lens": lens_view, "trace": trace_view}[kind](model, tokenizer, idx)


class Document(HTMLParser):
    """What a browser would find; fails on an element that is closed wrongly or not at all."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self.open: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            place = (self.tags[-1][1].get("id") or "") if self.open[-1] == "script" else self.open[-1]
            self.texts[place] = self.texts.get(place, "") + data

    @property
    def data(self) -> View:
        return json.loads(self.texts["data"])


def unpack(data: View) -> Tensor:
    """(L, H, T, T) from the bytes, one number at a time."""
    packed, size = base64.b64decode(data["weights"]), len(data["labels"])
    weights, at = torch.zeros(data["layers"], data["heads"], size, size), 0
    for layer in range(data["layers"]):
        for head in range(data["heads"]):
            for query in range(size):
                for key in range(query + 1):
                    weights[layer, head, query, key] = int.from_bytes(packed[at : at + 2], "little") / 65535
                    at += 2
    assert at == len(packed)
    return weights


@every_kind
def test_a_page_is_one_whole_document_in_a_language(kind: str) -> None:
    page = render_page(kind, view_of(kind), "A title", "a note")
    document = Document(page)
    names = [tag for tag, _ in document.tags]
    assert page.startswith("<!DOCTYPE html>\n")
    assert [names.count(tag) for tag in ("html", "head", "title", "style", "body", "main", "h1", "script")] == [
        *[1] * 7,
        2,
    ]
    assert document.tags[0] == ("html", {"lang": "en"})
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in document.tags
    assert document.texts["title"] == document.texts["h1"] == "A title"
    assert "a note" in document.texts["p"]
    identifiers = [attributes["id"] for _, attributes in document.tags if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))


@every_kind
def test_a_page_asks_nothing_of_anyone(kind: str) -> None:
    page = render_page(kind, view_of(kind), "A title", "a note")
    document = Document(page)
    sources = {
        value
        for _, attributes in document.tags
        for name, value in attributes.items()
        if name in {"src", "href", "srcset", "action", "data", "poster"}
    }
    assert sources == {"data:,"}  # the icon, which a browser would else ask the server for
    code = page.replace(document.texts["data"], "")
    assert not re.search(r"""https?:|["'(=]\s*//|url\(|@import|import\(|fetch\(|XMLHttp|innerHTML|eval\(""", code)
    policy = next(tag["content"] for _, tag in document.tags if tag.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none';")


@every_kind
def test_every_element_that_a_script_asks_for_is_there(kind: str) -> None:
    page = render_page(kind, view_of(kind), "A title", "a note")
    document = Document(page)
    there = {attributes.get("id") for _, attributes in document.tags}
    there |= {name for _, attributes in document.tags for name in (attributes.get("class") or "").split()}
    wanted = set(re.findall(r'(?:byId|find)\("([^"]+)"\)', page))
    assert wanted
    assert wanted <= there


@pytest.mark.parametrize("text", [TEXT, TEXT[:1]], ids=["text", "one token"])
def test_attention_weights_come_through(text: str) -> None:
    view = view_of("attention", text)
    data = Document(render_page("attention", view, "A title", "")).data
    assert data["labels"] == view["labels"]
    assert (unpack(data) - view["weights"]).abs().max() <= 0.5001 / 65535


@pytest.mark.parametrize("kind", ["lens", "surprisal", "trace"])
def test_views_come_through(kind: str) -> None:
    view = view_of(kind)

    def close(found: object, expected: object) -> bool:
        if isinstance(expected, dict):
            return found.keys() == expected.keys() and all(close(found[key], expected[key]) for key in expected)
        if isinstance(expected, (list, tuple)):
            return len(found) == len(expected) and all(map(close, found, expected))
        return found == (pytest.approx(expected, rel=1e-4) if isinstance(expected, float) else expected)

    assert close(Document(render_page(kind, view, "A title", "")).data, view)


def test_a_lens_of_one_token_has_a_page() -> None:
    assert Document(render_page("lens", view_of("lens", "t"), "A title", "")).data["next"] == [None]


@every_kind
def test_hostile_text_stays_text(kind: str) -> None:
    harmless = Document(render_page(kind, view_of(kind), "A title", "a note"))
    view = {**view_of(kind), "labels": [HOSTILE] * len(TEXT)}
    shown = HOSTILE.replace("\ud800", "")  # what a command line can pass on
    document = Document(render_page(kind, view, shown, shown))
    assert document.tags == harmless.tags
    assert document.data["labels"] == [HOSTILE] * len(TEXT)
    assert document.texts["title"] == document.texts["h1"] == shown


def test_attention_starts_with_the_head_that_is_asked_for() -> None:
    data = Document(render_page("attention", {**view_of("attention"), "layer": 1, "head": 3}, "A title", "")).data
    assert (data["layer"], data["head"]) == (1, 3)


@pytest.mark.parametrize(("name", "value", "last"), [("layer", 2, 1), ("head", 4, 3), ("head", -1, 3)])
def test_a_head_that_is_not_there_is_named(name: str, value: int, last: int) -> None:
    with pytest.raises(InputError, match=f"no {name} {value}; they go from 0 to {last}"):
        render_page("attention", {**view_of("attention"), name: value}, "A title", "")


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(ValueError, match="'lense'; there are attention, lens, surprisal, trace"):
        render_page("lense", view_of("lens"), "A title", "")


@every_kind
def test_values_that_are_not_finite_are_refused(kind: str) -> None:
    broken = {
        "attention": {"weights": torch.full((1, 1, 2, 2), torch.nan)},
        "surprisal": {"mean_bits": float("inf")},
        "lens": {"next_probability": [[float("nan")]]},
        "trace": {"operations": [float("-inf")]},
    }[kind]
    with pytest.raises(InputError, match="not finite"):
        render_page(kind, {**view_of(kind), **broken}, "A title", "")


def test_an_installed_package_has_the_static_files() -> None:
    package = Path(gpt.__file__).parent
    settings = tomllib.loads((package.parent / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["gpt"]
    files = [path for path in Path(pages.__file__).parent.iterdir() if path.is_file() and path.suffix != ".py"]
    assert files
    for path in files:
        name = path.relative_to(package).as_posix()
        assert any(fnmatch.fnmatch(name, pattern) for pattern in patterns), name
