"""Commands that write: stopped before every change on disk, and run again."""

import hashlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path

from drills.forks import Death, Ending, run_forked
from drills.leftovers import contents, hidden_files
from drills.tiny_run import train_tiny
from gpt.cli import export, import_model, prepare_data, quantize
from gpt.cli.command import run_command
from gpt.corpora import corpus_text, sharding
from gpt.corpora.download import Download, fetch
from gpt.system.progress import silent
from tiny import CORPUS

TEXT = bytes(range(32, 127)) * 5000


@dataclass(frozen=True)
class Command:
    """A command that writes one file or folder.

    Attributes:
        name: shown in failures.
        run: runs it in the working directory, whose `runs/tiny` is a trained run.
        output: what it writes.
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


def shard(into: str = "sharded") -> int:
    """Encode two files into several shards, in a child, which ends."""
    corpus_text.BLOCK, sharding.SHARD_BLOCKS = 300, 2
    return prepare_data.main(["--config", "tiny.yaml", "data.path=texts", f"data.dir={into}"])


def write_texts(folder: Path) -> None:
    folder.mkdir()
    (folder / "a.txt").write_text(CORPUS * 10, encoding="utf-8")
    (folder / "b.txt").write_text(CORPUS * 10, encoding="utf-8")


QUANTIZE = ["--checkpoint", "runs/tiny", "--output", "quantized"]
IMPORT = ["--from", "hf", "--input", "folder", "--output", "imported"]
COMMANDS = (
    Command("encode", lambda: prepare_data.main(["--config", "tiny.yaml", "data.tokenizer=byte"]), "data"),
    Command("shard", shard, "sharded"),
    Command("download", _download, "downloads/text.txt"),
    Command("quantize", lambda: quantize.main(QUANTIZE), "quantized"),
    _export("html", "page.html"),
    _export("gguf", "model.gguf"),
    _export("hf", "folder"),
    Command("import", lambda: import_model.main(IMPORT), "imported"),
)
"""The last one reads what the one before it has written."""
INCOMPLETE = ("data", "sharded")
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
