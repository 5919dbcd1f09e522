"""Scripts of the pages, under Node: what heads are named after, and the colors of probabilities."""

import json
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from export.node import run_page
from gpt.extras.inspection.rendering.pages import page_data
from gpt.extras.inspection.views.tokens import View

TEXT = "the cat⏎sat on the⏎catsup then"
Keys = Callable[[int], list[int]]


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
    """Weights (T, T) of which so much is on these keys, and the rest, or all where there are none,
    spread evenly.
    """
    even = torch.ones(len(TEXT), len(TEXT)).tril() / torch.arange(1.0, len(TEXT) + 1)[:, None]
    weights = even.clone()
    for query in range(1, len(TEXT)):
        if there := keys(query):
            weights[query] *= 1 - strength
            weights[query, there] += strength / len(there)
    return weights


def measure(
    heads: list[Tensor],
    code: str = "measured.map(({ kind }) => kind)",
    labels: Sequence[str] = TEXT,
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
