"""SIGKILL before every change that a program makes on disk, at random moments, and in the middle of writes."""

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
"""With dropout."""
NATIVE = RECIPE.replace("kernels: torch", "kernels: auto").replace("n_embd: 16", "n_embd: 64")
"""Trained by compiled kernels, where there is a compiler."""
COUNT = 20
EARLIER = "runs/run/checkpoints/step-000002"
Outcome = tuple[str, str, str]
Look = Callable[[Path, Death, Ending], tuple[str, str]]


def was_killed(place: Path, death: Death, ending: Ending) -> tuple[str, str]:
    if ending.was_killed:
        return "kills", ""
    return "ended before", "" if ending.code == 0 else f"{ending}"


@dataclass(frozen=True)
class Subject:
    """What is stopped, and continued by the same command.

    Attributes:
        name: its figure.
        call: starts or continues it, in a child.
        deaths: how it is stopped at full scale and at the small one, given how many changes it makes on disk.
        in_a_row: how often one run is stopped at most before it may finish.
        make: makes the folder that it works in.
        look: returns the figure of a stop, and what is wrong with how it ended and with what it left.
    """

    name: str
    call: Callable[[], int]
    deaths: Callable[[bool, int], Iterator[Death]]
    in_a_row: int = 1
    make: Callable[[Path], Path] = make_folder
    look: Look = was_killed


def resume(*options: str) -> int:
    return train.main(["--config", "tiny.yaml", "--resume", "auto", *options])


def resume_from_earlier() -> int:
    """Continue a finished run from an earlier checkpoint, or that; the checkpoints after it are replaced."""
    mark = Path("begun")
    if mark.exists():
        return resume()
    mark.touch()
    return train.main(["--config", "tiny.yaml", "--resume", EARLIER])


def make_recipe(folder: Path) -> Path:
    return make_folder(folder, RECIPE)


def make_native(folder: Path) -> Path:
    return make_folder(folder, NATIVE)


def make_finished(folder: Path) -> Path:
    ending = run_forked(partial(resume, "train.keep_last=9"), make_recipe(folder))
    assert ending.code == 0, ending.output
    return folder


