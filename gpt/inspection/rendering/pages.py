"""A view as one HTML page that needs nothing else: no server, no network, no library."""

import base64
from typing import Any

import torch
from torch import Tensor

from gpt.errors import InputError
from gpt.inspection.views.tokens import View
from gpt.web.document import VIEWS, not_finite, render_document

KINDS = VIEWS
SCALE_BYTES = 12
"""About the length of a number with five digits."""


def render_page(kind: str, view: View, title: str, note: str, framed: bool = False) -> str:
    """Return an HTML document with its styles, script and data inside, which opens from a file.

    Args:
        kind: one of `KINDS`.
        view: what `attention_view`, `lens_view` or `picture_view` returned; the one of attention may also have `layer`
            and `head`, the ones to start with, else the page takes the most telling head.
        framed: whether it is shown in a frame that is as high as its content.

    Raises:
        ValueError: the kind is not known.
        InputError: the view has no such layer or head, or values that are not finite.
    """
    if kind not in KINDS:
        raise ValueError(f"no page is called {kind!r}; there are {', '.join(KINDS)}")
    return render_document(kind, page_data(kind, view), title=title, note=note, framed=framed)


def page_data(kind: str, view: View) -> View:
    """Return a view as plain data for a page: numbers shortened, attention weights and vectors packed."""
    if kind == "attention":
        return _attention_data(view)
    if kind == "picture":
        return {**_shortened(view), "weights": _pack(view["weights"]), **_packed_vectors(view["added"])}
    return _shortened(view)


def packed_bytes(layers: int, heads: int, tokens: int) -> int:
    """Return the length of the attention weights of a text in `page_data`."""
    return -(-layers * heads * tokens * (tokens + 1) // 3) * 4


def picture_bytes(layers: int, heads: int, width: int, tokens: int) -> int:
    """Return about the length of the vectors and weights of a text in `page_data`."""
    return packed_bytes(layers, heads, tokens) + (2 * layers + 2) * tokens * (width * 8 // 3 + SCALE_BYTES)


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
        raise not_finite()
    layers, heads = weights.shape[:2]
    start = {name: view[name] for name in ("layer", "head") if view.get(name) is not None}
    for name, count in (("layer", layers), ("head", heads)):
        if name in start and not 0 <= start[name] < count:
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


def _packed_vectors(vectors: Tensor) -> View:
    """Return `added`, base64 of little-endian int16 of vectors (P, T, C), and `scales` (P * T,), their steps.

    Each vector has its own: the first token's is often a thousand times as long as the others.
    """
    scales = vectors.abs().amax(dim=2, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny) / 32767
    steps = (vectors / scales).round().clamp(-32767, 32767).short()
    added = base64.b64encode(steps.numpy().astype("<i2").tobytes()).decode("ascii")
    return {"added": added, "scales": _shortened(scales.flatten().tolist())}
