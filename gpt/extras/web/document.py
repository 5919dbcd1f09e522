"""Render one HTML document that needs no other file: it has its style, its script, bundled from
`src/`, and its data.
"""

import base64
import hashlib
import html
import json
from dataclasses import dataclass
from importlib import resources
from string import Template

from gpt.system.errors import InputError

MODEL = "model"
"""The page of a model that the browser runs."""
PLAYGROUND = "playground"
"""The page of the server."""
CONNECTIONS = {PLAYGROUND: " connect-src 'self';"}
"""The part of the content security policy about requests: only the playground sends any, to its own
server.
"""
EXTRA_SCRIPTS = {MODEL: " 'wasm-unsafe-eval'"}
"""What pages may run beside their script: a model computes in WebAssembly, whose code is part of
the script.
"""
STYLES = (
    "base",
    "pages",
    "bars",
    "attention",
    "lens",
    "readings",
    "picture",
    "write",
    "learning",
    "widths",
)
"""Style sheets in the order in which they apply."""


@dataclass(frozen=True)
class Heading:
    """What a document says of itself, to its readers and to sites that show a link to it.

    Attributes:
        title: the title of the document, and its heading if there is a note.
        note: text below the heading; None for a page whose script writes its own heading.
        image: the whole address of a picture.
        name: the name of the model, by which the tabs of two pages with one title differ.
    """

    title: str
    note: str | None = None
    image: str = ""
    name: str = ""


def render_document(
    kind: str, data: object, heading: Heading, *, weights: str = "", framed: bool = False
) -> str:
    """Return an HTML document.

    Args:
        kind: "attention", "lens" or "picture", views of a text; or `MODEL` or `PLAYGROUND`.
        data: values for the script, which reads them as JSON from the element `data`.
        weights: base64, which the script reads from the element `weights`.
        framed: whether it is shown in a frame that is as high as its content.

    Raises:
        InputError: the data has values that are not finite.
    """
    title = heading.title
    note = heading.note
    header = ""
    if note is not None:
        header = f'<h1>{html.escape(title)}</h1>\n<p class="note">{html.escape(note)}</p>'
    weights_element = ""
    if weights:
        weights_element = f'<script type="text/plain" id="weights">{weights}</script>\n'
    image_element = ""
    if heading.image:
        image_element = f'<meta property="og:image" content="{html.escape(heading.image)}">\n'
    tab_title = title
    if heading.name:
        # A tab shows only the first words, so the name stands before the title.
        tab_title = f"{heading.name} · {title}"
    page_class = f"{kind}-page"
    return Template(_read("shell.html")).substitute(
        policy=content_policy(kind),
        kind=f"{page_class} framed" if framed else page_class,
        title=html.escape(title),
        tab_title=html.escape(tab_title),
        description=html.escape(note or "A small GPT, and what goes on inside it."),
        image=image_element,
        header=header,
        data=_to_json(data),
        weights=weights_element,
        style=_style(),
        script=_script(kind),
    )


def content_policy(kind: str) -> str:
    """Return the content security policy that allows a page's own script and style alone."""
    scripts = _hash(_script(kind)) + EXTRA_SCRIPTS.get(kind, "")
    styles = _hash(_style())
    connections = CONNECTIONS.get(kind, "")
    allowed = f"script-src {scripts}; style-src {styles};{connections} img-src data:"
    return f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"


def _to_json(content: object) -> str:
    """Return JSON that cannot end the script element around it."""
    try:
        text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    except ValueError:
        raise not_finite() from None
    return text.replace("<", "\\u003c")


def not_finite() -> InputError:
    """Return the error of a view with values that JSON does not have."""
    return InputError("the model gave values that are not finite; a page cannot show them")


def _style() -> str:
    return "".join(_read("styles", f"{name}.css") for name in STYLES)


def _script(kind: str) -> str:
    return _read("built", f"{kind}.js")


def _hash(content: str) -> str:
    """Return the hash by which a content security policy names a script or style."""
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _read(*path: str) -> str:
    return resources.files(__package__).joinpath(*path).read_text(encoding="utf-8")
