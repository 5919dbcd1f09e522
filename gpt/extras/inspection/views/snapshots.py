"""What `extras/snapshots.py` has kept of a model: its token embedding and its attention to one line."""

from dataclasses import dataclass, replace
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
NEAREST = 4
LARGEST = torch.finfo(torch.float16).max


@dataclass(frozen=True)
class Snapshot:
    """A model at one step."""

    tokens: list[str]  # a label for each row of `embedding`
    line: list[str]  # a label for each token of the line that was read
    embedding: Tensor  # (V, C) float32; (0, C) where the vocabulary is large
    attention: Tensor  # (n_layer, H, T, T) float32
    sample: str  # lines that the model wrote
    loss: float | None  # the last one that the training had read, in nats per token


def read_snapshot(file: Path) -> Snapshot:
    """Read a file of a snapshot; CheckpointError: it is damaged."""
    try:
        content = read_file(file, MAX_BYTES)
        tensors: dict[str, Any] = {
            name: tensor.float() for name, tensor in safetensors.torch.load(content).items()
        }
        words: dict[str, Any] = {
            name: parse_json(value) for name, value in _metadata_of(content).items()
        }
        snapshot = Snapshot(**tensors, **words)
        _require_whole(snapshot)
        tokens, line = (map(bytes.fromhex, each) for each in (snapshot.tokens, snapshot.line))
        labels = [label_of(content) or f"#{index}" for index, content in enumerate(tokens)]
        return replace(
            snapshot, tokens=labels, line=[label_of(content) or PLACEHOLDER for content in line]
        )
    except (OSError, SafetensorError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"the snapshot {file} cannot be read: {explained(error)}") from None


def _metadata_of(content: bytes) -> dict[str, str]:
    """Return the texts of a safetensors file by name, which its library reads from paths only.

    The format: eight bytes say how long the JSON is that follows them.
    """
    header = parse_json(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return dict(header.get("__metadata__") or {})


def _require_whole(shown: Snapshot) -> None:
    """Raise ValueError where a snapshot that somebody else may have made is not what its class says."""
    words, known, length = (
        (shown.tokens, shown.line, [shown.sample]),
        len(shown.tokens),
        len(shown.line),
    )
    if not all(
        isinstance(each, list) and all(isinstance(word, str) for word in each) for each in words
    ):
        raise ValueError("its words are no text")
    if not isinstance(shown.loss, float | None):
        raise ValueError("its loss is no number")
    embedding, attention = shown.embedding, shown.attention
    if (
        known > MAX_VOCABULARY
        or embedding.dim() != 2
        or len(embedding) != known
        or not embedding.size(1)
    ):
        raise ValueError("its embedding has a wrong shape")
    if attention.dim() != 4 or attention.shape[2:] != (length, length) or not attention.numel():
        raise ValueError("its attention has a wrong shape")
    if not all((tensor.abs() <= LARGEST).all() for tensor in (embedding, attention)):
        raise ValueError("its numbers are not those of float16")


def view_snapshot(step: int, shown: Snapshot, final: Snapshot) -> dict[str, Any]:
    """Return a snapshot as JSON values, with its embeddings in the plane of those of `final`; numbers with 3 decimals.

    `attention` is (n_layer, H, T, T) on the T tokens of `line`; `points` are x and y of each of `tokens`, which are
    none where the vocabulary is large; `nearest` are those with the largest cosine. InputError: another model's.
    """
    if shown.embedding.shape != final.embedding.shape:
        raise InputError(f"the snapshot of step {step} is of another model")
    points = map_embedding(shown.embedding, final.embedding) if shown.tokens else shown.embedding
    return {
        "step": step,
        "loss": shown.loss,
        "sample": shown.sample,
        "line": shown.line,
        "attention": _rounded(shown.attention),
        "tokens": shown.tokens,
        "points": _rounded(points),
        "nearest": nearest_tokens(shown.embedding, NEAREST) if shown.tokens else [],
    }


def _rounded(values: Tensor) -> list[Any]:
    rounded: list[Any] = values.double().mul(1000).round().div(1000).tolist()
    return rounded


def map_embedding(embedding: Tensor, final: Tensor) -> Tensor:
    """Place embeddings (V, C) in the plane in which those of another step vary most: (V, 2).

    That step's principal components, in a unit in which its own points reach 1, so that maps of many steps are of one
    plane and one scale. Each component is turned so that its points are skewed to the right.
    """
    centered = final - final.mean(dim=0)
    axes = torch.linalg.svd(centered, full_matrices=False).Vh[:2].T  # (C, 2)
    own = centered @ axes
    turned = axes * torch.where(own.pow(3).sum(dim=0) < 0, -1.0, 1.0)
    points = (embedding - embedding.mean(dim=0)) @ turned / own.abs().max().clamp(min=1e-12)
    # of one token there is one component
    return torch.nn.functional.pad(points, (0, 2 - points.size(1)))


def nearest_tokens(embedding: Tensor, count: int) -> list[list[int]]:
    """Return the rows whose embeddings have the largest cosine with each row of (V, C), at most `count`, best first."""
    unit = torch.nn.functional.normalize(embedding, dim=-1)
    cosines = (unit @ unit.T).fill_diagonal_(-torch.inf)
    nearest: list[list[int]] = cosines.topk(max(0, min(count, len(unit) - 1))).indices.tolist()
    return nearest
