from gpt.inspection.rendering.tables import Table, render_table

TABLE = Table("Fruit", ("kind", "count"), [("apple", "1"), ("  fig", "1,000")], "<>", "Eat them.")


def test_no_line_ends_in_spaces() -> None:
    assert render_table(("a", "b"), [("wide cell", ""), ("x", "y")], "<<").splitlines()[2] == "wide cell"


def test_a_table_shows_itself_as_text() -> None:
    assert repr(TABLE) == "Fruit\nkind   count\n-----  -----\napple      1\n  fig  1,000\nEat them."


def test_a_table_shows_itself_as_html_that_a_cell_cannot_break() -> None:
    shown = Table("<Fruit>", ("kind",), [("<b>&",)], ">", "a < b")._repr_html_()
    assert "&lt;Fruit&gt;" in shown
    assert "<td style='text-align:right'>&lt;b&gt;&amp;</td>" in shown
    assert "a &lt; b" in shown
