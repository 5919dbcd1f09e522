"""Commands that write: killed before every change on disk, and run again."""

import gzip
import hashlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import zstandard

from drills.forks import Death, run_forked
from drills.frame import Tally
from drills.leftovers import hidden_files
from drills.tiny_run import train_tiny
from gpt.cli import export, import_model, prepare_data, quantize
from gpt.cli.command import run_command
from gpt.corpora import corpus_text, shards
from gpt.corpora.download import Download, fetch
from gpt.progress import silent
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
    url = f"http://127.0.0.1:{Path('port').read_text()}/"
    file = Download((url,), "text.txt", hashlib.sha256(TEXT).hexdigest(), 2 * len(TEXT))

    def run() -> int:
        fetch(file, Path("downloads"), offline=False, report=silent, allow_http=True)
        return 0

    return run_command(run)


BLOCK = 1500
"""Characters that are encoded at a time: several shards to a block and several blocks to a corpus."""


def shard(into: str = "sharded") -> int:
    """Encode a compressed corpus into shards of some tokens."""
    changes = ["data.path=texts", f"data.dir={into}", "data.shard_tokens=600", "data.workers=1"]
    return prepare_data.main(["--config", "tiny.yaml", *changes])


def _shard_small_blocks() -> int:
    corpus_text.BLOCK = shards.BLOCK = BLOCK  # in a child, which ends
    return shard()


def write_texts(folder: Path) -> None:
    """Write the corpus of the command that shards."""
    folder.mkdir()
    (folder / "a.txt.gz").write_bytes(gzip.compress(CORPUS.encode() * 10, mtime=0))
    (folder / "b.txt.zst").write_bytes(zstandard.ZstdCompressor().compress(CORPUS.encode() * 10))


QUANTIZE = ["--checkpoint", "runs/tiny", "--output", "quantized"]
IMPORT = ["--from", "hf", "--input", "folder", "--output", "imported"]
COMMANDS = (
    Command("encode", lambda: prepare_data.main(["--config", "tiny.yaml", "data.tokenizer=byte"]), "data"),
    Command("shard", _shard_small_blocks, "sharded"),
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


class _Text(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(TEXT)))
        self.end_headers()
        self.wfile.write(TEXT)


@contextmanager
def text_server(folder: Path) -> Iterator[None]:
    """Serve `TEXT` by a process of its own; the file `port` says where."""
    server = HTTPServer(("127.0.0.1", 0), _Text)
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


def kill_commands(folder: Path, full: bool, tally: Tally) -> None:
    """Kill each command before each change (or a few), run it again, and compare what it writes."""
    for command, changes, expected in undisturbed(folder):
        deaths = [Death(changes=number) for number in (range(1, changes + 1) if full else (changes // 2 + 1,))]
        for death in (*deaths, *(Death(file_bytes=size) for size in ((0, 1000, 10_000) if full else (1000,)))):
            _kill(command, folder, death, expected, tally)


def _kill(command: Command, folder: Path, death: Death, expected: dict[str, str], tally: Tally) -> None:
    """Kill one command, and run it again unless it was done."""
    output = folder / command.output
    shutil.rmtree(output) if output.is_dir() else output.unlink()
    first = run_forked(command.run, folder, death)
    tally.count("kills", first.was_killed)
    wrong = "" if first.was_killed or first.code == 0 else f"{first}"
    if not output.exists() or command.output in INCOMPLETE:
        make_old(folder)
        again = run_forked(command.run, folder)
        wrong += "" if again.code == 0 else f"{again}"
    wrong += "" if contents(output) == expected else "something else is written"
    make_old(folder)
    if hidden_files(folder):  # they are removed when the same thing is written again
        shutil.rmtree(output) if output.is_dir() else output.unlink()
        run_forked(command.run, folder)
        wrong += ", ".join(hidden_files(folder))
    tally.outcome("commands finished", wrong, f"{command.name} after {death}")


def contents(path: Path) -> dict[str, str]:
    """Return the sha256 of each file that has a name to be found by."""
    files = [path] if path.is_file() else [file for file in path.rglob("[!.]*") if file.is_file()]
    return {str(file.relative_to(path.parent)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def make_old(folder: Path) -> None:
    """Set all times in a folder two days back: what a process is writing would be younger."""
    past = time.time() - 2 * 24 * 3600
    for path in folder.rglob("*"):
        os.utime(path, (past, past))
