"""Every way in which a download can fail, from a server on this machine; and offline, no socket."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from corpus_server import CAP, CONTENT, CRLF, SHA256, Server, closed_port, serve_corpora
from drills.frame import ROOT, Drill, Tally
from drills.offline import COMMANDS
from gpt.corpora.download import Download, fetch
from gpt.errors import DataError
from patience import PATIENCE
from tiny import CORPUS, TINY

PASSING = ("/good", "/500-twice", "/busy", "/busy-no-hint", "/cut-twice", "/stalling-once")
LASTING = {
    "/missing": "HTTP 404",
    "/wrong": "got sha256",
    "/crlf": "is a CRLF copy",
    "/always-500": "HTTP 500",
    "/always-cut": "connection broke",
    "/aborted": "connection broke",
    "/silent": "timed out",
    "/stalling": "timed out",
    "/endless": "sends more than",
    "/bomb": "sends more than",
    "/to-file": "InvalidSchema",
    "/to-nonsense": "",
}
"""What the message says of each; of those whose words are a library's, nothing is asked."""
KILLED = """
import signal, sys
from pathlib import Path
from gpt.corpora.download import Download, fetch
signal.signal(signal.SIGINT, signal.default_int_handler)
download = Download((sys.argv[1],), "corpus.txt", None, 10**6)
fetch(download, Path(sys.argv[2]), offline=False, report=print, allow_http=True)
"""


@dataclass
class Attack:
    """A server, a folder, and what is counted."""

    server: Server
    folder: Path
    tally: Tally
    number: int = 0

    def fetch(self, *urls: str, cached: bytes | None = None, allow_http: bool = True) -> tuple[bytes | None, str]:
        """Return the content that arrived or None, and the message; a folder of its own must hold nothing else."""
        self.number += 1
        folder = self.folder / str(self.number)
        folder.mkdir()
        path, message = folder / "corpus.txt", ""
        if cached is not None:
            path.write_bytes(cached)
        self.server.visits.clear()
        download = Download(urls, "corpus.txt", SHA256, CAP)
        try:
            patience = 0.1 if any(url.endswith(("/silent", "/stalling")) for url in urls) else 5.0
            options = {"timeout": (5.0, patience), "backoff": 0.0, "allow_http": allow_http}
            fetch(download, folder, offline=False, report=lambda line: None, **options)
        except DataError as error:
            message = str(error)
        left = sorted(file.name for file in folder.iterdir())
        tidy = left == (["corpus.txt"] if not message or cached is not None else [])
        self.tally.count("left something behind", not self.tally.check(tidy, f"{urls}: left {left}"))
        self.tally.count("faults")
        self.tally.check("\n" not in message, f"{urls}: the message has several lines")
        return (path.read_bytes() if path.is_file() else None), message

    def arrives(self, *urls: str, cached: bytes | None = None) -> None:
        content, message = self.fetch(*urls, cached=cached)
        good = self.tally.check(
            content == CONTENT, f"{urls}, cached {(cached or b'')[:20]!r}: {message or 'wrong file'}"
        )
        self.tally.count("ended with the right file", good)

    def fails(self, words: str, *urls: str, cached: bytes | None = None, allow_http: bool = True) -> None:
        content, message = self.fetch(*urls, cached=cached, allow_http=allow_http)
        good = self.tally.check(
            content == cached and bool(message) and words in message, f"{urls}: {words!r} is not in {message!r}"
        )
        self.tally.count("named in one line", good)


