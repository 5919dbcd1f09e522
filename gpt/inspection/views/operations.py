"""Every operation of a forward pass, with the shapes it reads and makes, and the values that it makes."""

import base64

import torch
from torch import Tensor

from gpt.data.tokenizers import Tokenizer
from gpt.inspection.tracing.shape_trace import TensorRow, trace_values
from gpt.inspection.views.tokens import View, labels_of
from gpt.model import GPT

HEAT_ROWS, HEAT_COLUMNS = 32, 48
"""Most cells of a heat map."""
STEPS = 127
"""Steps of a cell's value on either side of zero."""


def trace_view(model: GPT, tokenizer: Tokenizer, idx: Tensor) -> View:
    """Trace the forward pass of one text (T,).

    Returns:
        `labels` (T,), and `operations` in the order they are computed, each with

        - `name`, the module's path and the function; `module`, `function` and `layer`, null outside the blocks;
        - `about`, what it is; `source`, file and line;
        - `axes`, such as `B T C`; `shape`, `dtype`, `bytes`, `is_view` and `flops`;
        - `inputs`, numbers of the operations that it reads;
        - `parameters`, each with `name`, `axes` and `shape`;
        - `statistics` and `heat` of its values, see `statistics_of` and `heat_map`.

    Raises:
        InputError: the ids do not fit the model, or its weights are quantized.
    """
    rows, values = trace_values(model, idx.unsqueeze(0), lambda x: (statistics_of(x), heat_map(x)))
    return {
        "labels": labels_of(tokenizer, idx.tolist()),
        "operations": [
            {**_operation(row), "statistics": statistics, "heat": heat}
            for row, (statistics, heat) in zip(rows, values, strict=True)
        ],
    }


def _operation(row: TensorRow) -> View:
    module, _, function = row.name.rpartition(".")
    return {
        "name": row.name,
        "module": module,
        "function": function,
        "about": row.about,
        "axes": row.symbols,
        "shape": list(row.shape),
        "dtype": row.dtype,
        "bytes": row.nbytes,
        "is_view": row.is_view,
        "flops": row.flops,
        "source": row.source,
        "layer": row.layer,
        "inputs": list(row.inputs),
        "parameters": [{"name": use.name, "axes": use.symbols, "shape": list(use.shape)} for use in row.parameters],
    }


def statistics_of(x: Tensor) -> View:
    """Summarize the values of a tensor.

    Returns:
        `mean`, `std` (of the population), `min` and `max` of the finite values, null where there are none; `infinite`,
        how many are not finite, as masked scores are.
    """
    finite = x[x.isfinite()].double()
    there = finite.numel() > 0
    return {
        "mean": float(finite.mean()) if there else None,
        "std": float(finite.std(correction=0)) if there else None,
        "min": float(finite.min()) if there else None,
        "max": float(finite.max()) if there else None,
        "infinite": x.numel() - finite.numel(),
    }


def heat_map(x: Tensor) -> View:
    """Average the last two dimensions of a tensor, of the first entry of all others, over a small grid.

    Returns:
        `rows` and `columns` of the grid; `height` and `width` of what it covers; `scale`, the largest magnitude of
        a cell; `cells`, row after row, as base64 of a byte each: 128 is 0, 1 and 255 are minus and plus `scale`, and
        0 is a cell with a value that is not finite.
    """
    plane = x.reshape(-1, *x.shape[-2:])[0] if x.dim() > 1 else x.reshape(1, -1)
    height, width = plane.shape
    rows, columns = min(height, HEAT_ROWS), min(width, HEAT_COLUMNS)
    means = torch.nn.functional.adaptive_avg_pool2d(plane.float()[None], (rows, columns))[0].cpu()
    finite = means.isfinite()
    scale = float(means[finite].abs().max()) if finite.any() else 0.0
    steps = (means.nan_to_num(0, 0, 0) / (scale or 1.0) * STEPS).round().int() + STEPS + 1
    cells = bytes(torch.where(finite, steps, 0).flatten().tolist())
    return {
        "rows": rows,
        "columns": columns,
        "height": height,
        "width": width,
        "scale": scale,
        "cells": base64.b64encode(cells).decode("ascii"),
    }
