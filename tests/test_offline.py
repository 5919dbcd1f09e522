"""Offline, no command opens a socket: Python tells an audit hook of each, whichever library asks for it."""

import shutil
import socket
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

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
    (2, ("import_model", "--from", "hf", "--input", "openai-community/gpt2", "--output", "runs/hub")),
    *((0, ("explain", view, *RUN)) for view in ("shapes", "params", "flops", "memory")),
    *((0, ("explain", view, *TEXT)) for view in ("attention", "lens")),
    (2, ("serve", "--checkpoint", "runs/none", "--port", "0")),
)
"""Exit code and command line of each, in an order in which one may read what another has written."""
LOOKUPS = ("socket.getaddrinfo", "socket.gethostbyname", "socket.connect", "socket.sendto")


class Watch:
    """Notes what would leave this machine while `opened` is a list, and refuses it; a hook cannot be removed."""

    opened: list[str] | None = None

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.opened is None:
            return
        is_new = event == "socket.__new__" and arguments[1] != socket.AF_UNIX
        leaves = event in LOOKUPS and not (event == "socket.connect" and isinstance(arguments[1], str | bytes))
        if is_new or leaves:
            self.opened.append(f"{event} {arguments[1:]}")
            raise OSError("a socket was opened")


@pytest.mark.slow
def test_offline_no_command_opens_a_socket(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPT_OFFLINE", "1")
    mains = {name: import_module(f"gpt.cli.{name}").main for _, (name, *_) in COMMANDS}
    watch = Watch()
    sys.addaudithook(watch)
    for expected, (name, *arguments) in COMMANDS:
        watch.opened = []
        try:
            code = mains[name](arguments)
        finally:
            opened, watch.opened = watch.opened, None
        assert (code, opened) == (expected, []), (name, *arguments)
