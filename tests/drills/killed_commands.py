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
from itertools import count
from pathlib import Path

import zstandard

from drills.forks import Death, run_forked
from drills.frame import Tally
from drills.tiny_run import hidden_files, train_tiny
from gpt.cli import export, import_model, prepare_data, quantize
from gpt.cli.command import run_command
from gpt.corpora import corpus_text, shards
from gpt.corpora.download import Download, fetch
from gpt.corpora.workers import _Worker
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


def shard(*options: str, into: str = "sharded", workers: int = 1, tokens: int = 600) -> int:
    """Encode a compressed corpus into shards of some tokens."""
    changes = ["data.path=texts", f"data.dir={into}", f"data.shard_tokens={tokens}", f"data.workers={workers}"]
    return prepare_data.main(["--config", "tiny.yaml", *changes, *options])


def _shard_small_blocks(workers: int = 1) -> int:
    corpus_text.BLOCK = shards.BLOCK = BLOCK  # in a child, which ends
    return shard(workers=workers)


def _shard_and_lose(number: int) -> int:
    """Shard by two workers, of which one is stopped before it is sent something and killed before it answers."""
    send, receive, sent = _Worker.send, _Worker.receive, count()
    lost: list[_Worker] = []

    def stop_and_send(worker: _Worker, text: str) -> None:
        if next(sent) == number:
            os.kill(worker._process.pid, signal.SIGSTOP)
            os.waitpid(worker._process.pid, os.WUNTRACED)
            lost.append(worker)
        send(worker, text)

    def kill_and_receive(worker: _Worker) -> bytes:
        if worker in lost:
            worker._process.kill()
        return receive(worker)

    _Worker.send, _Worker.receive = stop_and_send, kill_and_receive  # type: ignore[method-assign]
    return _shard_small_blocks(workers=2)


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
        deaths = [Death(changes=number) for number in (range(1, changes + 1) if full else (1, changes // 2 + 1))]
        for death in (*deaths, *(Death(file_bytes=size) for size in ((0, 1000, 10_000) if full else (1000,)))):
            _kill(command, folder, death, expected, tally)
        if command.name == "shard" and full:
            for number in range(8):  # each worker is sent its task, and six blocks are: three, read twice
                _lose_worker(folder, number, expected, tally)


def _kill(command: Command, folder: Path, death: Death, expected: dict[str, str], tally: Tally) -> None:
    """Kill one command, and run it again unless it was done."""
    output = folder / command.output
    shutil.rmtree(output) if output.is_dir() else output.unlink()
    first = run_forked(command.run, folder, death)
    tally.count("kills", first.was_killed)
    good = tally.check(first.was_killed or first.code == 0, f"{command.name}, {death}: {first}")
    if not output.exists() or command.output in INCOMPLETE:
        make_old(folder)
        again = run_forked(command.run, folder)
        good &= tally.check(again.code == 0, f"{command.name} after {death}: {again}")
    good &= tally.check(contents(output) == expected, f"{command.name} after {death} has written something else")
    make_old(folder)
    if hidden_files(folder):  # they are removed when the same thing is written again
        shutil.rmtree(output) if output.is_dir() else output.unlink()
        run_forked(command.run, folder)
        good &= tally.check(not hidden_files(folder), f"{command.name} after {death} left {hidden_files(folder)}")
    tally.count("commands finished", good)
    tally.count("lost", not good)


def _lose_worker(folder: Path, number: int, expected: dict[str, str], tally: Tally) -> None:
    """Kill one worker of a preparation, and run that again."""
    shutil.rmtree(folder / "sharded")
    first = run_forked(lambda: _shard_and_lose(number), folder)
    again = run_forked(_shard_small_blocks, folder)
    good = first.code == 2 and "a worker process was ended by signal 9" in first.output
    good &= again.code == 0 and contents(folder / "sharded") == expected
    tally.check(good, f"worker lost at message {number}: {first}, {again}")
    tally.count("kills")
    tally.count("commands finished", good)
    tally.count("lost", not good)


def contents(path: Path) -> dict[str, str]:
    """Return the sha256 of each file that has a name to be found by."""
    files = [path] if path.is_file() else [file for file in path.rglob("[!.]*") if file.is_file()]
    return {str(file.relative_to(path.parent)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def make_old(folder: Path) -> None:
    """Set all times in a folder two days back: what a process is writing would be younger."""
    past = time.time() - 2 * 24 * 3600
    for path in folder.rglob("*"):
        os.utime(path, (past, past))
