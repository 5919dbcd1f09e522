"""An executed chapter as a page."""

from typing import Any

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from docs.site.pages import page


def shown(source: str, *outputs: Any, tag: str = "") -> str:
    """The page of a notebook with one cell of code, without its title."""
    cell = new_code_cell(source, outputs=list(outputs), metadata={"tags": [tag]} if tag else {})
    return page(new_notebook(cells=[new_markdown_cell("# Title\n\nText."), cell]), "1_sample").partition("Text.")[2]


def stream(text: str) -> Any:
    return new_output("stream", name="stdout", text=text)


def display(**data: str) -> Any:
    return new_output("display_data", data={name.replace("_", "/"): text for name, text in data.items()})


def test_the_notebook_stands_below_the_title() -> None:
    text = page(new_notebook(cells=[new_markdown_cell("# Title\n\nText.")]), "1_sample")
    assert text == "# Title\n\n*This chapter as a [notebook](1_sample.ipynb).*\n\nText.\n"


@pytest.mark.parametrize(
    ("printed", "read"),
    [
        ("10%\r50%\r100%\ndone\n", "100%&#10;done"),
        ("50%\r", "50%"),
        ("\x1b[31mred\x1b[0m <b>", "red &lt;b&gt;"),
        ("a\n\n  b\n", "a&#10;&#10;  b"),
    ],
)
def test_printed_text_reads_as_in_a_terminal(printed: str, read: str) -> None:
    assert f'<div class="output"><pre tabindex="0">{read}</pre></div>' in shown("f()", stream(printed))


def test_the_richest_form_is_shown_without_a_line_that_ends_it() -> None:
    text = shown("f()", display(text_html='<iframe src="shown/x.html">\n\n</iframe>', text_plain="x"))
    assert '<div class="output"><iframe src="1_sample/x.html">\n</iframe></div>' in text
    text = shown("f()", display(text_html='<iframe srcdoc="a\n\nb"></iframe>'))
    assert '<iframe srcdoc="a&#10;&#10;b"></iframe>' in text
    assert 'src="data:image/png;base64,AAAA"' in shown("f()", display(image_png="AAAA\n"))


def test_source_that_a_cell_prints_is_highlighted() -> None:
    text = shown("print(inspect.getsource(f))", stream("    def f():\n        pass\n\n"))
    assert "````{.python .printed}\ndef f():\n    pass\n````" in text


def test_cells_are_folded_hidden_or_of_the_shell() -> None:
    assert '??? example "Solution"\n\n    ````python\n    x = 1\n    ````' in shown("x = 1", tag="solution")
    assert "x = 1" not in shown("x = 1", tag="hide-input")
    assert "````sh\ngpt --help\n````" in shown("%%sh\ngpt --help")
