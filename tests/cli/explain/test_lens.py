import json
from typing import Any

import pytest
import torch

from cli.conftest import Call
from gpt.checkpoint import Loaded
from gpt.cli.explain.lens import _tables
from gpt.inspection.tracing.edits import zero
from gpt.inspection.views.lens import lens_view

VIEW = "explain lens --prompt 'It was'"
pytestmark = pytest.mark.usefixtures("here")


def view_of(loaded: Loaded, count: int = 5, **options: Any) -> dict[str, Any]:
    """The view as JSON has it."""
    ids = torch.tensor(loaded.tokenizer.encode("It was").tolist())
    return json.loads(json.dumps(lens_view(loaded.model, loaded.tokenizer, ids, count, **options)))


def test_json_holds_the_view_edited_or_not(run: Call, loaded: Loaded) -> None:
    found = run(f"{VIEW} --json --top 3").json
    assert found.pop("source")
    assert found == view_of(loaded, 3)
    assert len(found["top"][1][5]) == 3
    edited = run(f"{VIEW} --json --edit blocks.0.attn.hook_z:1=0").json["top"]
    assert edited == view_of(loaded, edits={"blocks.0.attn.hook_z": zero(1)})["top"]
    assert edited[1] != view_of(loaded)["top"][1]


def test_the_table_has_a_row_for_every_stream_the_last_on_top(run: Call, loaded: Loaded) -> None:
    out = run(VIEW).out.splitlines()
    lines = dict(line.split("  ", 1) for line in out if line.startswith(("text", "actual", "after")))
    view = view_of(loaded)
    assert [name for name in lines if name.startswith("after")] == ["after block 0", "after embeddings"]
    texts = {"text": "It␣was", "actual next": "t␣was"}
    texts |= {
        name: "".join(cell[0][0] for cell in row) for name, row in zip(list(lines)[:1:-1], view["top"], strict=True)
    }
    assert {name: line.strip() for name, line in lines.items()} == texts


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
    top = [[[("U+0000", 0.5)], [("b", 0.5)]]]
    (table,) = _tables({"labels": ["a", "CR"], "rows": ["embeddings"], "top": top, "next": ["CR", None]})
    assert [row[1] for row in table.rows] == ["a·", "· ", "·b"]
    assert "· is a token whose label has more than one character" in table.note


@pytest.mark.parametrize("position", [0, 5])
def test_one_position_shows_the_most_likely(run: Call, loaded: Loaded, position: int) -> None:
    out = run(f"{VIEW} --position {position} --top 2").out
    line = next(line for line in out.splitlines() if line.startswith("after block 0"))
    view = view_of(loaded)
    cells = [f"{token} {probability:.3f}" for token, probability in view["top"][1][position][:2]]
    came = view["next_probability"][1][position]
    assert line.split() == " ".join(["after block 0", *cells, "-" if came is None else f"{came:.3f}"]).split()
