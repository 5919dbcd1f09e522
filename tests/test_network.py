"""The package calls nobody without being asked, and runs nothing that it reads."""

import ast
import re
import shutil
import socket
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / "gpt").rglob("*"))
CALLERS_HOME = {
    "transformers",
    "huggingface_hub",
    "wandb",
    "openai",
    "sentry_sdk",
    "posthog",
    "datasets",
    "analytics",
}
"""Packages that call their makers or a hub by default; they are for tests and benchmarks."""
NETWORK = {
    "requests",
    "urllib3",
    "httpx",
    "aiohttp",
    "urllib.request",
    "http.client",
    "ftplib",
    "smtplib",
    "telnetlib",
}
FORBIDDEN = {
    *(
        "eval",
        "exec",
        "compile",
        "__import__",
        "os.system",
        "os.popen",
        "tempfile.mktemp",
        "numpy.load",
        "np.load",
    ),
    *("pickle.load", "pickle.loads", "marshal.loads", "shelve.open", "dill.load"),
    *("yaml.unsafe_load", "yaml.full_load", "yaml.load_all"),
}
ASKED_FOR = {
    (file, call)
    for file in ("config/plugins.py", "native/source_file.py")
    for call in ("compile", "exec")
}
"""A plugin is code that its user names.

A fingerprint computes tables of this package again, beside those in memory.
"""
OUTSIDE = re.compile(
    r"""(?:src|href)\s*=\s*["']https?:|url\(\s*["']?https?:|fetch\(\s*["'`]https?:|@import\s+["']https?:"""
)


def problems(tree: ast.AST, name: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            keywords = {word.arg: ast.unparse(word.value) for word in node.keywords}
            if called in FORBIDDEN and (name, called) not in ASKED_FOR:
                yield called
            if called == "torch.load" and keywords.get("weights_only") != "True":
                yield "torch.load without weights_only"
            if called == "yaml.load" and keywords.get("Loader") != "_Loader":
                yield "yaml.load without the strict loader"
            if keywords.get("shell") == "True":
                yield "a shell"
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for module in names:
            refused = CALLERS_HOME if name == "data/download.py" else CALLERS_HOME | NETWORK
            if {module, module.partition(".")[0]} & refused:
                yield f"imports {module}"


def test_no_code_runs_what_it_reads_or_reaches_the_network() -> None:
    found = {
        name: list(problems(ast.parse(path.read_text(encoding="utf-8")), name))
        for path in FILES
        if path.suffix == ".py" and (name := path.relative_to(ROOT / "gpt").as_posix())
    }
    assert len(found) > 150
    assert {name: every for name, every in found.items() if every} == {}


def test_no_page_loads_anything_from_elsewhere() -> None:
    assert OUTSIDE.search('<script src="https://cdn.example/x.js">')
    pages = [path for path in FILES if path.suffix in (".html", ".js", ".css")]
    assert len(pages) > 20
    assert [path for path in pages if OUTSIDE.search(path.read_text(encoding="utf-8"))] == []


RUN = ("--checkpoint", "runs/tiny")
TEXT = (*RUN, "--prompt", "It was")
ELSEWHERE = ("data.source=shakespeare", "data.path=null", "--offline")
COMMANDS: tuple[tuple[int, tuple[str, ...]], ...] = (
    (0, ("prepare_data", "--config", "tiny.yaml", "--offline")),
    (2, ("prepare_data", "--config", "tiny.yaml", *ELSEWHERE)),
    (0, ("train", "--config", "tiny.yaml", "run.name=a", "--offline")),
    (2, ("train", "--config", "tiny.yaml", "run.name=b", *ELSEWHERE)),
    (0, ("sample", *TEXT, "--max-new-tokens", "4")),
    (0, ("evaluate", *RUN)),
    (2, ("evaluate", *RUN, "--text-file", "missing.txt")),
    (0, ("plot", "runs/tiny", "--output", "loss.png")),
    (0, ("quantize", *RUN, "--output", "runs/small")),
    (0, ("export", *RUN, "--to", "html", "--output", "page.html")),
    (0, ("export", *RUN, "--to", "hf", "--output", "folder")),
    (0, ("import_model", "--from", "hf", "--input", "folder", "--output", "runs/back")),
    (
        2,
        (
            "import_model",
            "--from",
            "hf",
            "--input",
            "openai-community/gpt2",
            "--output",
            "runs/hub",
        ),
    ),
    *((0, ("explain", view, *RUN)) for view in ("shapes", "params", "flops", "memory")),
    *((0, ("explain", view, *TEXT)) for view in ("attention", "lens")),
    (2, ("serve", "--checkpoint", "runs/none", "--port", "0")),
)
"""Exit code and command line of each, in an order in which one may read what another has written.
"""
LOOKUPS = ("socket.getaddrinfo", "socket.gethostbyname", "socket.connect", "socket.sendto")


@pytest.mark.slow
def test_offline_no_command_opens_a_socket(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPT_OFFLINE", "1")
    mains = {name: import_module(f"gpt.cli.{name}").main for _, (name, *_) in COMMANDS}
    opened: list[str] | None = None

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        """Note what would leave this machine, and refuse it, whichever library asks.

        A hook cannot be removed.
        """
        is_new = event == "socket.__new__" and arguments[1] != socket.AF_UNIX
        leaves = event in LOOKUPS and not (
            event == "socket.connect" and isinstance(arguments[1], str | bytes)
        )
        if opened is not None and (is_new or leaves):
            opened.append(f"{event} {arguments[1:]}")
            raise OSError("a socket was opened")

    sys.addaudithook(watch)
    try:
        for expected, (name, *arguments) in COMMANDS:
            opened = []
            assert (mains[name](arguments), opened) == (expected, []), (name, *arguments)
    finally:
        opened = None
