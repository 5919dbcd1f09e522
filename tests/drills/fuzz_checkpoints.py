"""Checkpoints whose JSON and YAML someone has edited, with the hashes of what they edited."""

import contextlib
import hashlib
import json
import random
import shutil
from pathlib import Path

import torch

from drills.nasty import edit
from gpt.checkpoint import load_trained, read_checkpoint
from gpt.config import load_config
from gpt.environment import read_settings
from gpt.errors import GPTError
from gpt.training.setup import open_session

INSIDE = ("state.json", "tokenizer.json", "manifest.json", "config.yaml")
OUTSIDE = ("best.json", "last.json", "config.yaml")


def spoil_checkpoint(run: Path, copy: Path, chance: random.Random) -> None:
    """Edit one file of a copy of a run, then load it, resume it and look for its checkpoints."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(run, copy / run.name)
    spoiled = copy / run.name
    checkpoint = sorted((spoiled / "checkpoints").iterdir())[-1]
    if chance.random() < 0.75:
        edit(checkpoint / chance.choice(INSIDE), chance)
        _hash_again(checkpoint)
    else:
        edit(spoiled / chance.choice(OUTSIDE), chance)
    for use in (
        lambda: read_checkpoint(checkpoint),
        lambda: load_trained(spoiled, copy, torch.device("cpu")),
        lambda: _resume(spoiled),
    ):
        with contextlib.suppress(GPTError):
            use()


def _hash_again(checkpoint: Path) -> None:
    """Write the hashes of all files into the manifest, unless that is what was edited."""
    path = checkpoint / "manifest.json"
    try:
        manifest = json.loads(path.read_bytes())
        for name, entry in manifest["files"].items():
            content = (checkpoint / name).read_bytes()
            entry.update(sha256=hashlib.sha256(content).hexdigest(), size=len(content))
    except (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError):
        return
    path.write_text(json.dumps(manifest), encoding="utf-8")


def _resume(run: Path) -> None:
    loaded = load_config(Path("tiny.yaml"), [f"run.dir={json.dumps(str(run.parent))}", f"run.name={run.name}"])
    trainer = open_session(loaded, read_settings(offline=True), lambda line: None, resume="auto")
    trainer.run_folder.unlock()
