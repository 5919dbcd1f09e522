"""Files that decay on disk: cut, with flipped bits, missing, swapped, empty, of a later format."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from drills.forks import prepare_to_fork
from drills.frame import Drill, Tally
from drills.ranks import import_distributed, recipe, train_pair
from drills.rot_corpora import attack_shards, attack_sweep
from drills.tiny_run import make_folder, train_tiny
from gpt.checkpoint import RunFolder, find_checkpoint, read_checkpoint
from gpt.data.dataset import META, open_dataset
from gpt.errors import GPTError

CUTS = 16
Damage = tuple[str, bytes | None]
"""What was done, and the content that a file then has; None: there is no file."""


def damages(content: bytes, flips: int, cuts: int, chance: random.Random) -> Iterator[Damage]:
    """Yield a file's content after each kind of damage."""
    yield "deleted", None
    yield "emptied", b""
    for number in range(cuts):
        end = len(content) * number // cuts
        yield f"cut after {end} bytes", content[:end]
    for _ in range(flips):
        bit = chance.randrange(8 * len(content))
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        yield f"bit {bit} flipped", bytes(changed)


def attack_files(
    files: list[Path], counts: tuple[int, int], others: dict[str, bytes], tally: Tally, finds: Callable[[Path], str]
) -> None:
    """Damage each of some files in all ways, one at a time.

    Args:
        files: they are put back afterwards.
        counts: bits to flip and places to cut at, in each file.
        others: contents of the files of another folder of the kind, to swap them with.
        tally: counts damages and those that were missed.
        finds: returns the message about a file's damage, or an empty text if nothing was noticed.
    """
    chance = random.Random(0)
    for path in files:
        content = path.read_bytes()
        swapped = others.get(path.name, content)
        swap = [("swapped", swapped)] if swapped != content else []
        for what, damaged in [*damages(content, *counts, chance), *swap]:
            path.unlink() if damaged is None else path.write_bytes(damaged)
            message = finds(path)
            tally.count("damages")
            found = tally.check(bool(message), f"{path.parent.name}/{path.name} {what}: not noticed")
            named = path.name in message or path.name in ("manifest.json", "dataset.json", "state.json")
            found &= tally.check(not message or named, f"{path.name} {what}: not named: {message}")
            tally.count("missed", not found)
            path.write_bytes(content)


def attack_checkpoint(run: Path, flips: int, cuts: int, tally: Tally) -> None:
    """Damage the newest checkpoint: reading it names the file, and a resume takes the one before it."""
    folder = RunFolder(run)
    newest, older = folder.checkpoints()[:2]

    def finds(path: Path) -> str:
        try:
            read_checkpoint(newest)
        except GPTError as error:
            try:
                found = folder.newest_valid()
            except GPTError:
                return ""
            tally.check(found is not None and found[0] == older, f"{path.name}: {found and found[0]} is read instead")
            return str(error) if found is not None and found[2] else ""
        return ""

    attack_files(
        sorted(newest.iterdir()),
        (flips, cuts),
        {path.name: path.read_bytes() for path in older.iterdir()},
        tally,
        finds,
    )
    manifest = newest / "manifest.json"
    content = manifest.read_bytes()
    manifest.write_text(json.dumps({**json.loads(content), "format": 99}))
    tally.count("damages")
    tally.check("format 99" in finds(manifest), "a format of the future is not noticed")
    manifest.write_bytes(content)


def attack_pointers(run: Path, flips: int, cuts: int, tally: Tally) -> None:
    """Damage best.json and last.json: they are named, or the value that changed is not what they are for."""
    for name in ("best", "last"):
        path = run / f"{name}.json"
        content = path.read_bytes()
        right = RunFolder(run).pointed(name)
        older = ("with the step of an older one", content.replace(b'"step": 6', b'"step": 3'))
        for what, damaged in [older, *damages(content, flips, cuts, random.Random(0))]:
            if damaged is None or damaged.rstrip() == content.rstrip():
                continue  # a run without a pointer has none that is wrong
            path.write_bytes(damaged)
            tally.count("damages")
            try:
                found = find_checkpoint(run / name, run.parent)
                noticed = tally.check(found == right, f"{path.name} {what}: it leads to {found}")
            except GPTError as error:
                noticed = tally.check(path.name in str(error), f"{path.name} {what}: not named: {error}")
            resumed = RunFolder(run).newest_valid()
            noticed &= tally.check(resumed is not None and resumed[0] == right, f"{path.name} {what}: {resumed}")
            tally.count("missed", not noticed)
        path.write_bytes(content)


def attack_tokens(folder: Path, flips: int, cuts: int, tally: Tally) -> None:
    """Damage the token files of a corpus."""

    right = open_dataset(folder)

    def finds(path: Path) -> str:
        try:
            found = open_dataset(folder)
        except GPTError as error:
            return str(error)
        same = found.tokenizer.to_dict() == right.tokenizer.to_dict() and np.array_equal(found.train, right.train)
        return f"{path.name}: its meaning is the same" if same and np.array_equal(found.val, right.val) else ""

    other_vocabulary = (folder / META).read_bytes().replace(b'"k"', b'"%"')
    attack_files(sorted(folder.iterdir()), (flips, cuts), {META: other_vocabulary}, tally, finds)


def run(folder: Path, full: bool) -> Tally:
    """Damage every file of a checkpoint, of a run's pointers, of its corpus and of a sweep, one at a time."""
    tally = Tally("damages", "missed")
    trained = train_tiny(folder, "train.keep_last=9", "train.ngrams=true")
    flips, cuts = (60, CUTS) if full else (6, 4)
    attack_checkpoint(trained, flips, cuts, tally)
    attack_pointers(trained, flips, cuts, tally)
    (tokens,) = (folder / "data" / "tokens").iterdir()
    attack_tokens(tokens, flips, cuts, tally)
    shutil.rmtree(folder / "data")

    def attack(files: list[Path], others: dict[str, bytes], finds: Callable[[Path], str]) -> None:
        chosen = files if full else files[-2:]
        attack_files(chosen, (flips // 2, cuts // 2), others, tally, finds)

    attack_shards(folder, attack, 40 if full else 2, tally)
    prepare_to_fork()
    attack_sweep(folder / "sweep", attack)
    if full:
        _attack_pair(folder / "pair", flips // 4, cuts // 4, tally)
    return tally


def _attack_pair(folder: Path, flips: int, cuts: int, tally: Tally) -> None:
    """Damage a checkpoint that was gathered from two processes."""
    import_distributed()
    make_folder(folder)
    endings = train_pair(folder, recipe("fsdp", 6))
    assert [ending.code for ending in endings] == [0, 0], endings
    attack_checkpoint(folder / "runs" / "tiny", flips, cuts, tally)


DRILL = Drill(
    "A file of a checkpoint, pointer, corpus or sweep that was cut, changed by a bit, deleted, emptied, "
    "swapped or written by a later version is named, and `--resume auto` takes the checkpoint before it.",
    run,
)
