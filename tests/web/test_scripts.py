"""Scripts of the pages, under Node: what heads are named after, and the colors of probabilities."""

import itertools
import json
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from export.node import run_page
from gpt.extras.inspection.rendering.pages import page_data
from gpt.extras.inspection.views.tokens import View

TEXT = "the cat⏎sat on the⏎catsup then"
Keys = Callable[[int], list[int]]
PAINTED = """
globalThis.matchMedia = () => ({ matches: DARK, addEventListener() {} });
return Array.from({ length: 201 }, (_, step) => {
  const style = {};
  paint({ style }, step / 200);
  return [style.color, colorOf(step / 200)];
});
"""


def around(start: int, query: int) -> list[int]:
    return [key for key in (start - 1, start) if 0 <= key <= query - 1]


def earlier(query: int) -> list[int]:
    return [key for key in range(query) if TEXT[key] == TEXT[query]]


def line_start(query: int) -> list[int]:
    start = TEXT.rfind("⏎", 0, query) + 1
    return around(start, query) if start else []


def word_start(query: int) -> list[int]:
    word = TEXT[:query].replace("⏎", " ").rsplit(" ", 1)[-1]
    return around(query - len(word), query) if TEXT[query].isalpha() and len(word) > 1 else []


HEADS: dict[str, Keys] = {
    "previous": lambda query: [query - 1],
    "duplicate": earlier,
    "induction": lambda query: [key + 1 for key in earlier(query)],
    "line start": line_start,
    "word start": word_start,
    "first": lambda _: [0],
    "itself": lambda query: [query],
}


def head(keys: Keys, strength: float = 1.0) -> Tensor:
    """Weights (T, T) of which so much is on these keys, and the rest, or all where there are none, spread evenly."""
    even = torch.ones(len(TEXT), len(TEXT)).tril() / torch.arange(1.0, len(TEXT) + 1)[:, None]
    weights = even.clone()
    for query in range(1, len(TEXT)):
        if there := keys(query):
            weights[query] *= 1 - strength
            weights[query, there] += strength / len(there)
    return weights


def measure(
    heads: list[Tensor], code: str = "measured.map(({ kind }) => kind)", labels: Sequence[str] = TEXT
) -> object:
    view: View = {"labels": list(labels), "weights": torch.stack(heads)[None]}
    data = json.dumps(page_data("attention", view))
    known = f"const view = {data}; const measured = measureHeads(new Heads(view), view.labels);"
    return run_page("", f"{known} return {code};")


def test_head_has_the_name_of_what_it_looks_at() -> None:
    weak = [head(keys, 0.1) for keys in HEADS.values()]  # which look mostly elsewhere
    found = measure([*(head(keys) for keys in HEADS.values()), head(lambda _: []), *weak])
    assert found == [*HEADS, *[None] * 8]
    assert measure([torch.eye(3)], labels="aaa") == [None]  # too few queries


def test_measure_averages_over_queries_that_have_such_a_key() -> None:
    """ "abab": two queries have the same letter before them, each with one key."""
    text = "abababxy"
    weights = torch.eye(8)
    weights[2] = torch.tensor([0.5, 0.25, 0.25, 0, 0, 0, 0, 0])
    measures = measure([weights], "measured[0].measures.find(({ name }) => name === 'duplicate')", text)
    even = (1 / 3 + 1 / 4 + 2 / 5 + 2 / 6) / 4
    expected = {"name": "duplicate", "weight": 0.5 / 4, "even": even, "lead": 0.5 / 4 - even}
    assert measures == pytest.approx(expected, abs=1e-4)


def test_words_have_glyphs_and_lines_may_start_with_white_space() -> None:
    labels = ["a", "b", "CR⏎", "⏎␣", "c", "d", "e", "f", "U+200B", "#12", "g", "h", "i", "j"]
    found = measure(
        [torch.eye(len(labels))],
        "['line start', 'word start'].map((kind) => measured[0].measures.find(({ name }) => name === kind).even)",
        labels,
    )
    lines = sum(2 / (query + 1) for query in range(6, 14)) / 8
    words = sum(2 / (query + 1) for query in (6, 7, 12, 13)) / 4
    assert found == pytest.approx([lines, words])


def test_most_telling_head_leads_but_not_at_the_first_or_itself() -> None:
    heads = [head(HEADS["first"]), head(HEADS["itself"]), head(HEADS["previous"], 0.5), head(HEADS["previous"], 0.75)]
    assert measure(heads, "mostTelling(measured, [0, 1, 2, 3])") == 3
    assert measure(heads, "mostTelling(measured, [0, 1, 2])") == 2
    assert measure(heads, "mostTelling(measured, [1])") == 1


def luminance(channels: list[int]) -> float:
    """The relative luminance of WCAG 2."""
    shares = [value / 255 for value in channels]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(("dark", "page"), [(False, 1.0), (True, luminance([0x11, 0x14, 0x1A]))])
def test_text_is_legible_on_every_color(dark: bool, page: float) -> None:
    painted = run_page("", PAINTED.replace("DARK", str(dark).lower()))
    found = [luminance(channels) for _, channels in painted]
    for ink, value in zip((ink for ink, _ in painted), found, strict=True):
        contrast = 1.05 / (value + 0.05) if ink == "#fff" else (value + 0.05) / 0.05
        assert contrast >= 4.5
    lighter, darker = max(found[0], page), min(found[0], page)
    assert (lighter + 0.05) / (darker + 0.05) < 1.2
    steps = [after - before for before, after in itertools.pairwise(found)]
    assert all(step > 0 for step in steps) == dark
    assert all(step < 0 for step in steps) != dark
