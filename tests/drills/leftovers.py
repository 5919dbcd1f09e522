"""Make a folder to work in, and read all that a run leaves there, to compare a disturbed run with
an undisturbed one.
"""

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
    """Make a folder with tiny.yaml and corpus.txt, and return it."""
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
    """Yield all values of nested dicts and lists with their paths."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, f"{path}/{key}")
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from leaves(value, f"{path}/{index}")
    else:
        yield path, tree


def differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return the keys whose values differ by a bit, or which only one of the dicts has."""
    return [key for key in {**one, **other} if not _has_same(key, one, other)]


def _has_same(key: str, one: dict[str, Any], other: dict[str, Any]) -> bool:
    if key not in one or key not in other:
        return False
    if isinstance(one[key], Tensor):
        return torch.equal(one[key], other[key])
    return bool(one[key] == other[key])


class Leftovers(dict[str, Any]):
    """All that a finished run leaves, without what depends on the clock."""

    def __repr__(self) -> str:
        return f"{len(self)} leftovers"


def everything(run: Path) -> Leftovers:
    """Read the leftovers of a run folder, with its newest checkpoint."""
    checkpoint = read_checkpoint(RunFolder(run).checkpoints()[0])
    found = Leftovers()
    for name, weight in checkpoint.model.items():
        found[f"weights/{name}"] = weight
    found |= dict(leaves(checkpoint.training, "training"))
    for key, value in checkpoint.state.items():
        if key != "seconds":
            found[f"state/{key}"] = value
    found |= _read_metrics(run / "metrics.jsonl")
    for name in ("best", "last"):
        found[name] = json.loads((run / f"{name}.json").read_text(encoding="utf-8"))
    for path in (run / "samples").iterdir():
        found[path.name] = path.read_text(encoding="utf-8")
    return found


def _read_metrics(file: Path) -> dict[str, Any]:
    """Read the metrics of every step without speeds.

    None may be there twice, as after a wrong resume.
    """
    found: dict[str, Any] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        for name, value in row.items():
            if name.startswith("speed/"):
                continue
            key = f"metrics/{row['step']}/{name}"
            assert name == "step" or key not in found, f"{key} stands twice"
            found[key] = value
    return found


def all_runs(runs: Path) -> Leftovers:
    """Read the leftovers of every run below a folder."""
    found = Leftovers()
    for last in runs.rglob("last.json"):
        run = last.parent
        for key, value in everything(run).items():
            found[f"{run.name}/{key}"] = value
    return found


def hidden_files(folder: Path) -> list[str]:
    """Return the names that begin with a dot below a folder: the files that interrupted writes have
    left.
    """
    return sorted(str(path.relative_to(folder)) for path in folder.rglob(".*"))


def contents(path: Path) -> dict[str, str]:
    """Return the sha256 of a file, or of each file in a folder that is not hidden."""
    files = [path]
    if not path.is_file():
        files = [file for file in path.rglob("[!.]*") if file.is_file()]
    hashes = {}
    for file in files:
        name = str(file.relative_to(path.parent))
        hashes[name] = hashlib.sha256(file.read_bytes()).hexdigest()
    return hashes


def lost(place: Path, ending: Ending, expected: Leftovers) -> str:
    """Return how the leftovers of runs that have ended differ from the expected ones.

    Empty if they do not.
    """
    if ending.code != 0 or "Traceback" in ending.output:
        return f"exit code {ending.code}: {ending.output[-500:]}"
    try:
        differences = differing(all_runs(place / "runs"), expected)
    except (AssertionError, GPTError, OSError, ValueError) as error:
        return repr(error)
    return ", ".join([*differences[:9], *hidden_files(place / "runs")])
