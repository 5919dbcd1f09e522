"""The frame of the drills, and that every break still applies to the code."""

from pathlib import Path

import pytest

from drills.frame import COUNT, NAMES, ROOT, Break, Drill, Tally, load, repeats
from drills.page import BEGIN, END, update
from drills.processes import broken_checkout

BREAKS = [pytest.param(defect, id=f"{name}: {defect.why}") for name in NAMES for defect in load(name).breaks]


@pytest.mark.parametrize("name", NAMES)
def test_a_drill_has_a_break_that_it_finds(name: str) -> None:
    drill = load(name)
    assert isinstance(drill, Drill)
    assert drill.breaks


@pytest.mark.parametrize("defect", BREAKS)
def test_a_break_applies_and_is_python(defect: Break, tmp_path: Path) -> None:
    copy = tmp_path / defect.file
    copy.parent.mkdir(parents=True, exist_ok=True)
    intact = (ROOT / defect.file).read_bytes()
    copy.write_bytes(intact)
    defect.apply(tmp_path)
    assert copy.read_bytes() != intact
    if copy.suffix == ".py":
        compile(copy.read_text(encoding="utf-8"), defect.file, "exec")


def test_a_break_whose_text_is_gone_is_an_error() -> None:
    with (
        pytest.raises(ValueError, match="does not apply"),
        broken_checkout(Break("nothing", "gpt/errors.py", "no such text", "")),
    ):
        pass


def test_figures_are_a_line() -> None:
    tally = Tally("kills", "resumed")
    tally.count("kills", 1200)
    assert not tally.check(False, "one was lost")
    assert (tally.line(), tally.failures) == ("1,200 kills, 0 resumed", ["one was lost"])


def test_a_count_takes_the_place_of_the_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (repeats(True, 200, 6), repeats(False, 200, 6)) == (200, 6)
    monkeypatch.setenv(COUNT, "40")
    assert repeats(True, 200, 6) == repeats(False, 200, 6) == 40


def test_a_partial_run_changes_its_own_rows_only_and_their_order_is_fixed() -> None:
    page = f"before\n{BEGIN}\n{END}\nafter\n"
    first = update(page, {"b": ("B.", "2 things", "AMX")}, ("a", "b"))
    second = update(first, {"a": ("A.", "1 thing", "AVX2")}, ("a", "b"))
    assert second.startswith("before\n")
    assert second.endswith(f"{END}\nafter\n")
    rows = [line for line in second.splitlines() if line.startswith("| ")]
    assert rows[1:] == ["| a | A. | 1 thing | AVX2 |", "| b | B. | 2 things | AMX |"]
    assert update(second, {}, ("a", "b")) == second
