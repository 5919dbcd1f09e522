"""The frame of the drills, the page that they write, and that the name of every break is still there."""

import re

import pytest

from drills.__main__ import PAGE, update
from drills.breaks import BREAKS, Break
from drills.frame import COUNT, NAMES, ROOT, Tally, load, repeats


@pytest.mark.parametrize("name", NAMES)
def test_a_drill_has_a_row_of_the_page_and_breaks_that_it_finds(name: str) -> None:
    assert f"\n| {name} | {load(name).promise} | " in PAGE.read_text(encoding="utf-8")
    assert BREAKS[name]


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


def test_a_run_of_one_drill_changes_its_row_only() -> None:
    page = "before\n| a | A. | 1 thing | AVX2 |\n| b | B. | 2 things | AVX2 |\nafter\n"
    assert update(page, "b", "B.", r"3 \things", "AMX") == page.replace("2 things | AVX2", r"3 \things | AMX")
