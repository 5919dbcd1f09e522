"""What every view that reads a text has in common: prompts, edits, files, forms and messages."""

import io
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from cli.conftest import Call
from gpt.checkpoint import Loaded
from gpt.cli.explain.attention import GRAYS, SHADES, heat_map, numbers
from gpt.cli.explain.text_options import read_edits

VIEWS = ("attention", "lens", "surprisal")
every_view = pytest.mark.parametrize("view", VIEWS)
PAGES = VIEWS[:2]
pytestmark = pytest.mark.usefixtures("here")


def test_edits_are_factors_of_activations_or_heads() -> None:
    edits = read_edits(Namespace(edit=["blocks.0.attn.hook_z:1=0.5", "hook_embed=-2", "hook_embed=0"]))
    assert list(edits) == ["blocks.0.attn.hook_z", "hook_embed"]
    (one,), (whole, again) = edits.values()
    assert [edit.head for edit in (one, whole, again)] == [1, None, None]
    assert [edit.change(torch.tensor(3.0)).item() for edit in (one, whole, again)] == [1.5, -6.0, 0.0]
    assert again.change(torch.tensor([-torch.inf, 1.0])).tolist() == [0.0, 0.0], "not a product"
    assert read_edits(Namespace(edit=[])) == {}


@every_view
def test_standard_input_is_a_prompt_and_the_source_is_the_checkpoint(
    run: Call, loaded: Loaded, view: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"It was")))
    read = run(f"explain {view} --prompt - --json").json
    assert read["labels"] == ["I", "t", "␣", "w", "a", "s"]
    assert read == run(f"explain {view} --prompt 'It was' --json --checkpoint runs/tiny").json
    assert Path(read["source"]).resolve() == loaded.folder.resolve()


@pytest.mark.parametrize("view", ["", "shapes", "picture", "flops", *VIEWS])
def test_help_ends_with_an_example(run: Call, view: str) -> None:
    *_, heading, example = run(f"explain {view} --help").out.rstrip().splitlines()
    assert heading == "example:"
    assert example.startswith(f"  gpt explain {view or 'attention'} --")


@pytest.mark.parametrize(
    ("view", "words"),
    [
        ("attention", ["computing the attention weights of 6 tokens", "measuring the loss without each head"]),
        ("lens", ["computing the logit lens of 6 tokens"]),
        ("surprisal", ["computing the surprisal of 6 tokens"]),
        ("shapes", ["tracing the forward pass"]),
    ],
)
def test_what_takes_long_is_announced(run: Call, monkeypatch: pytest.MonkeyPatch, view: str, words: list[str]) -> None:
    @contextmanager
    def at_once(report: Callable[[str], None], line: str) -> Iterator[None]:
        report(line)
        yield

    monkeypatch.setattr(f"gpt.cli.explain.{view}.announced", at_once)
    assert run(f"explain {view} --prompt 'It was'").err.splitlines() == words


@pytest.mark.parametrize(
    ("view", "rows", "bars"),
    [("attention --prompt 'It was'", 2, 9), ("lens --prompt 'It was'", 4, 3), ("surprisal --prompt 'It was'", 6, 7)],
)
def test_markdown_is_a_table(run: Call, view: str, rows: int, bars: int) -> None:
    title, *lines = run(f"explain {view} --markdown").out.splitlines()
    assert title.startswith("## ")
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + rows
    assert {line.count("|") for line in table} == {bars}


class Addresses(HTMLParser):
    """What a page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        loads = {"src"} if tag != "link" else {"href"}
        self.found += [value or "" for name, value in attrs if name in loads]


@pytest.mark.parametrize("view", PAGES)
def test_a_picture_and_a_page_are_written_and_named(run: Call, tmp_path: Path, view: str) -> None:
    """The same twice, over what is there; the page needs no network."""
    contents = []
    for number in "112":
        paths = [tmp_path / f"{number}.{kind}" for kind in ("png", "html")]
        written = run(f"explain {view} --prompt 'It was' --png {paths[0]} --html {paths[1]}")
        assert written == (0, f"{paths[0]}\n{paths[1]}\n", "")
        contents.append([path.read_bytes() for path in paths])
    assert contents[0] == contents[1] == contents[2]
    assert len(list(tmp_path.iterdir())) == 4
    assert contents[0][0].startswith(b"\x89PNG\r\n\x1a\n")
    page, addresses = contents[0][1].decode(), Addresses()
    assert page.startswith("<!")
    assert "</html>" in page
    addresses.feed(page)
    assert [address for address in addresses.found if not address.startswith("data:")] == []
    assert not re.search(r"@import|fetch\(|XMLHttpRequest|url\((?!['\"]?data:)", page)


@pytest.mark.parametrize("options", ["", "--layer 0", "--layer 0 --head 1"])
def test_attention_is_drawn_as_it_was_chosen(run: Call, tmp_path: Path, options: str) -> None:
    run(f"explain attention --prompt 'It was' --png {tmp_path}/view.png {options}")
    width = int.from_bytes((tmp_path / "view.png").read_bytes()[16:20], "big")
    assert width == (120 * 5 if "--head" in options else round(120 * 4.4))


@pytest.mark.parametrize(("view", "kind"), [*((view, "png") for view in VIEWS), *((view, "html") for view in PAGES)])
def test_what_cannot_be_written_or_drawn_is_told_and_leaves_no_file(
    refuse: Callable[..., str], tmp_path: Path, view: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    write = f"explain {view} --prompt 'It was' --{kind} {folder}"
    assert refuse(f"{write}/gone/view") == f"error: cannot write {folder}/gone/view: No such file or directory"
    assert refuse(write) == f"error: cannot write {folder}: Is a directory"
    refuse(f"explain {view} --prompt Itä --{kind} {folder}/view")
    if kind == "png":
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        assert "pip install 'glassgpt[plot]'" in refuse(f"{write}/view")
    assert list(tmp_path.rglob("*")) == [folder]


MATRIX = [[1.0, 0.0, 0.0], [0.3, 0.7, 0.0], [0.1, 0.45, 0.45]]
LABELS = ["a", "⏎", "U+200B"]


def test_a_matrix_is_shades_colors_or_numbers() -> None:
    assert heat_map(MATRIX, LABELS, color=False).splitlines() == [
        "       a ⏎ ·",
        "     a ██",
        "     ⏎ ▒▒██",
        "U+200B ░░▓▓▓▓",
    ]
    assert numbers(MATRIX, LABELS).splitlines() == [
        "                 0     1     2",
        "                 a     ⏎U+200B",
        "    0      a 1.000     .     .",
        "    1      ⏎ 0.300 0.700     .",
        "    2 U+200B 0.100 0.450 0.450",
    ]
    shades = {0.0: " ", 0.03: " ", 0.05: "░", 0.2: "▒", 0.5: "▓", 0.63: "▓", 0.65: "█", 1.0: "█"}
    grays = {0.0: 16, 1.0: 231, 0.2: 236, -0.1: 16, 1.0000001: 231}  # rounding may go past the ends
    assert set(SHADES) == set(shades.values())
    assert set(grays.values()) <= set(GRAYS)
    for value, shade in shades.items():
        assert heat_map([[value]], ["a"], color=False).splitlines()[1] == f"a {shade * 2}"
    for value, gray in grays.items():
        assert heat_map([[value]], ["a"], color=True).splitlines()[1] == f"a \x1b[48;5;{gray}m  \x1b[0m"
    lines = numbers([[0.0] * 120] * 120, ["x"] * 120).splitlines()
    assert {len(line) for line in lines} == {len(lines[0])}
    assert lines[0].split() == [str(column) for column in range(120)]
