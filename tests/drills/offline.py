"""A process that runs commands in the present folder, and writes the addresses of every socket that they open.

Python tells an audit hook of every socket, connection and lookup of a name, whichever library asks for it.
"""

import contextlib
import io
import json
import socket
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

RUN = ("--checkpoint", "runs/tiny")
COMMANDS: tuple[tuple[int, tuple[str, ...]], ...] = (
    (2, ("prepare_data", "--config", "tiny.yaml", "data.source=shakespeare", "data.path=null", "--offline")),
    (0, ("train", "--config", "tiny.yaml", "--offline")),
    (0, ("sample", *RUN, "--prompt", "It", "--max-new-tokens", "4")),
    (0, ("prepare_data", "--config", "tiny.yaml", "--offline")),
    (2, ("train", "--config", "tiny.yaml", "run.name=b", "data.source=shakespeare", "data.path=null", "--offline")),
    (2, ("evaluate", *RUN, "--offline", "--text-file", "missing.txt")),
    (0, ("evaluate", *RUN, "--offline")),
    (0, ("plot", "runs/tiny", "--output", "loss.png")),
    (0, ("quantize", *RUN, "--output", "runs/small")),
    (0, ("export", *RUN, "--to", "html", "--output", "page.html")),
    (0, ("export", *RUN, "--to", "hf", "--output", "folder")),
    (0, ("import_model", "--from", "hf", "--input", "folder", "--output", "runs/back")),
    (2, ("import_model", "--from", "hf", "--input", "openai-community/gpt2", "--output", "runs/hub")),
    (0, ("explain", "shapes", *RUN)),
    (0, ("explain", "attention", *RUN, "--prompt", "It was")),
    (0, ("explain", "lens", *RUN, "--prompt", "It was")),
    (0, ("explain", "surprisal", *RUN, "--prompt", "It was")),
    (0, ("explain", "params", *RUN)),
    (0, ("explain", "flops", *RUN)),
    (0, ("explain", "memory", *RUN)),
    (0, ("explain", "walk", *RUN, "--prompt", "It was", "--output", "walk.md")),
    (2, ("serve", "--checkpoint", "runs/none", "--port", "0")),
)
"""Exit code and command line of each; the first ones are those of the small scale."""

opened: list[str] = []


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    """Note what would leave this machine, and refuse it."""
    if event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.connect", "socket.sendto"):
        inside = event == "socket.connect" and isinstance(arguments[1], (str, bytes))
    elif event == "socket.__new__":
        inside = arguments[1] == socket.AF_UNIX
    else:
        return
    if not inside:
        opened.append(f"{event} {arguments[1:]}")
        raise OSError("a socket was opened")


def call(main: Callable[[list[str]], int], arguments: list[str]) -> tuple[int, str, str]:
    """Return the exit code of a command, and what it printed on both streams."""
    output, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(error):
        try:
            code = main(arguments)
        except SystemExit as exit_:
            code = exit_.code if isinstance(exit_.code, int) else 1
    return code, output.getvalue(), error.getvalue()


def run(count: int) -> None:
    """Run the first commands, and write what came of them as JSON."""
    sys.addaudithook(watch)
    results = []
    for expected, (name, *arguments) in COMMANDS[:count]:
        opened.clear()
        code, _, error = call(import_module(f"gpt.cli.{name}").main, arguments)
        command = " ".join((name, *arguments))
        results.append({"command": command, "right": code == expected, "error": error[-500:], "sockets": [*opened]})
    Path("offline.json").write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    run(int(sys.argv[1]))
