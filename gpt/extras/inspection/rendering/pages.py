"""A view as one HTML page that needs nothing else: no server, no network, no library.

In a notebook, the page stands in a frame.
"""

import base64
import html
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt.config import ModelConfig
from gpt.extras.inspection.views.picture import VECTORS
from gpt.extras.inspection.views.tokens import View
from gpt.extras.web.document import Heading, not_finite, render_document
from gpt.system.errors import InputError
from gpt.system.files import write_atomic

SCALE_BYTES = 12
"""About the length of a number with five digits, and of its comma, in JSON."""
LARGEST_WEIGHT = 65535
"""The uint16 of an attention weight of 1."""
LARGEST_STEP = 32767
"""The int16 of the number of a vector that is largest without its sign."""
INITIAL_HEIGHT = 600
"""Pixels of a frame until its content is loaded.

They stay where a notebook runs no scripts in its own page.
"""

FOLLOW_CONTENT = (
    "const page = this.contentDocument.documentElement;"
    # A scroll bar takes width, by which the height of the content may change to and fro.
    "page.style.overflowY = 'hidden';"
    "const fit = () => { "
    "if (page.offsetHeight) this.style.height = page.offsetHeight + 2 + 'px'; "
    "};"
    "new ResizeObserver(fit).observe(page); fit();"
)
"""Script of a frame: it makes the frame as high as its content, again whenever that changes."""


def render_page(kind: str, view: View, title: str, note: str, framed: bool = False) -> str:
    """Return an HTML document with its styles, script and data inside, which opens from a file.

    Args:
        kind: "attention", "lens" or "picture".
        view: what `attention_view`, `lens_view` or `picture_view` returned. That of attention may
            also have the `layer` and `head` that the page shows first; left out: the most telling.
        framed: whether the page stands in a frame that is as high as its content.
    """
    return render_document(kind, page_data(kind, view), Heading(title, note), framed=framed)


def page_data(kind: str, view: View) -> View:
    """Return a view as plain data for a page.

    Numbers are rounded, attention weights and vectors are packed as base64.
    """
    if kind == "attention":
        return _attention_data(view)
    if kind == "picture":
        packed = {name: _packed_vectors(view[name]) for name in (*VECTORS, "added")}
        return {**_shortened(view), "weights": _pack(view["weights"]), **packed}
    return _shortened(view)


def packed_bytes(n_layer: int, n_head: int, num_tokens: int) -> int:
    """Return the length of the attention weights of a text in `page_data`."""
    pairs = num_tokens * (num_tokens + 1) // 2  # of a query and a key that it may attend to
    num_bytes = 2 * n_layer * n_head * pairs  # of uint16
    return 4 * math.ceil(num_bytes / 3)  # base64 writes three bytes as four characters


def picture_bytes(config: ModelConfig, num_tokens: int) -> int:
    """Return about the length of the vectors and weights of a text in `page_data`."""
    width = config.n_embd
    # Embedding and position, then attention and MLP of each block.
    num_added = 2 + 2 * config.n_layer
    added = num_added * (_base64_bytes(width) + SCALE_BYTES)
    # A block has queries, at most as many keys, each with a scale, and hidden units with one scale.
    num_scales = 2 * config.n_head + 1
    in_block = _base64_bytes(2 * width + config.mlp_hidden) + num_scales * SCALE_BYTES
    vectors = added + config.n_layer * in_block
    return packed_bytes(config.n_layer, config.n_head, num_tokens) + num_tokens * vectors


def _base64_bytes(count: int) -> int:
    """Return about the length of `count` numbers of int16 as base64."""
    return count * 8 // 3


def _shortened(value: Any) -> Any:
    """Round all floats inside to five significant digits.

    These are more than a page shows, and take a third of the bytes of all digits.
    """
    if isinstance(value, dict):
        return {key: _shortened(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_shortened(entry) for entry in value]
    if isinstance(value, float):
        return float(f"{value:.5g}")
    return value


def _attention_data(view: View) -> View:
    """Return a view of attention as plain data, with the `layer` and `head` that it starts with."""
    weights = view["weights"].detach().float().cpu()  # (n_layer, H, T, T)
    if not weights.isfinite().all():
        raise not_finite()
    n_layer, n_head = weights.shape[:2]
    data = {
        "labels": view["labels"],
        "layers": n_layer,
        "heads": n_head,
        "weights": _pack(weights),
    }
    for name, count in (("layer", n_layer), ("head", n_head)):
        number = view.get(name)
        if number is None:
            continue
        if not 0 <= number < count:
            raise InputError(f"there is no {name} {number}; they go from 0 to {count - 1}")
        data[name] = number
    return data


def _pack(weights: Tensor) -> str:
    """Return the lower triangles of attention weights (n_layer, H, T, T) as base64.

    They are little-endian uint16, where 65535 is a weight of 1. No query attends to a later key, so
    that all weights above the triangles are 0.
    """
    length = weights.size(-1)
    rows, columns = torch.tril_indices(length, length)
    steps = weights[:, :, rows, columns] * LARGEST_WEIGHT  # (n_layer, H, T (T + 1) / 2)
    # An edit can make weights that are below 0 or above 1.
    numbers = steps.round().clamp(0, LARGEST_WEIGHT).int()
    return base64.b64encode(numbers.numpy().astype("<u2").tobytes()).decode("ascii")


def _packed_vectors(vectors: Tensor | None) -> View | None:
    """Return vectors (..., C) as base64 of little-endian int16, `numbers`, and `scales` (...).

    A number times the scale of its vector is the original. Each vector has a scale of its own,
    because the vector of the first token is often a thousand times as long as the others.
    """
    if vectors is None:
        return None
    largest = vectors.abs().amax(dim=-1, keepdim=True)
    # The smallest float32 instead of 0: a vector of zeros is divided by its scale, too.
    scales = largest.clamp(min=torch.finfo(torch.float32).tiny) / LARGEST_STEP
    steps = (vectors / scales).round().clamp(-LARGEST_STEP, LARGEST_STEP).short()
    numbers = base64.b64encode(steps.numpy().astype("<i2").tobytes()).decode("ascii")
    return {"numbers": numbers, "scales": _shortened(scales.flatten().tolist())}


@dataclass(frozen=True)
class Page:
    """A view of one text, which shows itself in a notebook, and saves itself for a browser."""

    kind: str  # "attention", "lens" or "picture"
    title: str
    note: str
    # its data, as a function of `gpt.extras.inspection.views` returned them
    view: View = field(repr=False)

    def save(self, path: str | Path) -> None:
        """Write one HTML file that needs no network."""
        page = render_page(self.kind, self.view, self.title, self.note)
        write_atomic(Path(path), page.encode())

    def _repr_html_(self) -> str:
        """Return a frame with the page inside, which a notebook shows."""
        page = render_page(self.kind, self.view, self.title, self.note, framed=True)
        style = f"display:block;width:100%;height:{INITIAL_HEIGHT}px;border:0"
        return (
            f'<iframe srcdoc="{html.escape(page)}" title="{html.escape(self.title)}" '
            f'onload="{FOLLOW_CONTENT}" style="{style}"></iframe>'
        )
