"""SIGKILL before every change that a program makes on disk, at random moments, and in the middle of
writes.
"""

import hashlib
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path
from typing import NamedTuple

from drills.forks import Death, Ending, prepare_to_fork, run_forked
from drills.leftovers import all_runs, contents, hidden_files, lost, make_folder, train_tiny
from gpt.cli import export, import_model, prepare_data, quantize, train
from gpt.cli.command import run_command
from gpt.data import corpus_text
from gpt.data.download import Download, fetch
from gpt.system.progress import silent
from gpt.system.signals import WATCHED
from tiny import CORPUS

RECIPE = """
run: {name: run, device: cpu, dtype: float32, kernels: torch, threads: 1}
data: {source: file, path: corpus.txt}
model: {n_layer: 1, n_head: 2, n_embd: 16, block_size: 16, dropout: 0.1}
optim: {warmup_steps: 2}
train:
  batch_size: 2
  grad_accum_steps: 2
  max_steps: 8
  eval_interval: 2
  eval_max_tokens: 64
  log_interval: 1
  sample_tokens: 4
  keep_last: 2
"""
"""A run with dropout, whose random numbers have to go on where they were."""
NATIVE_RECIPE = RECIPE.replace("kernels: torch", "kernels: auto").replace(
    "n_embd: 16", "n_embd: 64"
)
"""A run that compiled kernels train, where there is a compiler; they need a larger width."""
COUNT = 20
"""Kills of a run that is continued from an earlier step."""
EARLIER = "runs/run/checkpoints/step-000002"
Outcome = tuple[str, str, str]
"""The figure that an attack counts for, a description of it, and what is wrong; see
`drills.__main__`.
"""


@dataclass(frozen=True)
class Subject:
    """A training that is stopped, and continued by the same command.

    Attributes:
        call: starts or continues it, in a child.
        deaths: yields how it is stopped, given whether at full scale, and how many changes it makes
            on disk.
        make: makes the folder that it works in.
        in_a_row: how often one run is stopped at most before it may finish.
    """

    call: Callable[[], int]
    deaths: Callable[[bool, int], Iterator[Death]]
    make: Callable[[Path], Path]
    in_a_row: int = 1


def resume(*options: str) -> int:
    return train.main(["--config", "tiny.yaml", "--resume", "auto", *options])


def resume_from_earlier() -> int:
    """Continue a finished run from an earlier checkpoint, and after a stop from its last one."""
    mark = Path("begun")
    if mark.exists():
        return resume()
    mark.touch()
    return train.main(["--config", "tiny.yaml", "--resume", EARLIER])


def make_recipe(folder: Path) -> Path:
    return make_folder(folder, RECIPE)


def make_native(folder: Path) -> Path:
    return make_folder(folder, NATIVE_RECIPE)


def make_finished(folder: Path) -> Path:
    ending = run_forked(partial(resume, "train.keep_last=9"), make_recipe(folder))
    assert ending.code == 0, ending.output
    return folder


def everywhere(full: bool, changes: int) -> Iterator[Death]:
    """Yield deaths before every second change on disk, at random moments, and in writes of random
    sizes.

    At the small scale these are four changes, one moment and one size.
    """
    generator = random.Random(0)
    step = 2 if full else changes // 4
    for number in range(1, changes + 1, step):
        yield Death(changes=number)
    count = 40 if full else 1
    for _ in range(count):
        yield Death(seconds=generator.uniform(0, 0.3))
    for _ in range(count):
        yield Death(file_bytes=generator.randrange(50_000))


def spread(full: bool, changes: int) -> Iterator[Death]:
    """Yield `COUNT` deaths before changes on disk, spread evenly over all changes.

    One at the small scale.
    """
    count = COUNT if full else 1
    for index in range(count):
        middle = (2 * index + 1) * changes // (2 * count)  # of the part of this index
        yield Death(changes=1 + middle)


SUBJECTS = (
    Subject(resume, everywhere, make_recipe, in_a_row=3),
    Subject(resume_from_earlier, spread, make_finished),
    Subject(resume, spread, make_native),
)


def attack(subject: Subject, folder: Path, full: bool) -> Iterator[Outcome]:
    """Stop a training in every way, continue it, and compare what it leaves with what it leaves
    undisturbed.
    """
    folder.mkdir()
    whole = subject.make(folder / "undisturbed")
    ending = run_forked(subject.call, whole)
    assert ending.code == 0, ending.output
    expected = all_runs(whole / "runs")
    waiting = list(subject.deaths(full, ending.changes))
    random.Random(1).shuffle(waiting)
    in_a_row = subject.in_a_row if full else 1
    while waiting:
        deaths = [waiting.pop() for _ in range(min(in_a_row, len(waiting)))]
        place = subject.make(folder / "place")
        for death in deaths:
            ending = run_forked(subject.call, place, death)
            if ending.was_killed:
                yield "kills", f"{death}", ""
            else:  # it was faster than the death
                wrong = "" if ending.code == 0 else f"{ending}"
                yield "ended before", f"{death}", wrong
        ending = run_forked(subject.call, place)
        yield "runs finished", f"{deaths}", lost(place, ending, expected)
        shutil.rmtree(place)


TEXT = bytes(range(32, 127)) * 5000
"""What is downloaded: all printable characters of ASCII."""


class Command(NamedTuple):
    """A command that writes `output`, a file or folder, in a working directory whose `runs/tiny` is
    a trained run.
    """

    name: str
    run: Callable[[], int]
    output: str


