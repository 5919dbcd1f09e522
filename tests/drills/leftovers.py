"""All that a run leaves behind, to compare one that was disturbed with one that never was."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt.checkpoint import RunFolder, read_checkpoint


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The tensors and values of nested dicts and lists, by path."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, f"{path}/{key}")
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from leaves(value, f"{path}/{index}")
    else:
        yield path, tree


def same(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, Tensor) else bool(one == other)


def differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return [key for key in {**one, **other} if key not in one or key not in other or not same(one[key], other[key])]


class Leftovers(dict[str, Any]):
    """All that a finished run leaves, without what depends on the clock."""

    def __repr__(self) -> str:
        return f"{len(self)} leftovers"


def everything(run: Path) -> Leftovers:
    """Read the leftovers of a run folder, with its newest checkpoint."""
    checkpoint = read_checkpoint(RunFolder(run).checkpoints()[0])
    found = {f"weights/{name}": weight for name, weight in checkpoint.model.items()}
    found |= dict(leaves(checkpoint.training, "training"))
    found |= {f"state/{key}": value for key, value in checkpoint.state.items() if key != "seconds"}
    for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        for name, value in row.items():
            if not name.startswith("speed/"):
                key = f"metrics/{row['step']}/{name}"
                assert name == "step" or key not in found, f"{key} stands twice"
                found[key] = value
    for name in ("best", "last"):
        found[name] = json.loads((run / f"{name}.json").read_text(encoding="utf-8"))
    return Leftovers(found | {path.name: path.read_text(encoding="utf-8") for path in (run / "samples").iterdir()})
