"""One HTML document that needs nothing else: a shell, a style, a script bundled from `src/`, and data."""

import base64
import hashlib
import html
import json
from importlib import resources
from string import Template

from gpt.system.errors import InputError

MODEL, PLAYGROUND = "model", "playground"
"""A model that a browser runs, and the page of the server."""
CONNECTIONS = {PLAYGROUND: " connect-src 'self';"}
"""What a page may ask for, by its content security policy."""
CODE = {MODEL: " 'wasm-unsafe-eval'"}
"""What it may run beside its script: WebAssembly, which is no code but its own either."""
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


def render_document(
    kind: str, data: object, *, title: str, note: str | None = None, weights: str = "", framed: bool = False
) -> str:
    """Return an HTML document.

    Args:
        kind: attention, lens or picture, views of a text; or `MODEL` or `PLAYGROUND`.
        data: what the script finds, as JSON, in the element `data`.
        title: text.
        note: text below the title; None for a page whose script writes the head.
        weights: base64, in the element `weights`.
        framed: whether it is shown in a frame that is as high as its content.

    Raises:
        InputError: the data has values that are not finite.
    """
    header = "" if note is None else f'<h1>{html.escape(title)}</h1>\n<p class="note">{html.escape(note)}</p>'
    return Template(_read("shell.html")).substitute(
        policy=content_policy(kind),
        kind=f"{kind}-page{' framed' if framed else ''}",
        title=html.escape(title),
        description=html.escape(note or "A small GPT, and what goes on inside it."),
        header=header,
        data=_to_json(data),
        weights=f'<script type="text/plain" id="weights">{weights}</script>\n' if weights else "",
        style=_style(),
        script=_read("built", f"{kind}.js"),
    )


def content_policy(kind: str) -> str:
    """Return the content security policy that allows a page's own script and style, and no other."""
    script, style = _hash(_read("built", f"{kind}.js")), _hash(_style())
    allowed = f"script-src {script}{CODE.get(kind, '')}; style-src {style};{CONNECTIONS.get(kind, '')} img-src data:"
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


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _read(*path: str) -> str:
    return resources.files(__package__).joinpath(*path).read_text(encoding="utf-8")
