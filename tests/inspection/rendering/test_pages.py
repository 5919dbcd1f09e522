"""Pages, curves and tables as text: whole, harmless, and with the numbers of the view inside."""

import base64
import html
import json
import re

import numpy as np
import pytest
import torch

from gpt.data.tokenizers import CharTokenizer
from gpt.extras.inspection.rendering.pages import render_page
from gpt.extras.inspection.views.attention import attention_view
from gpt.extras.inspection.views.lens import lens_view
from gpt.extras.inspection.views.picture import picture_view
from gpt.extras.inspection.views.tokens import View
from gpt.system.errors import InputError
from tiny import sharp_model

TEXT = "the key,\nthe door"
HOSTILE = "</script><img src=x onerror=alert(1)><!-- $data ${title} &amp; \u2028 \ud800"
VIEWS = {"attention": attention_view, "lens": lens_view, "picture": picture_view}
every_kind = pytest.mark.parametrize("kind", VIEWS)


def view_of(kind: str, text: str = TEXT) -> View:
    tokenizer = CharTokenizer(TEXT)
    model = sharp_model(vocab_size=tokenizer.vocab_size, block_size=len(TEXT))
    return VIEWS[kind](model, tokenizer, torch.as_tensor(tokenizer.encode(text)).long())


def data_of(kind: str, view: View) -> View:
    """What the script of a page reads."""
    (data,) = re.findall(
        r'id="data">([^<]*)</script>', render_page(kind, view, "A title", "a note")
    )
    return json.loads(data)


@every_kind
def test_page_is_one_whole_document_that_asks_nothing_of_anyone(kind: str) -> None:
    page = render_page(kind, view_of(kind), "A title", "a note")
    assert page.startswith('<!DOCTYPE html>\n<html lang="en">')
    for tag in ("html", "head", "title", "style", "body", "main", "h1"):
        assert (len(re.findall(rf"<{tag}[ >]", page)), page.count(f"</{tag}>")) == (1, 1), tag
    assert page.count("<script") == page.count("</script>") == 2
    assert page.count("A title</") == 2
    # The page's icon, an empty one, is its only address.
    assert set(re.findall(r'\s(?:src|href|srcset|action|data|poster)="([^"]*)"', page)) == {
        "data:,"
    }
    code = re.sub(r'id="data">[^<]*', "", page)
    assert not re.search(
        r"""https?:|["'(=]\s*//|url\(|@import|import\(|fetch\(|XMLHttp|innerHTML|eval\(""", code
    )
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy.startswith("default-src 'none';")
    assert "connect-src" not in policy


@pytest.mark.parametrize("text", [TEXT, TEXT[:1]], ids=["text", "one token"])
def test_page_keeps_attention_weights(text: str) -> None:
    view = view_of("attention", text)
    data = data_of("attention", {**view, "layer": 1, "head": 3})
    assert (data["labels"], data["layer"], data["head"]) == (view["labels"], 1, 3)
    rows, columns = torch.tril_indices(len(text), len(text)).unbind()
    expected = view["weights"][:, :, rows, columns].flatten()
    packed = np.frombuffer(base64.b64decode(data["weights"]), dtype="<u2").astype(np.float64)
    torch.testing.assert_close(
        torch.tensor(packed / 65535), expected.double(), atol=0.5001 / 65535, rtol=0
    )


def test_page_keeps_the_vectors_of_a_picture() -> None:
    view = view_of("picture")
    view["added"][:, 0] *= 1000  # as the first token of a trained model often has it
    data = data_of("picture", view)
    for name in ("added", "queries", "keys", "hidden"):
        vectors = view[name]
        packed = data[name]
        steps = torch.tensor(
            np.frombuffer(base64.b64decode(packed["numbers"]), dtype="<i2").astype(np.float32)
        )
        found = steps.view(vectors.shape) * torch.tensor(packed["scales"]).view(
            *vectors.shape[:-1], 1
        )
        largest = vectors.abs().amax(dim=-1, keepdim=True)
        torch.testing.assert_close(found / largest, vectors / largest, atol=1e-4, rtol=0)
    assert (
        data["weights"]
        == data_of("attention", {key: view[key] for key in ("labels", "weights")})["weights"]
    )


@pytest.mark.parametrize("text", [TEXT, "t"])
def test_page_keeps_a_lens(text: str) -> None:
    def rounded(value: object) -> object:
        if isinstance(value, (list, tuple)):
            return [rounded(entry) for entry in value]
        return pytest.approx(value, rel=1e-4) if isinstance(value, float) else value

    view = view_of("lens", text)
    assert data_of("lens", view) == {key: rounded(value) for key, value in view.items()}


@every_kind
def test_hostile_text_stays_text(kind: str) -> None:
    labels = [HOSTILE] * len(TEXT)
    shown = HOSTILE.replace("\ud800", "")  # what a command line can pass on
    page, harmless = (
        render_page(kind, {**view_of(kind), "labels": labels}, title, title)
        for title in (shown, "A title")
    )
    assert page.replace(html.escape(shown), "A title") == harmless
    assert "<img" not in page
    assert data_of(kind, {**view_of(kind), "labels": labels})["labels"] == labels


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("attention", {"layer": 2}, "no layer 2; they go from 0 to 1"),
        ("attention", {"head": -1}, "no head -1; they go from 0 to 3"),
        ("attention", {"weights": torch.full((1, 1, 2, 2), torch.nan)}, "not finite"),
        ("lens", {"next_probability": [[float("nan")]]}, "not finite"),
    ],
)
def test_page_refuses_what_cannot_be_shown(kind: str, changes: View, message: str) -> None:
    with pytest.raises(InputError, match=message):
        data_of(kind, {**view_of(kind), **changes})
