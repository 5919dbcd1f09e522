from gpt.inspection.rendering.markdown import markdown_table, times


def test_the_alignment_is_said_the_indentation_kept_and_a_bar_does_not_end_a_cell() -> None:
    rows = [("apple", "1"), ("  fig", "1,000"), ("a|b", "`|`")]
    assert markdown_table(("kind", "count"), rows, "<>").splitlines() == [
        "| kind | count |",
        "| --- | ---: |",
        "| apple | 1 |",
        "| &nbsp;&nbsp;fig | 1,000 |",
        r"| a\|b | `\|` |",
    ]
    assert markdown_table(("a", "|", "c"), []).splitlines() == [r"| a | \| | c |", "| --- | --- | --- |"]


def test_shapes() -> None:
    assert times((1, 7, 64)) == "1×7×64"
    assert times(()) == ""
