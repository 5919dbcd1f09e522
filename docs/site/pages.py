"""Write an executed chapter as Markdown: its code, its outputs as HTML, its solutions folded."""

import html
import re
import textwrap

from nbformat import NotebookNode

from docs.site import chapters
from docs.site.chapters import tag
from docs.site.outputs import DRAWN, prints_source, text_of

_FRAMED = re.compile(r'srcdoc="[^"]*"')
_BLANK_LINES = re.compile(r"\n\s*\n")


def page(notebook: NotebookNode, name: str) -> str:
    """Return the page of a chapter.

    What it wrote into `shown/` is beside the page in a folder called `name`.
    """
    parts = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        shown = "\n\n".join(
            [*([] if tag(cell) == "hide-input" else [_code(cell)]), *_outputs(cell, name)]
        )
        is_solution = tag(cell) == "solution"
        parts.append(
            '??? example "Solution"\n\n' + textwrap.indent(shown, "    ") if is_solution else shown
        )
    title, text = re.split(r"(?<=\n)", "\n\n".join(parts).lstrip(), maxsplit=1)
    colab = f"https://colab.research.google.com/github/{chapters.REPOSITORY}/blob/main/notebooks/{name}.ipynb"
    opened = f", [in Colab]({colab})" if chapters.REPOSITORY else ""
    return f"{title}\n*This page as a [notebook]({name}.ipynb){opened}.*\n{text}\n"


def _code(cell: NotebookNode) -> str:
    language, source = (
        ("sh", cell.source[5:]) if cell.source.startswith("%%sh\n") else ("python", cell.source)
    )
    return f"````{language}\n{source}\n````"


def _outputs(cell: NotebookNode, name: str) -> list[str]:
    """Return the outputs of a cell: source that it printed as code, all else as HTML that Markdown
    leaves alone.
    """
    outputs = cell.get("outputs", [])
    if prints_source(cell):
        source = textwrap.dedent("".join(map(text_of, outputs))).rstrip()
        return [f"````{{.python .printed}}\n{source}\n````"]
    found = [_output(output) for output in outputs]
    found = [text.replace('="shown/', f'="{name}/') for text in found if text]
    return [f'<div class="output">{text}</div>' for text in found]


def _output(output: NotebookNode) -> str:
    """Return one output as HTML: the richest form that it has."""
    if output.output_type == "stream":
        return _text(output)
    data = output.data
    for kind in ("text/html", "image/svg+xml"):
        if (
            kind in data
        ):  # what a frame holds may not change: its policy has hashes of its scripts and styles
            kept = _FRAMED.sub(lambda page: page[0].replace("\n", "&#10;"), data[kind])
            return _BLANK_LINES.sub("\n", kept)
    if "image/png" in data:
        return f'<img alt="{DRAWN}" src="data:image/png;base64,{data["image/png"].strip()}">'
    return _text(output)


def _text(output: NotebookNode) -> str:
    """Return the text of an output as HTML."""
    escaped = html.escape(text_of(output)).replace("\n", "&#10;")
    return f'<pre tabindex="0">{escaped}</pre>' if escaped else ""