def attack_downloads(attack: Attack, full: bool) -> None:
    """Fetch from every page: alone, over a damaged file, before and after a good mirror, and two at once."""
    url = attack.server.url
    for page in PASSING if full else PASSING[:5]:
        for cached in (None, CONTENT[:-1], CRLF) if full else (None,):
            attack.arrives(url + page, cached=cached)
    for page, words in LASTING.items():
        attack.fails(words if words != "InvalidSchema" else "", url + page)
        if full:
            attack.fails("", url + page, cached=b"mine")
            attack.arrives(url + page, url + "/good")
            attack.arrives(url + page, url + "/good", cached=CRLF)
            attack.arrives(url + "/good", url + page)
    attack.arrives(closed_port() + "/good", url + "/good")
    attack.fails("cannot connect", closed_port() + "/good")
    attack.fails("https", url + "/good", allow_http=False)
    attack.tally.check(not attack.server.visits, "plain http was asked")
    secure = url.replace("http:", "https:")
    attack.fails("no valid TLS connection", secure + "/good", allow_http=False)
    with patch.dict(os.environ, {"HTTP_PROXY": closed_port()}):
        attack.fails("the proxy gives no connection", "http://corpus.invalid/good")
    with patch.dict(os.environ, {"HTTP_PROXY": url}):
        attack.arrives("http://corpus.invalid/good")
    with patch("os.fsync", side_effect=OSError(28, "No space left on device")):
        attack.fails("No space left", url + "/good")
    with patch("tempfile.mkstemp", side_effect=OSError(30, "Read-only file system")):
        attack.fails("Read-only", url + "/good")


def attack_two_at_once(attack: Attack) -> None:
    """Fetch one file twice at the same time into one folder."""
    folder = attack.folder / "together"
    download = Download((attack.server.url + "/together",), "corpus.txt", SHA256, CAP)

    def get(_: int) -> Path:
        return fetch(download, folder, offline=False, report=lambda line: None, allow_http=True)

    with ThreadPoolExecutor(2) as pool:
        paths = set(pool.map(get, range(2)))
    attack.tally.count("faults")
    good = [path.read_bytes() for path in paths] == [CONTENT] and len(list(folder.iterdir())) == 1
    attack.tally.count("ended with the right file", attack.tally.check(good, "two at once: wrong files"))


def attack_by_killing(attack: Attack, count: int) -> None:
    """Kill downloads in the middle, then fetch again into the same folders."""
    children = []
    for number in range(count):
        folder = attack.folder / f"killed{number}"
        command = [sys.executable, "-c", KILLED, attack.server.url + "/stalling", str(folder)]
        children.append((folder, subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)))
    for _ in children:
        assert attack.server.stalled.acquire(timeout=PATIENCE)
    for folder, child in children:
        child.kill()
        child.wait()
        url = attack.server.url + "/good"
        path = fetch(Download((url,), "corpus.txt", SHA256, CAP), folder, offline=False, report=print, allow_http=True)
        attack.tally.count("faults")
        good = attack.tally.check(path.read_bytes() == CONTENT, f"{folder.name}: wrong file")
        attack.tally.count("ended with the right file", good)


def attack_offline(folder: Path, tally: Tally, count: int) -> None:
    """Run commands offline in a process that notes every socket."""
    (folder / "tiny.yaml").write_text(TINY, encoding="utf-8")
    (folder / "corpus.txt").write_text(CORPUS * 30, encoding="utf-8")
    paths = os.pathsep.join((str(ROOT), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])))
    environment = {**os.environ, "PYTHONPATH": paths, "GPT_OFFLINE": "1"}
    environment.pop("GPT_DATA_DIR", None)
    command = [sys.executable, "-m", "drills.offline", str(count)]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    if not tally.check(result.returncode == 0, f"a command offline ended badly: {result.stderr[-500:]}"):
        return
    for done in json.loads((folder / "offline.json").read_text(encoding="utf-8")):
        tally.count("commands offline")
        tally.check(done["right"], f"{done['command']}: another exit code: {done['error']}")
        tally.check(not done["sockets"], f"{done['command']}: {done['sockets']}")
        tally.count("sockets opened", len(done["sockets"]))


def run(folder: Path, full: bool) -> Tally:
    """Attack downloads and the commands."""
    tally = Tally(
        *("faults", "ended with the right file", "named in one line", "left something behind"),
        *("commands offline", "sockets opened"),
    )
    with ExitStack() as stack:
        unset = {name for name in os.environ if name.lower().endswith("_proxy")}
        stack.enter_context(patch.dict(os.environ))
        for name in unset:
            del os.environ[name]
        server = stack.enter_context(serve_corpora())
        attack = Attack(server, folder, tally)
        attack_downloads(attack, full)
        attack_two_at_once(attack)
        if full:
            attack_by_killing(attack, 4)
    attack_offline(folder, tally, len(COMMANDS) if full else 1)
    return tally


PROMISE = "A failing server costs an error in one line and leaves no file; offline, no command opens a socket."
DRILL = Drill(PROMISE, run)
