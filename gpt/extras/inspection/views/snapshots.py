"""Read and show the snapshots that `extras/snapshots.py` has written.

A snapshot keeps the token embedding of a model and its attention to one line.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from gpt.checkpoint.runs import MAX_VOCABULARY
from gpt.extras.inspection.views.tokens import PLACEHOLDER, label_of
from gpt.system.errors import CheckpointError, InputError, explained
from gpt.system.files import parse_json, read_file

MAX_BYTES = 32 * 2**20
"""Largest file that is read: 32 MiB, several times as much as a snapshot of GPT-2 XL has."""
NEAREST = 4
"""How many of the nearest tokens are shown beside one."""
LARGEST = torch.finfo(torch.float16).max
"""Largest number of a snapshot, whose tensors are float16."""
DECIMALS = 3
"""Decimals of the numbers that a page gets: more than its pixels show."""
NEWER_FIELDS = ("prompt", "characters", "hardware")
"""Fields that the files of older runs lack."""


@dataclass(frozen=True)
class Snapshot:
    """A model at one step."""

    tokens: list[str]  # a label for each row of `embedding`
    line: list[str]  # a label for each token of the line that was read
    embedding: Tensor  # (V, C) float32; (0, C) where the vocabulary is large
    attention: Tensor  # (n_layer, H, T, T) float32
    sample: str  # what the model wrote after the prompt; empty where it wrote nothing
    loss: float | None  # the last one that the training had read, in nats per token
    # None in older files, in which `sample` has several lines without a prompt
    prompt: str | None
    characters: int | None  # about how long the corpus is
    hardware: str | None  # what trained the model, in words


def read_snapshot(file: Path) -> Snapshot:
    """Read a file of a snapshot; raise CheckpointError if it is damaged."""
    try:
        content = read_file(file, MAX_BYTES)
        fields = _fields_of(content)
        newer = {name: fields.pop(name, None) for name in NEWER_FIELDS}
        _require_types(**newer)
        _require_whole(**fields)
        tokens = [label_of(bytes.fromhex(token)) for token in fields["tokens"]]
        line = [label_of(bytes.fromhex(token)) for token in fields["line"]]
    except (OSError, SafetensorError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"the snapshot {file} cannot be read: {explained(error)}") from None
    return Snapshot(
        tokens=[label or f"#{index}" for index, label in enumerate(tokens)],
        line=[label or PLACEHOLDER for label in line],
        embedding=fields["embedding"],
        attention=fields["attention"],
        sample=fields["sample"],
        loss=fields["loss"],
        **newer,
    )


def _fields_of(content: bytes) -> dict[str, Any]:
    """Return the fields of a file by their names, as they are stored.

    Tensors are those of `Snapshot`, in float32; tokens are bytes in hexadecimal.
    """
    tensors = safetensors.torch.load(content)
    numbers = {name: tensor.float() for name, tensor in tensors.items()}
    words = {name: parse_json(text) for name, text in _metadata_of(content).items()}
    return dict(**numbers, **words)  # raises TypeError where both have a name


def _metadata_of(content: bytes) -> dict[str, str]:
    """Return the texts of a safetensors file by name, which its library reads from paths only.

    The format: eight bytes say how long the JSON is that follows them.
    """
    length = int.from_bytes(content[:8], "little")
    header = parse_json(content[8 : 8 + length])
    return dict(header.get("__metadata__") or {})


def _require_types(*, prompt: Any, characters: Any, hardware: Any) -> None:
    """Raise ValueError where a field that older files lack is neither missing nor of its type."""
    for text in (prompt, hardware):
        if not isinstance(text, str | None):
            raise ValueError("its words are no text")
    if not isinstance(characters, int | None):
        raise ValueError("its length of the corpus is no whole number")


def _require_whole(
    *, tokens: Any, line: Any, embedding: Any, attention: Any, sample: Any, loss: Any
) -> None:
    """Raise ValueError where the fields of a file are not what a snapshot has.

    Somebody else may have made the file. A missing or an unknown field raises TypeError: it is no
    argument of this function.
    """
    for texts in (tokens, line, [sample]):
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise ValueError("its words are no text")
    if not isinstance(loss, float | None):
        raise ValueError("its loss is no number")
    is_matrix = embedding.dim() == 2 and embedding.size(1) > 0
    has_row_of_each_token = len(embedding) == len(tokens) <= MAX_VOCABULARY
    if not is_matrix or not has_row_of_each_token:
        raise ValueError("its embedding has a wrong shape")
    is_of_line = attention.dim() == 4 and attention.shape[2:] == (len(line), len(line))
    if not is_of_line or attention.numel() == 0:
        raise ValueError("its attention has a wrong shape")
    for tensor in (embedding, attention):
        if not (tensor.abs() <= LARGEST).all():  # not `>`, so that NaN is refused, too
            raise ValueError("its numbers are not those of float16")


def view_snapshot(step: int, shown: Snapshot, basis: Snapshot) -> dict[str, Any]:
    """Return a snapshot as JSON values.

    Args:
        step: the step of the snapshot.
        basis: the snapshot whose plane the embeddings are projected to.

    Returns:
        `attention` is (n_layer, H, T, T) on the T tokens of `line`. `points` are x and y of each of
        `tokens`, of which there are none if the vocabulary is large. `nearest` are the tokens with
        the largest cosine to each.

    Raises:
        InputError: the two snapshots are of different models.
    """
    if shown.embedding.shape != basis.embedding.shape:
        raise InputError(f"the snapshot of step {step} is of another model")
    points = shown.embedding
    nearest: list[list[int]] = []
    if shown.tokens:
        points = map_embedding(shown.embedding, basis.embedding)
        nearest = nearest_tokens(shown.embedding, NEAREST)
    return {
        "step": step,
        "loss": shown.loss,
        "prompt": shown.prompt,
        "sample": shown.sample,
        "line": shown.line,
        "attention": _rounded(shown.attention),
        "tokens": shown.tokens,
        "points": _rounded(points),
        "nearest": nearest,
    }


def _rounded(values: Tensor) -> list[Any]:
    """Return numbers in nested lists, with few digits in JSON."""
    factor = 10**DECIMALS
    # A float32 of 0.1 would be written as 0.10000000149011612.
    rounded: list[Any] = values.double().mul(factor).round().div(factor).tolist()
    return rounded


def map_embedding(embedding: Tensor, basis: Tensor) -> Tensor:
    """Place embeddings (V, C) in the plane in which those of another step vary most: (V, 2).

    The axes are the first two principal components of that step. The unit is the largest coordinate
    of its own points, so that maps of many steps have one plane and one scale. Each axis is turned
    so that the points of that step are skewed to the right: its sign would be arbitrary.
    """
    centered = basis - basis.mean(dim=0)
    axes = torch.linalg.svd(centered, full_matrices=False).Vh[:2].T  # (C, 2)
    basis_points = centered @ axes  # (V, 2)
    skewness = basis_points.pow(3).sum(dim=0)
    axes = axes * torch.where(skewness < 0, -1.0, 1.0)
    unit = basis_points.abs().max().clamp(min=1e-12)  # all points may be one
    points = (embedding - embedding.mean(dim=0)) @ axes / unit
    # A vocabulary of one token has one component: y is 0.
    return torch.nn.functional.pad(points, (0, 2 - points.size(1)))


def nearest_tokens(embedding: Tensor, count: int) -> list[list[int]]:
    """Return the rows with the largest cosine to each row of (V, C), the largest first.

    There are at most `count` for each row, and a row is not near itself.
    """
    unit = torch.nn.functional.normalize(embedding, dim=-1)
    cosines = (unit @ unit.T).fill_diagonal_(-torch.inf)  # (V, V)
    num_others = len(unit) - 1
    count = max(0, min(count, num_others))
    nearest: list[list[int]] = cosines.topk(count).indices.tolist()
    return nearest
