"""JSON and YAML that someone has edited: tokenizers, descriptions of shards, search spaces, sweeps, checkpoints."""

import contextlib
import hashlib
import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from drills.nasty import edit, mutate_bytes, mutate_json, value
from gpt.checkpoint import load_trained, read_checkpoint
from gpt.config import load_config, parse_config
from gpt.corpora.corpus_text import BLOCK
from gpt.corpora.preparation import prepare
from gpt.corpora.sharding import unfinished
from gpt.corpora.shards import JOURNAL
from gpt.data.bpe import learn_bpe
from gpt.data.dataset import META, Dataset, open_dataset, seal, unseal
from gpt.data.saved_tokenizer import tokenizer_from_dict
from gpt.environment import read_settings
from gpt.errors import GPTError
from gpt.progress import silent
from gpt.training.setup import open_session
from gpt.training.sweeps.outcomes import RESULTS, load_outcomes
from gpt.training.sweeps.space import read_space
from gpt.training.sweeps.trials import plan_trials
from tiny import CORPUS, TINY

TOKENIZERS: list[dict[str, Any]] = [
    learn_bpe([CORPUS], 300).to_dict(),
    {"type": "char", "chars": sorted(set(CORPUS))},
    {"type": "byte"},
]
SPACE = """
model: {n_layer: [1, 2], mlp_conv: [null, 3]}
optim:
  learning_rate: {low: 1e-4, high: 1e-2, scale: log}
  warmup_steps: {low: 1, high: 3}
"""
HUGE = (f"1{'0' * 400}", f"1{'0' * 308}", f"-1{'0' * 308}", "1e308", "-1e308")
"""Ends of a range, which floats cannot hold, or not what is between them."""
SHARD_TOKENS = 700


def attack_tokenizer(chance: random.Random) -> None:
    """Build a tokenizer from a damaged description, and use it."""
    damaged = mutate_json(chance.choice(TOKENIZERS), chance)
    with contextlib.suppress(GPTError):
        tokenizer = tokenizer_from_dict(damaged)
        ids = tokenizer.encode("It was a door.")
        tokenizer.decode(ids)
        tokenizer.count_chars(ids)


def attack_space(chance: random.Random) -> None:
    """Plan the trials of a damaged search space."""
    path = Path("space.yaml")
    if chance.random() < 0.5:
        path.write_bytes(mutate_bytes(SPACE.encode(), chance))
    else:
        ends = (chance.choice(HUGE) if chance.random() < 0.5 else json.dumps(value(chance)) for _ in range(2))
        path.write_text(SPACE.replace("1e-4", next(ends)).replace("high: 3", f"high: {next(ends)}"), encoding="utf-8")
    number = chance.choice((None, 1, 5, 2000, 10**9, 10**30))
    with contextlib.suppress(GPTError):
        plan_trials(read_space(path), parse_config(TINY, "tiny.yaml"), number, chance.getrandbits(70))


def attack_outcomes(chance: random.Random) -> None:
    """Read the damaged results of a sweep."""
    row = {"name": "a", "status": "finished", "best_val_loss": 2.5, "best_step": 3, "message": "", "values": {}}
    results = {"trials": [row, row | {"name": "tiny"}]}
    (Path("runs") / RESULTS).write_text(json.dumps(mutate_json(results, chance)), encoding="utf-8")
    load_outcomes(Path("runs"))


class Shards:
    """A corpus in shards, whose descriptions are damaged.

    Args:
        folder: gets the shards; corpus.txt is in the present folder.
    """

    def __init__(self, folder: Path) -> None:
        overrides = [f"data.dir={json.dumps(str(folder))}", f"data.shard_tokens={SHARD_TOKENS}", "data.workers=1"]
        self._config = parse_config(TINY, "tiny.yaml", overrides).data
        dataset = self._prepare()
        self._path = folder / "tokens" / dataset.fingerprint
        self._intact, self._copy = folder / "intact", folder / "copy"
        self._path.rename(self._intact)
        self._tokens = self._all_tokens(open_dataset(self._intact))
        self._meta = unseal(json.loads((self._intact / META).read_text(encoding="utf-8")))

    def attack_index(self, chance: random.Random) -> None:
        """Open shards with a damaged description, which most often has the hash of what was edited."""
        self._renew(self._copy)
        damaged = mutate_json(self._meta, chance)
        if isinstance(damaged, dict) and chance.random() < 0.9:
            damaged = seal(damaged)
        (self._copy / META).write_text(json.dumps(damaged), encoding="utf-8")
        with contextlib.suppress(GPTError):
            dataset = open_dataset(self._copy)
            dataset.chars_per_token(dataset.train[:5])

    def attack_journal(self, chance: random.Random) -> None:
        """Continue to encode where the journal of what is finished was damaged: the tokens become the same.

        Where the hash of a line is that of what was edited, they may become others, but in no other way.
        """
        shutil.rmtree(self._path, ignore_errors=True)
        partial = unfinished(self._path)
        self._renew(partial)
        (partial / META).unlink()
        is_sealed_again = chance.random() < 0.5
        (partial / JOURNAL).write_text(self._journal(chance, is_sealed_again), encoding="utf-8")
        with contextlib.suppress(GPTError):
            tokens = self._all_tokens(self._prepare())
            assert is_sealed_again or np.array_equal(tokens, self._tokens)

    def _journal(self, chance: random.Random, is_sealed_again: bool) -> str:
        header = {"shard_tokens": SHARD_TOKENS, "block": BLOCK, "tokenizer": self._meta["tokenizer"]}
        lines: list[Any] = [header, *({"shard": shard} for shard in self._meta["shards"][:2])]
        number = chance.randrange(len(lines))
        damaged = mutate_json(lines[number] if is_sealed_again else seal(lines[number]), chance)
        if not is_sealed_again and number and chance.random() < 0.5:
            place = chance.choice(("length", "chars", "block", "offset"))
            damaged = seal(lines[number]) | {"shard": lines[number]["shard"] | {place: 1}}
        lines = [seal(line) for line in lines]
        lines[number] = seal(damaged) if is_sealed_again and isinstance(damaged, dict) else damaged
        return "".join(json.dumps(line) + "\n" for line in lines)

    def _renew(self, copy: Path) -> None:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self._intact, copy)

    def _prepare(self) -> Dataset:
        return prepare(self._config, read_settings(offline=True), silent)

    @staticmethod
    def _all_tokens(dataset: Dataset) -> NDArray[Any]:
        return np.concatenate([np.asarray(dataset.train), np.asarray(dataset.val)])


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
