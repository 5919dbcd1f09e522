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
from gpt.inspection.views.heads import summarise_head
from gpt.inspection.views.tokens import View

KINDS = ("attention", "lens", "surprisal")


def render_page(kind: str, view: View, title: str, note: str) -> str:
    """Return an HTML document with its styles, script and data inside, which opens from a file.

    Args:
        kind: one of `KINDS`.
        view: what `attention_view`, `lens_view` or `surprisal_view` returned; the one of attention may
            also have `layer` and `head`, the ones to start with, else 0.
        title: of the page.
        note: a line below it; none if empty.

    Raises:
        ValueError: the kind is not known.
        InputError: the view has no such layer or head, or values that are not finite.
    """
    if kind not in KINDS:
        raise ValueError(f"no page is called {kind!r}; there are {', '.join(KINDS)}")
    content = _attention_data(view) if kind == "attention" else _shortened(view)
    return Template(_read("page.html")).substitute(
        title=html.escape(title),
        note=html.escape(note),
        style=_read("page.css"),
        body=_read(f"{kind}.html"),
        data=_to_json(content),
        script=_read("shared.js") + _read(f"{kind}.js"),
    )


def _read(name: str) -> str:
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")


def _to_json(content: object) -> str:
    """JSON that cannot end the script element that holds it."""
    try:
        text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    except ValueError:
        raise InputError("the model gave values that are not finite; a page cannot show them") from None
    return text.replace("<", "\\u003c")


def _shortened(value: Any) -> Any:
    """The same with five significant digits, which is more than a page shows and a third of the bytes."""
    if isinstance(value, dict):
        return {key: _shortened(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_shortened(entry) for entry in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def _attention_data(view: View) -> View:
    weights = view["weights"].detach().float().cpu()
    layers, heads = weights.shape[:2]
    start = {"layer": view.get("layer", 0), "head": view.get("head", 0)}
    for name, count in (("layer", layers), ("head", heads)):
        if not 0 <= start[name] < count:
            raise InputError(f"there is no {name} {start[name]}; they go from 0 to {count - 1}")
    summaries = [[vars(summarise_head(pattern)) for pattern in layer] for layer in weights]
    return {
        "labels": view["labels"],
        "layers": layers,
        "heads": heads,
        "weights": _pack(weights),
        "summaries": _shortened(summaries),
        **start,
    }


def _pack(weights: Tensor) -> str:
    """Base64 of little-endian uint16, 65535 for weight 1; lower triangles only, the rest is 0."""
    rows, columns = torch.tril_indices(*weights.shape[2:]).unbind()
    steps = (weights[:, :, rows, columns] * 65535).round().clamp(0, 65535).int()
    return base64.b64encode(steps.numpy().astype("<u2").tobytes()).decode("ascii")
