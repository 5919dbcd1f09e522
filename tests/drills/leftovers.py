"""A folder to work in, and all that a run leaves there: one that was disturbed is compared with one that never was."""

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from drills.forks import Ending
from gpt.checkpoint import RunFolder, read_checkpoint
from gpt.cli import train
from gpt.system.errors import GPTError
from tiny import CORPUS, TINY


def make_folder(folder: Path, recipe: str = TINY) -> Path:
    """Return a new folder with tiny.yaml and corpus.txt."""
    folder.mkdir(exist_ok=True)
    (folder / "tiny.yaml").write_text(recipe, encoding="utf-8")
    (folder / "corpus.txt").write_text(CORPUS * 30, encoding="utf-8")
    return folder


def train_tiny(folder: Path, *overrides: str) -> Path:
    """Train runs/tiny in such a folder, and return its path."""
    with contextlib.chdir(make_folder(folder)):
        assert train.main(["--config", "tiny.yaml", *overrides]) == 0
    return folder / "runs" / "tiny"


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from leaves(value, f"{path}/{key}")
    else:
        yield path, tree


def differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return the keys of which one lacks the other's value, to the bit."""

    def same(a: Any, b: Any) -> bool:
        return torch.equal(a, b) if isinstance(a, Tensor) else bool(a == b)

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


def all_runs(runs: Path) -> Leftovers:
    """Read the leftovers of every run below a folder."""
    found = Leftovers()
    for last in runs.rglob("last.json"):
        found |= {f"{last.parent.name}/{key}": value for key, value in everything(last.parent).items()}
    return found


def hidden_files(folder: Path) -> list[str]:
    """Return the names that begin with a dot below a folder: what an interrupted write left there."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob(".*"))


def contents(path: Path) -> dict[str, str]:
    """Return the sha256 of each file that has a name to be found by."""
    files = [path] if path.is_file() else [file for file in path.rglob("[!.]*") if file.is_file()]
    return {str(file.relative_to(path.parent)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def lost(place: Path, ending: Ending, expected: Leftovers) -> str:
    """Return what the runs in `place` lack or have too much once they have ended; empty if nothing."""
    if ending.code != 0 or "Traceback" in ending.output:
        return f"exit code {ending.code}: {ending.output[-500:]}"
    try:
        differences = differing(all_runs(place / "runs"), expected)
    except (AssertionError, GPTError, OSError, ValueError) as error:
        return repr(error)
    return ", ".join([*differences[:9], *hidden_files(place / "runs")])
