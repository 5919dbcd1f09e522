"""What heads are named after, on weights that look at one kind of place only."""

import json
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from gpt.inspection.rendering.pages import page_data
from gpt.inspection.views.tokens import View
from interop.node import run_page

TEXT = "the cat⏎sat on the⏎catsup then"
Keys = Callable[[int], list[int]]


def earlier(query: int) -> list[int]:
    return [key for key in range(query) if TEXT[key] == TEXT[query]]


def around(start: int, query: int) -> list[int]:
    return [key for key in (start - 1, start) if 0 <= key <= query - 1]


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


def test_a_head_has_the_name_of_what_it_looks_at() -> None:
    assert measure([head(keys) for keys in HEADS.values()]) == list(HEADS)


def test_a_head_that_looks_everywhere_or_mostly_elsewhere_has_no_name() -> None:
    weak = [head(keys, 0.1) for keys in HEADS.values()]
    assert measure([head(lambda _: []), *weak]) == [None] * 8


def test_the_measure_is_an_average_over_the_queries_that_have_such_a_key() -> None:
    """ "abab": two queries have the same letter before them, each with one key."""
    text = "abababxy"
    weights = torch.eye(8)
    weights[2] = torch.tensor([0.5, 0.25, 0.25, 0, 0, 0, 0, 0])
    measures = measure([weights], "measured[0].measures.find(({ name }) => name === 'duplicate')", text)
    even = (1 / 3 + 1 / 4 + 2 / 5 + 2 / 6) / 4
    expected = {"name": "duplicate", "weight": 0.5 / 4, "even": even, "lead": 0.5 / 4 - even}
    assert measures == pytest.approx(expected, abs=1e-4)


def test_what_has_no_glyph_is_no_part_of_a_word_and_a_line_may_start_with_white_space() -> None:
    labels = ["a", "b", "CR⏎", "⏎␣", "c", "d", "e", "f", "U+200B", "#12", "g", "h", "i", "j"]
    found = measure(
        [torch.eye(len(labels))],
        "['line start', 'word start'].map((kind) => measured[0].measures.find(({ name }) => name === kind).even)",
        labels,
    )
    lines = sum(2 / (query + 1) for query in range(6, 14)) / 8
    words = sum(2 / (query + 1) for query in (6, 7, 12, 13)) / 4
    assert found == pytest.approx([lines, words])


def test_too_few_queries_name_nothing() -> None:
    assert measure([torch.eye(3)], labels="aaa") == [None]


def test_the_most_telling_head_leads_by_most_but_not_by_looking_at_the_first_or_at_itself() -> None:
    heads = [head(HEADS["first"]), head(HEADS["itself"]), head(HEADS["previous"], 0.5), head(HEADS["previous"], 0.75)]
    assert measure(heads, "mostTelling(measured, [0, 1, 2, 3])") == 3
    assert measure(heads, "mostTelling(measured, [0, 1, 2])") == 2
    assert measure(heads, "mostTelling(measured, [1])") == 1
