import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gpt.checkpoint import Loaded
from gpt.cli.explain.lens import _tables
from gpt.inspection.tracing.edits import zero
from gpt.inspection.views.lens import lens_view

PROMPT = "It was"
EDIT = "blocks.0.attn.hook_z:1=0"


def view_of(loaded: Loaded, count: int = 5, **options: Any) -> dict[str, Any]:
    ids = torch.tensor(loaded.tokenizer.encode(PROMPT).tolist())
    return lens_view(loaded.model, loaded.tokenizer, ids, count, **options)


def test_json_holds_the_view(run: Any, loaded: Loaded) -> None:
    found = json.loads(run("lens", "--prompt", PROMPT, "--json", "--top", "3").out)
    expected = json.loads(json.dumps(view_of(loaded, 3)))
    assert found.pop("source")
    assert found == expected
    assert len(found["top"][1][5]) == 3


def test_json_holds_the_view_of_an_edited_model(run: Any, loaded: Loaded) -> None:
    found = json.loads(run("lens", "--prompt", PROMPT, "--json", "--edit", EDIT).out)
    edited = view_of(loaded, edits={"blocks.0.attn.hook_z": zero(1)})
    assert found["top"] == json.loads(json.dumps(edited["top"]))
    assert found["top"][1] != json.loads(json.dumps(view_of(loaded)["top"][1]))


def test_the_table_has_a_row_for_every_stream_the_last_on_top(run: Any, loaded: Loaded) -> None:
    result = run("lens", "--prompt", PROMPT)
    assert result.code == 0
    lines = dict(
        line.split("  ", 1) for line in result.out.splitlines() if line.startswith(("text", "actual", "after"))
    )
    view = view_of(loaded)
    assert lines["text"].strip() == "It␣was"
    assert lines["actual next"].strip() == "t␣was"
    assert [name for name in lines if name.startswith("after")] == ["after block 0", "after embeddings"]
    assert lines["after block 0"].strip() == "".join(cell[0][0] for cell in view["top"][1])
    assert lines["after embeddings"].strip() == "".join(cell[0][0] for cell in view["top"][0])


def test_long_tokens_have_columns_of_their_own_six_in_a_table() -> None:
    words = [f"␣word{index}" for index in range(7)]
    top = [[("␣an", 0.5)], [("␣extraordinary", 0.5)], *([("␣x", 0.5)] for _ in range(5))]
    view = {"labels": words, "rows": ["embeddings"], "top": [top], "next": [*words[1:], None]}
    first, second = _tables(view)
    assert first.header == ("", "0", "1", "2", "3", "4", "5")
    assert first.rows[0] == ("text", *words[:6])
    assert first.rows[2][:3] == ("after embeddings", "␣an", "␣extraord…")
    assert second.header == ("", "6")
    assert second.rows == [("text", "␣word6"), ("actual next", " "), ("after embeddings", "␣x")]


def test_a_name_of_more_than_one_character_is_a_placeholder() -> None:
    view = {
        "labels": ["a", "CR"],
        "rows": ["embeddings"],
        "top": [[[("U+0000", 0.5)], [("b", 0.5)]]],
        "next": ["CR", None],
    }
    (table,) = _tables(view)
    assert [row[1] for row in table.rows] == ["a·", "· ", "·b"]
    assert "· is a token whose label has more than one character" in table.note


@pytest.mark.parametrize("position", [0, 5])
def test_one_position_shows_the_most_likely(run: Any, loaded: Loaded, position: int) -> None:
    out = run("lens", "--prompt", PROMPT, "--position", str(position), "--top", "2").out
    line = next(line for line in out.splitlines() if line.startswith("after block 0"))
    view = view_of(loaded)
    cells = [f"{token} {probability:.3f}" for token, probability in view["top"][1][position][:2]]
    came = view["next_probability"][1][position]
    assert line.split() == " ".join(["after block 0", *cells, "-" if came is None else f"{came:.3f}"]).split()


def test_markdown_is_a_table(run: Any) -> None:
    lines = run("lens", "--prompt", PROMPT, "--markdown").out.splitlines()
    assert lines[0].startswith("## ")
    assert {line.count("|") for line in lines if line.startswith("|")} == {3}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--position", "6"], "--position is 6, expected 0 to 5 (positions of the prompt)"),
        (["--position", "-1"], "--position is -1"),
        (["--top", "0"], "--top is 0, expected at least 1"),
        (["--top", "few"], "--top"),
        (["--position", "0", "--json"], "--position has no effect with --json, which has the whole view"),
        (["--position", "0", "--html", "x.html"], "--position has no effect with --html"),
        (["--position", "0", "--png", "x.png"], "--position has no effect with --png"),
        (["--edit", "logits=0"], "a lens reads the streams, and logits comes later"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_gives_one_line(refuse: Callable[..., str], options: list[str], words: str) -> None:
    assert words in refuse("lens", "--prompt", PROMPT, *options)