def everywhere(full: bool, changes: int) -> Iterator[Death]:
    """Yield a death before every second change on disk, at random moments, and in writes of random files."""
    chance = random.Random(0)
    yield from (Death(changes=number) for number in range(1, changes + 1, 2 if full else changes // 4))
    yield from (Death(seconds=chance.uniform(0, 0.3)) for _ in range(40 if full else 1))
    yield from (Death(file_bytes=chance.randrange(50_000)) for _ in range(40 if full else 1))


def spread(full: bool, changes: int) -> Iterator[Death]:
    """Yield `COUNT` deaths before changes on disk, as far from each other as can be, and one at the small scale."""
    number = COUNT if full else 1
    yield from (Death(changes=1 + (2 * index + 1) * changes // (2 * number)) for index in range(number))


SUBJECTS = (
    Subject("runs finished", resume, everywhere, in_a_row=3, make=make_recipe),
    Subject("runs finished", resume_from_earlier, spread, make=make_finished),
    Subject("runs finished", resume, spread, make=make_native),
)


def attack(subject: Subject, folder: Path, full: bool) -> Iterator[Outcome]:
    """Stop it in every way, continue it, and compare what it leaves with what it leaves undisturbed."""
    folder.mkdir()
    whole = subject.make(folder / "undisturbed")
    ending = run_forked(subject.call, whole)
    assert ending.code == 0, ending.output
    expected = all_runs(whole / "runs")
    waiting = list(subject.deaths(full, ending.changes))
    random.Random(1).shuffle(waiting)
    while waiting:
        place = subject.make(folder / "place")
        dying = [waiting.pop() for _ in range(min(subject.in_a_row if full else 1, len(waiting)))]
        for death in dying:
            figure, wrong = subject.look(place, death, run_forked(subject.call, place, death))
            yield figure, f"{death}", wrong
        yield subject.name, f"{dying}", lost(place, run_forked(subject.call, place), expected)
        shutil.rmtree(place)


TEXT = bytes(range(32, 127)) * 5000


class Command(NamedTuple):
    """A command that writes `output`, one file or folder, in a directory whose `runs/tiny` is a trained run."""

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
    """Encode two files in several blocks, in a child, which ends."""
    corpus_text.BLOCK = 300
    return prepare_data.main(["--config", "tiny.yaml", "data.path=texts", f"data.dir={into}"])


def write_texts(folder: Path) -> None:
    folder.mkdir()
    for name in ("a.txt", "b.txt"):
        (folder / name).write_text(CORPUS * 10, encoding="utf-8")


QUANTIZE = ["--checkpoint", "runs/tiny", "--output", "quantized"]
IMPORT = ["--from", "hf", "--input", "folder", "--output", "imported"]
COMMANDS = (
    Command("encode", lambda: prepare_data.main(["--config", "tiny.yaml", "data.tokenizer=byte"]), "data"),
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
"""Outputs that may be incomplete when a command was stopped, but none of their parts."""


@contextmanager
def text_server(folder: Path) -> Iterator[None]:
    """Serve the file `text` by a process of its own; the file `port` says where."""
    (folder / "served").mkdir()
    (folder / "served" / "text").write_bytes(TEXT)
    server = HTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=folder / "served"))
    (folder / "port").write_text(str(server.server_port))
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        server.serve_forever()
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        server.server_close()


def undisturbed(folder: Path) -> Iterator[tuple[Command, int, dict[str, str]]]:
    """Yield each command after it has run once, with its changes on disk and what it has written."""
    folder.mkdir()
    train_tiny(folder)
    shutil.rmtree(folder / "data")
    write_texts(folder / "texts")
    with text_server(folder):
        for command in COMMANDS:
            ending = run_forked(command.run, folder)
            assert ending.code == 0, ending.output
            yield command, ending.changes, contents(folder / command.output)


def stop(command: Command, folder: Path, death: Death, expected: dict[str, str]) -> tuple[Ending, str]:
    """Stop a command, and run it again unless it was done; return how it ended, and what is wrong with what it wrote.

    After a kill, what was half written is removed when it is old and the same thing is written again; after any other
    signal, nothing may be left.
    """
    _remove(folder / command.output)
    ending = run_forked(command.run, folder, death)
    is_kill = death.number == signal.SIGKILL
    is_right = ending.was_killed or ending.code == 0 if is_kill else ending.code == 128 + death.number
    wrong = "" if is_right and "Traceback" not in ending.output else f"{ending}"
    if is_kill:
        make_old(folder)
    else:
        wrong += ", ".join(hidden_files(folder))
    if not (folder / command.output).exists() or command.output in INCOMPLETE:
        again = run_forked(command.run, folder)
        wrong += "" if again.code == 0 else f"{again}"
    wrong += "" if contents(folder / command.output) == expected else "something else is written"
    make_old(folder)
    if is_kill and hidden_files(folder):
        _remove(folder / command.output)
        run_forked(command.run, folder)
        wrong += ", ".join(hidden_files(folder))
    return ending, wrong


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def make_old(folder: Path) -> None:
    """Set all times in a folder two days back: what a process is writing would be younger."""
    past = time.time() - 2 * 24 * 3600
    for path in folder.rglob("*"):
        os.utime(path, (past, past))


def run(folder: Path, full: bool) -> Iterator[Outcome]:
    """Kill trainings; kill or stop each command before changes (or a few), and in writes: it ends as if undisturbed."""
    prepare_to_fork()
    for number, subject in enumerate(SUBJECTS):
        yield from attack(subject, folder / str(number), full)
    for command, changes, expected in undisturbed(folder / "commands"):
        deaths = [Death(changes=number) for number in (range(1, changes + 1) if full else (changes // 2 + 1,))]
        deaths += [Death(changes=changes // 2 + 1, number=number) for number in (WATCHED if full else WATCHED[:1])]
        for death in (*deaths, *(Death(file_bytes=size) for size in ((0, 1000, 10_000) if full else (1000,)))):
            ending, wrong = stop(command, folder / "commands", death, expected)
            if ending.was_killed:
                yield "kills", "", ""
            yield "commands finished", f"{command.name} after {death}", wrong
