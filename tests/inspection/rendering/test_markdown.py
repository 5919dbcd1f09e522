import pytest

from gpt.inspection.rendering.markdown import code, markdown_table, times


def test_the_alignment_is_said_the_indentation_kept_and_a_bar_does_not_end_a_cell() -> None:
    rows = [("apple", "1"), ("  fig", "1,000"), ("a|b", code("|"))]
    assert markdown_table(("kind", "count"), rows, "<>").splitlines() == [
        "| kind | count |",
        "| --- | ---: |",
        "| apple | 1 |",
        "| &nbsp;&nbsp;fig | 1,000 |",
        r"| a\|b | `\|` |",
    ]
    assert markdown_table(("a", "|", "c"), []).splitlines() == [r"| a | \| | c |", "| --- | --- | --- |"]


@pytest.mark.parametrize(("label", "written"), [("a", "`a`"), ("*", "`*`"), ("`", "`` ` ``")])
def test_labels_as_code(label: str, written: str) -> None:
    assert code(label) == written


def test_shapes() -> None:
    assert times((1, 7, 64)) == "1×7×64"
    assert times(()) == ""
