"""A view as one HTML page that needs nothing else: no server, no network, no library; in a notebook, in a frame."""

import base64
import html
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt.config import ModelConfig
from gpt.extras.inspection.views.picture import VECTORS
from gpt.extras.inspection.views.tokens import View
from gpt.extras.web.document import not_finite, render_document
from gpt.system.errors import InputError
from gpt.system.files import write_atomic

SCALE_BYTES = 12
"""About the length of a number with five digits."""
FIRST_HEIGHT = 600
"""Pixels of a frame until its content is loaded, and where a notebook runs no scripts in its own page."""

FOLLOW_CONTENT = (
    "const page = this.contentDocument.documentElement;"
    "page.style.overflowY = 'hidden';"  # a scroll bar takes width, by which the height may change to and fro
    "const fit = () => { if (page.offsetHeight) this.style.height = page.offsetHeight + 2 + 'px'; };"
    "new ResizeObserver(fit).observe(page); fit();"
)
"""Script of a frame: its height becomes that of its content, again whenever that changes."""


def render_page(kind: str, view: View, title: str, note: str, framed: bool = False) -> str:
    """Return an HTML document with its styles, script and data inside, which opens from a file.

    The view is what `attention_view`, `lens_view` or `picture_view` returned; that of attention may also have `layer`
    and `head`, the ones to start with, else the page takes the most telling head. A frame is as high as its content.
    """
    return render_document(kind, page_data(kind, view), title=title, note=note, framed=framed)


def page_data(kind: str, view: View) -> View:
    """Return a view as plain data for a page: numbers shortened, attention weights and vectors packed."""
    if kind == "attention":
        return _attention_data(view)
    if kind == "picture":
        packed = {name: _packed_vectors(view[name]) for name in (*VECTORS, "added")}
        return {**_shortened(view), "weights": _pack(view["weights"]), **packed}
    return _shortened(view)


def packed_bytes(layers: int, heads: int, tokens: int) -> int:
    """Return the length of the attention weights of a text in `page_data`."""
    return -(-layers * heads * tokens * (tokens + 1) // 3) * 4


def picture_bytes(config: ModelConfig, tokens: int) -> int:
    """Return about the length of the vectors and weights of a text in `page_data`."""
    layers, heads, width = config.n_layer, config.n_head, config.n_embd
    vectors = (2 * layers + 2) * (width * 8 // 3 + SCALE_BYTES)
    vectors += layers * ((2 * width + config.mlp_hidden) * 8 // 3 + (2 * heads + 1) * SCALE_BYTES)
    return packed_bytes(layers, heads, tokens) + tokens * vectors


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


def _packed_vectors(vectors: Tensor | None) -> View | None:
    """Return `numbers`, base64 of little-endian int16 of vectors (..., C), and `scales` (...), their steps.

    Each vector has its own: the first token's is often a thousand times as long as the others.
    """
    if vectors is None:
        return None
    scales = (
        vectors.abs().amax(dim=-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny) / 32767
    )
    steps = (vectors / scales).round().clamp(-32767, 32767).short()
    numbers = base64.b64encode(steps.numpy().astype("<i2").tobytes()).decode("ascii")
    return {"numbers": numbers, "scales": _shortened(scales.flatten().tolist())}


@dataclass(frozen=True)
class Page:
    """A view of one text: shows itself in a notebook, and can be saved as a file that opens in a browser."""

    kind: str  # "attention", "lens" or "picture"
    title: str
    note: str
    # its data, as the function of `gpt.extras.inspection.views` returns them
    view: View = field(repr=False)

    def save(self, path: str | Path) -> None:
        """Write one HTML file that needs no network."""
        write_atomic(Path(path), render_page(self.kind, self.view, self.title, self.note).encode())

    def _repr_html_(self) -> str:
        page = render_page(self.kind, self.view, self.title, self.note, framed=True)
        return (
            f'<iframe srcdoc="{html.escape(page)}" title="{html.escape(self.title)}" onload="{FOLLOW_CONTENT}" '
            f'style="display:block;width:100%;height:{FIRST_HEIGHT}px;border:0"></iframe>'
        )
