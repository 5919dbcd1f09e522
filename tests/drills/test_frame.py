"""The frame of the drills, and that the name of every break is still there."""

import re

import pytest

from drills.__main__ import BEGIN, END, PAGE, update
from drills.breaks import BREAKS, Break
from drills.frame import COUNT, NAMES, ROOT, Drill, Tally, load, repeats


@pytest.mark.parametrize("name", NAMES)
def test_a_drill_is_found_by_its_name(name: str) -> None:
    assert isinstance(load(name), Drill)


@pytest.mark.parametrize("defect", [pytest.param(one, id=one.why) for every in BREAKS.values() for one in every])
def test_what_a_break_replaces_is_there(defect: Break) -> None:
    owner, name = defect.find()
    assert defect.broken(getattr(owner, name)) is not getattr(owner, name)


def test_the_tests_that_the_page_names_are_there() -> None:
    named = re.findall(r"`(tests/[a-z_/]+\.py)`", PAGE.read_text(encoding="utf-8"))
    assert len(named) > 10
    assert [name for name in named if not (ROOT / name).is_file()] == []


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


def test_every_drill_has_breaks_that_it_finds() -> None:
    # the server's process is started anew, out of reach of what replaces names in this one
    assert [name for name in NAMES if not BREAKS.get(name)] == ["server"]
