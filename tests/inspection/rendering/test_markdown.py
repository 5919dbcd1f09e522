import pytest

from gpt.inspection.rendering.markdown import code, markdown_table, times

ROWS = [("apple", "1"), ("  fig", "1,000")]


def test_the_alignment_is_said_and_the_indentation_kept() -> None:
    assert markdown_table(("kind", "count"), ROWS, "<>").splitlines() == [
        "| kind | count |",
        "| --- | ---: |",
        "| apple | 1 |",
        "| &nbsp;&nbsp;fig | 1,000 |",
    ]


def test_without_an_alignment_there_is_none() -> None:
    assert markdown_table(("a", "b", "c"), []).splitlines() == ["| a | b | c |", "| --- | --- | --- |"]


def test_a_bar_does_not_end_a_cell() -> None:
    assert markdown_table(("|",), [("a|b",), (code("|"),)]).splitlines() == [
        r"| \| |",
        "| --- |",
        r"| a\|b |",
        r"| `\|` |",
    ]


@pytest.mark.parametrize(("label", "written"), [("a", "`a`"), ("*", "`*`"), ("`", "`` ` ``")])
def test_labels_as_code(label: str, written: str) -> None:
    assert code(label) == written


def test_shapes() -> None:
    assert times((1, 7, 64)) == "1×7×64"
    assert times(()) == ""
