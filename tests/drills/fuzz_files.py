"""JSON and YAML that someone has edited: tokenizers and checkpoints."""

import contextlib
import json
import random
import shutil
from pathlib import Path
from typing import Any

import torch

from drills.hostile_files import seal
from drills.nasty import edit, mutate_json
from gpt.checkpoint import load_trained, read_checkpoint
from gpt.config.loading import load_config
from gpt.data.bpe import learn_bpe
from gpt.data.saved_tokenizer import tokenizer_from_dict
from gpt.environment import read_settings
from gpt.errors import GPTError
from gpt.training.plan import Request
from gpt.training.setup import open_session
from tiny import CORPUS

TOKENIZERS: list[dict[str, Any]] = [
    learn_bpe([CORPUS], 300).to_dict(),
    {"type": "char", "chars": sorted(set(CORPUS))},
    {"type": "byte"},
]


def attack_tokenizer(chance: random.Random) -> None:
    damaged = mutate_json(chance.choice(TOKENIZERS), chance)
    with contextlib.suppress(GPTError):
        tokenizer = tokenizer_from_dict(damaged)
        ids = tokenizer.encode("It was a door.")
        tokenizer.decode(ids)
        tokenizer.count_chars(ids)


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
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError):
            seal(checkpoint)  # unless the manifest is what was edited
    else:
        edit(spoiled / chance.choice(OUTSIDE), chance)
    for use in (
        lambda: read_checkpoint(checkpoint),
        lambda: load_trained(spoiled, copy, torch.device("cpu")),
        lambda: _resume(spoiled),
    ):
        with contextlib.suppress(GPTError):
            use()


def _resume(run: Path) -> None:
    loaded = load_config(Path("tiny.yaml"), [f"run.dir={json.dumps(str(run.parent))}", f"run.name={run.name}"])
    trainer = open_session(Request(loaded, read_settings(offline=True), lambda line: None, resume="auto"))
    trainer.run_folder.unlock()
