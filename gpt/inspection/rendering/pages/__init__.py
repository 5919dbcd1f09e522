"""A view as one HTML page that needs nothing else: no server, no network, no library."""

import base64
import html
import json
from importlib import resources
from string import Template
from typing import Any

import torch
from torch import Tensor

from gpt.errors import InputError
from gpt.inspection.views.tokens import View

SCRIPTS = {
    "attention": ("attention_weights.js", "arcs.js", "attention_view.js"),
    "lens": ("lens_view.js",),
    "surprisal": ("surprisal_view.js",),
    "trace": ("trace_view.js",),
}
"""What shows each kind of view."""
KINDS = tuple(SCRIPTS)
VIEW_SCRIPTS = ("ablation.js", *(name for names in SCRIPTS.values() for name in names))
VIEW_TEMPLATES = (*KINDS, "ablation")
VIEW_STYLES = ("page.css", "attention.css", "trace.css")
"""What shows all of them in a page that computes, and can do so with some heads ablated."""


def render_page(kind: str, view: View, title: str, note: str, framed: bool = False) -> str:
    """Return an HTML document with its styles, script and data inside, which opens from a file.

    Args:
        kind: one of `KINDS`.
        view: what `attention_view`, `lens_view`, `surprisal_view` or `trace_view` returned; the one of attention
            may also have `layer` and `head`, the ones to start with, else 0.
        title: the page's title.
        note: a line below it; none if empty.
        framed: whether it is shown in a frame that is as high as its content.

    Raises:
        ValueError: the kind is not known.
        InputError: the view has no such layer or head, or values that are not finite.
    """
    if kind not in KINDS:
        raise ValueError(f"no page is called {kind!r}; there are {', '.join(KINDS)}")
    content = page_data(kind, view)
    script = read_part("shared.js", *SCRIPTS[kind], f"{kind}.js")
    style = read_part(*VIEW_STYLES, *(["frame.css"] if framed else []))
    return fill_page(title, note, read_part(f"{kind}.html"), content, script, style)


def page_data(kind: str, view: View) -> View:
    """Return a view as plain data for a page: numbers shortened, attention weights packed.

    Args:
        kind: "attention", or any other.
        view: see `render_page`.

    Raises:
        InputError: the view has no such layer or head, or values that are not finite.
    """
    return _attention_data(view) if kind == "attention" else _shortened(view)


def packed_bytes(layers: int, heads: int, tokens: int) -> int:
    """Return the length of the attention weights of a text in `page_data`."""
    return -(-layers * heads * tokens * (tokens + 1) // 3) * 4


def fill_page(title: str, note: str, body: str, data: object, script: str, style: str, script_source: str = "") -> str:
    """Return an HTML document.

    Args:
        title: text.
        note: text.
        body: HTML.
        data: what the script finds, as JSON, in the element `data`.
        script: JavaScript.
        style: CSS.
        script_source: what the content security policy allows scripts beyond being in the document.

    Raises:
        InputError: the data has values that are not finite.
    """
    return Template(read_part("page.html")).substitute(
        title=html.escape(title),
        note=html.escape(note),
        body=body,
        data=_to_json(data),
        script=script,
        style=style,
        script_source=script_source and f" {script_source}",
    )


def read_part(*names: str) -> str:
    """Return the text of these files, one after another."""
    return "".join(resources.files(__name__).joinpath(name).read_text(encoding="utf-8") for name in names)


def read_templates(*names: str) -> str:
    """Return the HTML of these views as templates."""
    return "".join(as_template(name, read_part(f"{name}.html")) for name in names)


def as_template(name: str, content: str) -> str:
    """Return the element that `fillFrom` of the shared script takes its content from."""
    return f'<template id="{name}-template">{content}</template>\n'


def _to_json(content: object) -> str:
    """Return JSON that cannot end the script element around it."""
    try:
        text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    except ValueError:
        raise _not_finite() from None
    return text.replace("<", "\\u003c")


def _not_finite() -> InputError:
    return InputError("the model gave values that are not finite; a page cannot show them")


def _shortened(value: Any) -> Any:
    """Return the same with five significant digits: more than a page shows, a third of the bytes."""
    if isinstance(value, dict):
        return {key: _shortened(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_shortened(entry) for entry in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def _attention_data(view: View) -> View:
    weights = view["weights"].detach().float().cpu()
    if not weights.isfinite().all():
        raise _not_finite()
    layers, heads = weights.shape[:2]
    start = {"layer": view.get("layer", 0), "head": view.get("head", 0)}
    for name, count in (("layer", layers), ("head", heads)):
        if not 0 <= start[name] < count:
            raise InputError(f"there is no {name} {start[name]}; they go from 0 to {count - 1}")
    return {
        "labels": view["labels"],
        "layers": layers,
        "heads": heads,
        "weights": _pack(weights),
        **start,
    }


def _pack(weights: Tensor) -> str:
    """Return the lower triangles as base64 of little-endian uint16, 65535 for weight 1; the rest is 0."""
    rows, columns = torch.tril_indices(*weights.shape[2:]).unbind()
    steps = (weights[:, :, rows, columns] * 65535).round().clamp(0, 65535).int()
    return base64.b64encode(steps.numpy().astype("<u2").tobytes()).decode("ascii")
