"""Pages of views as text: whole, harmless, and with the numbers of the view inside."""

import base64
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

from gpt.data.tokenizers import CharTokenizer
from gpt.inspection.rendering.pages import render_page
from gpt.inspection.views.attention import attention_view
from gpt.inspection.views.lens import lens_view
from gpt.inspection.views.picture import picture_view
from gpt.inspection.views.tokens import View
from gpt.system.errors import InputError
from tiny import sharp_model

TEXT = "the key,\nthe door"
HOSTILE = "</script><img src=x onerror=alert(1)><!-- $data ${title} &amp; \u2028 \ud800"
every_kind = pytest.mark.parametrize("kind", ["attention", "lens", "picture"])


def view_of(kind: str, text: str = TEXT) -> View:
    tokenizer = CharTokenizer(TEXT)
    model = sharp_model(vocab_size=tokenizer.vocab_size, block_size=len(TEXT))
    idx = torch.as_tensor(tokenizer.encode(text)).long()
    views = {"attention": attention_view, "lens": lens_view, "picture": picture_view}
    return views[kind](model, tokenizer, idx)


class Document(HTMLParser):
    """What a browser would find; fails on an element that is closed wrongly or not at all."""

    def __init__(self, kind: str, view: View, title: str = "A title", note: str = "a note") -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self.open: list[str] = []
        self.text = render_page(kind, view, title, note)
        self.feed(self.text)
        self.close()
        assert not self.open
        self.data = json.loads(self.texts["data"])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta", "link"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            place = (self.tags[-1][1].get("id") or "") if self.open[-1] == "script" else self.open[-1]
            self.texts[place] = self.texts.get(place, "") + data


@every_kind
def test_a_page_is_one_whole_document_that_asks_nothing_of_anyone(kind: str) -> None:
    document = Document(kind, view_of(kind))
    names = [tag for tag, _ in document.tags]
    assert document.text.startswith("<!DOCTYPE html>\n")
    once = ("html", "head", "title", "style", "body", "main", "h1")
    assert [names.count(tag) for tag in (*once, "script")] == [*[1] * 7, 2]
    assert document.tags[0] == ("html", {"lang": "en"})
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in document.tags
    assert (document.texts["title"], document.texts["h1"], document.texts["p"][:6]) == ("A title", "A title", "a note")
    asked = {"src", "href", "srcset", "action", "data", "poster"}
    assert {value for _, own in document.tags for name, value in own.items() if name in asked} == {"data:,"}  # the icon
    code = document.text.replace(document.texts["data"], "")
    assert not re.search(r"""https?:|["'(=]\s*//|url\(|@import|import\(|fetch\(|XMLHttp|innerHTML|eval\(""", code)
    policy = next(own["content"] for _, own in document.tags if own.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    assert "connect-src" not in policy


@pytest.mark.parametrize("text", [TEXT, TEXT[:1]], ids=["text", "one token"])
def test_attention_weights_come_through(text: str) -> None:
    view = view_of("attention", text)
    data = Document("attention", {**view, "layer": 1, "head": 3}).data
    assert (data["labels"], data["layer"], data["head"]) == (view["labels"], 1, 3)
    rows, columns = torch.tril_indices(len(text), len(text)).unbind()
    expected = view["weights"][:, :, rows, columns].flatten()
    packed = np.frombuffer(base64.b64decode(data["weights"]), dtype="<u2").astype(np.float64)
    torch.testing.assert_close(torch.tensor(packed / 65535), expected.double(), atol=0.5001 / 65535, rtol=0)


def test_vectors_of_a_picture_come_through() -> None:
    view = view_of("picture")
    view["added"][:, 0] *= 1000  # as the first token of a trained model often has it
    data = Document("picture", view).data
    steps = torch.tensor(np.frombuffer(base64.b64decode(data["added"]), dtype="<i2").astype(np.float32))
    found = steps.view(view["added"].shape) * torch.tensor(data["scales"]).view(*view["added"].shape[:2], 1)
    largest = view["added"].abs().amax(dim=2, keepdim=True)
    torch.testing.assert_close(found / largest, view["added"] / largest, atol=1e-4, rtol=0)
    assert data["weights"] == Document("attention", {key: view[key] for key in ("labels", "weights")}).data["weights"]


@pytest.mark.parametrize("text", [TEXT, "t"])
def test_views_come_through(text: str) -> None:
    view = view_of("lens", text)

    def rounded(value: object) -> object:
        if isinstance(value, dict):
            return {key: rounded(entry) for key, entry in value.items()}
        if isinstance(value, (list, tuple)):
            return [rounded(entry) for entry in value]
        return pytest.approx(value, rel=1e-4) if isinstance(value, float) else value

    assert Document("lens", view).data == rounded(view)


@every_kind
def test_hostile_text_stays_text(kind: str) -> None:
    labels = [HOSTILE] * len(TEXT)
    shown = HOSTILE.replace("\ud800", "")  # what a command line can pass on
    document = Document(kind, {**view_of(kind), "labels": labels}, shown, shown)
    assert document.tags == Document(kind, view_of(kind)).tags
    assert (document.data["labels"], document.texts["title"], document.texts["h1"]) == (labels, shown, shown)


@pytest.mark.parametrize(("name", "value", "last"), [("layer", 2, 1), ("head", 4, 3), ("head", -1, 3)])
def test_a_head_that_is_not_there_is_named(name: str, value: int, last: int) -> None:
    with pytest.raises(InputError, match=f"no {name} {value}; they go from 0 to {last}"):
        Document("attention", {**view_of("attention"), name: value})


@pytest.mark.parametrize(
    ("kind", "broken"),
    [
        ("attention", {"weights": torch.full((1, 1, 2, 2), torch.nan)}),
        ("lens", {"next_probability": [[float("nan")]]}),
    ],
)
def test_values_that_are_not_finite_are_refused(kind: str, broken: View) -> None:
    with pytest.raises(InputError, match="not finite"):
        Document(kind, {**view_of(kind), **broken})
