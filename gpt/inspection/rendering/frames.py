"""A page of a view that shows itself in a notebook, in a frame, so that its styles and scripts touch nothing else."""

import html
from dataclasses import dataclass, field
from pathlib import Path

from gpt.files import write_atomic
from gpt.inspection.rendering.pages import render_page
from gpt.inspection.views.tokens import View

FIRST_HEIGHT = 600
"""Pixels of a frame until its content is loaded, and where a notebook runs no scripts in its own page."""

FOLLOW_CONTENT = (
    "const page = this.contentDocument.documentElement;"
    "page.style.overflowY = 'hidden';"  # a scroll bar takes width, by which the height may change to and fro
    "const fit = () => { if (page.offsetHeight) this.style.height = page.offsetHeight + 2 + 'px'; };"
    "new ResizeObserver(fit).observe(page); fit();"
)
"""Script of a frame: its height becomes that of its content, again whenever that changes."""


@dataclass(frozen=True)
class Page:
    """A view of one text: shows itself in a notebook, and can be saved as a file that opens in a browser."""

    kind: str  # "attention", "lens" or "picture"
    title: str
    note: str
    view: View = field(repr=False)  # its data, as the function of `gpt.inspection.views` returns them

    def save(self, path: str | Path) -> None:
        """Write one HTML file that needs no network."""
        write_atomic(Path(path), render_page(self.kind, self.view, self.title, self.note).encode())

    def _repr_html_(self) -> str:
        page = render_page(self.kind, self.view, self.title, self.note, framed=True)
        return (
            f'<iframe srcdoc="{html.escape(page)}" title="{html.escape(self.title)}" onload="{FOLLOW_CONTENT}" '
            f'style="display:block;width:100%;height:{FIRST_HEIGHT}px;border:0"></iframe>'
        )