def _export(to: str, output: str) -> Command:
    arguments = ["--to", to, "--checkpoint", "runs/tiny", "--output", output]
    return Command(f"export to {to}", lambda: export.main(arguments), output)


def _download() -> int:
    url = f"http://127.0.0.1:{Path('port').read_text()}/text"
    file = Download((url,), "text.txt", hashlib.sha256(TEXT).hexdigest(), 2 * len(TEXT))

    def run() -> int:
        fetch(file, Path("downloads"), offline=False, report=silent)
        return 0

    return run_command(run)


def encode(into: str = "blocks") -> int:
    """Encode two files in several blocks.

    Only a child may call this: the size of blocks stays changed.
    """
    corpus_text.BLOCK = 300
    return prepare_data.main(["--config", "tiny.yaml", "data.path=texts", f"data.dir={into}"])


def write_texts(folder: Path) -> None:
    folder.mkdir()
    for name in ("a.txt", "b.txt"):
        (folder / name).write_text(CORPUS * 10, encoding="utf-8")


QUANTIZE = ["--checkpoint", "runs/tiny", "--output", "quantized"]
IMPORT = ["--from", "hf", "--input", "folder", "--output", "imported"]
COMMANDS = (
    Command(
        "encode",
        lambda: prepare_data.main(["--config", "tiny.yaml", "data.tokenizer=byte"]),
        "data",
    ),
    Command("blocks", encode, "blocks"),
    Command("download", _download, "downloads/text.txt"),
    Command("quantize", lambda: quantize.main(QUANTIZE), "quantized"),
    _export("html", "page.html"),
    _export("gguf", "model.gguf"),
    _export("hf", "folder"),
    Command("import", lambda: import_model.main(IMPORT), "imported"),
)
"""The last one reads what the one before it has written."""
INCOMPLETE = ("data", "blocks")
"""Folders from which files may be missing when a command was stopped; none of the files is
incomplete.
"""


@contextmanager
def text_server(folder: Path) -> Iterator[None]:
    """Serve `TEXT` by a process of its own, and write its port into the file `port`."""
    served = folder / "served"
    served.mkdir()
    (served / "text").write_bytes(TEXT)
    server = HTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=served))
    (folder / "port").write_text(str(server.server_port))
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the handler logs each request
        server.serve_forever()
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        server.server_close()


def undisturbed(folder: Path) -> Iterator[tuple[Command, int, dict[str, str]]]:
    """Yield each command after it has run once, with the number of its changes on disk and what it
    has written.
    """
    folder.mkdir()
    train_tiny(folder)
    shutil.rmtree(folder / "data")
    write_texts(folder / "texts")
    with text_server(folder):
        for command in COMMANDS:
            ending = run_forked(command.run, folder)
            assert ending.code == 0, ending.output
            yield command, ending.changes, contents(folder / command.output)


def stop(
    command: Command, folder: Path, death: Death, expected: dict[str, str]
) -> tuple[Ending, str]:
    """Stop a command, and run it again unless it was done; return how it ended, and what is wrong
    with its output.

    After a kill, a half-written file is removed when it is old and the same output is written
    again. After any other signal, none may be left.
    """
    output = folder / command.output
    _remove(output)
    ending = run_forked(command.run, folder, death)
    is_kill = death.number == signal.SIGKILL
    wrong: list[str] = []
    if not _ended_as_it_should(ending, death):
        wrong.append(f"{ending}")
    if is_kill:
        make_old(folder)  # so that the next run removes what is half written
    else:
        wrong += hidden_files(folder)
    if not output.exists() or command.output in INCOMPLETE:
        again = run_forked(command.run, folder)
        if again.code != 0:
            wrong.append(f"{again}")
    if contents(output) != expected:
        wrong.append("something else is written")
    make_old(folder)
    if is_kill and hidden_files(folder):
        # written again, since a command that was done was not run again
        _remove(output)
        run_forked(command.run, folder)
        wrong += hidden_files(folder)
    return ending, ", ".join(wrong)


def _ended_as_it_should(ending: Ending, death: Death) -> bool:
    """Return whether a command that was stopped has ended by its signal, or before it, without a
    traceback.
    """
    if "Traceback" in ending.output:
        return False
    if death.number == signal.SIGKILL:
        return ending.was_killed or ending.code == 0
    return ending.code == 128 + death.number


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def make_old(folder: Path) -> None:
    """Set all times in a folder two days back, since younger files may be those that a process is
    writing.
    """
    past = time.time() - 2 * 24 * 3600
    for path in folder.rglob("*"):
        os.utime(path, (past, past))


def run(folder: Path, full: bool) -> Iterator[Outcome]:
    """Kill trainings, and kill or stop each command: all have to end as if undisturbed."""
    prepare_to_fork()
    for number, subject in enumerate(SUBJECTS):
        yield from attack(subject, folder / str(number), full)
    for command, changes, expected in undisturbed(folder / "commands"):
        for death in _deaths_of_command(full, changes):
            ending, wrong = stop(command, folder / "commands", death, expected)
            if ending.was_killed:
                yield "kills", "", ""
            yield "commands finished", f"{command.name} after {death}", wrong


def _deaths_of_command(full: bool, changes: int) -> Iterator[Death]:
    """Yield kills before each change on disk and in writes, and every other signal.

    At the small scale a few.
    """
    middle = changes // 2 + 1
    for number in range(1, changes + 1) if full else [middle]:
        yield Death(changes=number)
    for watched in WATCHED if full else WATCHED[:1]:
        yield Death(changes=middle, number=watched)
    for size in (0, 1000, 10_000) if full else (1000,):
        yield Death(file_bytes=size)
