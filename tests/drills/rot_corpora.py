"""Shards that decay, the journal of an unfinished preparation, and what a sweep remembers of its trials."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from unittest.mock import patch

import numpy as np

from drills.forks import run_forked
from drills.frame import Tally
from drills.killed_commands import BLOCK, contents, shard, write_texts
from drills.tiny_run import SWEEP, make_folder, sweep_once
from gpt.corpora import corpus_text, shards
from gpt.corpora.shards import JOURNAL
from gpt.corpora.tasks import Encode
from gpt.corpora.workers import WorkerLost
from gpt.data.dataset import open_dataset
from gpt.errors import DataError
from gpt.training.sweeps.outcomes import RESULTS, load_outcomes

Finds = Callable[[Path], str]
Attack = Callable[[list[Path], dict[str, bytes], Finds], None]
"""Damages files, given contents to swap them with, and asks for the message about each."""


def attack_shards(folder: Path, attack: Attack, flips: int, tally: Tally) -> None:
    """Damage shards and dataset.json; then the journal of a preparation that was killed in the middle."""
    write_texts(folder / "texts")
    with contextlib.chdir(folder), patch.object(corpus_text, "BLOCK", BLOCK), patch.object(shards, "BLOCK", BLOCK):
        assert shard() == 0
        (written,) = Path("sharded/tokens").glob("*")
        right, expected = open_dataset(written), contents(written)

        def finds(path: Path) -> str:
            try:
                found = open_dataset(written)
            except DataError as error:
                return str(error)
            same = found.tokenizer.to_dict() == right.tokenizer.to_dict()
            same &= np.array_equal(np.asarray(found.train), np.asarray(right.train))
            return f"{path.name}: its meaning is the same" if same and len(found.val) == len(right.val) else ""

        files = sorted(written.glob("shard-*"))
        attack(
            sorted(written.iterdir()),
            {one.name: other.read_bytes() for one, other in pairwise(files)},
            finds,
        )
        shutil.rmtree(written)
        _leave_unfinished()
        partial = written.with_name(f"{written.name}.partial")
        shutil.copytree(partial, "kept")
        for what, damaged in _changed_digits((partial / JOURNAL).read_bytes(), flips):
            shutil.rmtree(written, ignore_errors=True)
            shutil.copytree("kept", partial, dirs_exist_ok=True)
            (partial / JOURNAL).write_bytes(damaged)
            good = shard() == 0 and contents(written) == expected
            tally.count("damages")
            tally.check(good, f"{JOURNAL} {what}: other token files are written")
            tally.count("missed", not good)


def _leave_unfinished() -> None:
    """Begin the preparation, and end it as by a kill after some blocks."""
    left, encode = iter(range(2)), Encode.__call__

    def call(task: Encode, text: str) -> bytes:
        if next(left, None) is None:
            raise WorkerLost("killed")
        return encode(task, text)

    with patch.object(Encode, "__call__", call):
        assert shard() == 2


def _changed_digits(content: bytes, number: int) -> Iterator[tuple[str, bytes]]:
    """Yield the content with one digit changed, by turns early and late in it; then with each line left out."""
    places = [place for place, byte in enumerate(content) if chr(byte).isdigit()]
    for place in Random(0).sample(places, min(number, len(places))):
        yield f"digit {place} changed", content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
    vocabulary = content.replace(b'"k"', b'"@"')
    assert vocabulary != content
    yield "with another vocabulary", vocabulary
    position = content.rindex(b'"offset": ') + len(b'"offset": ')
    yield "with another position", content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]
    lines = content.splitlines(keepends=True)
    for line in range(1, len(lines)):
        yield f"without line {line}", b"".join(lines[:line] + lines[line + 1 :])
    yield "with two lines swapped", b"".join([lines[0], *reversed(lines[1:])])


def attack_sweep(folder: Path, attack: Attack) -> None:
    """Damage the results of a sweep, and the states of a trial that they are compared with."""
    make_folder(folder)
    ending = run_forked(sweep_once, folder)
    assert ending.code == 0, ending.output
    sweep = folder / SWEEP
    right = load_outcomes(sweep)
    assert len(right) == 2

    def finds(path: Path) -> str:
        said: list[str] = []
        found = load_outcomes(sweep, said.append)
        if found == right:
            return f"{path.name}: its meaning is the same"
        return " ".join(said) if found.items() <= right.items() else ""

    checkpoint = sweep / next(iter(right)) / "checkpoints" / "step-000004"
    results = (sweep / RESULTS).read_bytes()
    later = results.replace(b'"step": 4', b'"step": 5')
    assert later != results
    attack([checkpoint / "manifest.json", checkpoint / "state.json", sweep / RESULTS], {RESULTS: later}, finds)
