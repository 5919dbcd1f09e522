"""The commands that the program prints, pasted into a shell as they are, in a folder with a difficult name."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from patience import PATIENCE
from tiny import CORPUS

ROOT = Path(__file__).resolve().parents[2]
SMALLER = "train.max_steps=2 train.batch_size=2 train.teacher=null model.n_layer=1 run.device=cpu"


class Shell:
    """A terminal in a folder where the package is installed."""

    def __init__(self, folder: Path) -> None:
        self.folder, program = folder, folder / "bin" / "gpt"
        program.parent.mkdir(parents=True)
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m gpt "$@"\n', encoding="utf-8")
        program.chmod(0o755)
        (folder / "my text.txt").write_text(CORPUS * 30, encoding="utf-8")

    @property
    def place(self) -> dict[str, Any]:
        path = os.pathsep.join([str(self.folder / "bin"), os.environ["PATH"]])
        return {"cwd": self.folder, "env": {**os.environ, "PYTHONPATH": str(ROOT), "PATH": path}}

    def paste(self, line: str, code: int = 0) -> str:
        """Run a line and return what it prints."""
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=PATIENCE, **self.place)
        assert done.returncode == code, f"{line}\n{done.stderr}"
        return done.stdout + done.stderr


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path / "été 1")


def after(words: str, printed: str) -> str:
    """Return the command that is printed after some words, up to the end of its line."""
    found = re.search(rf"{words}\s*(.*)$", printed, re.MULTILINE)
    assert found is not None, printed
    return found[1]


def test_from_a_text_to_a_sample_and_an_extra(shell: Shell) -> None:
    train = after("train with:", "train with:" + shell.paste(f"gpt new 'my text.txt' {SMALLER}").splitlines()[0])
    sample = after("sample with:", shell.paste(train))
    assert "\n" in shell.paste(sample)
    without = "import sys; sys.modules['gguf'] = None; from gpt.__main__ import main; main()"
    said = shell.paste(f"{shlex.quote(sys.executable)} -c {shlex.quote(without)} export --to gguf --output x", code=2)
    install = said.partition("package: ")[2].rstrip()
    assert "Install Options" in shell.paste(f"{install} --help")  # pip itself reaches for the network


def test_what_is_interrupted_goes_on_with_the_command_that_is_told(shell: Shell) -> None:
    shell.paste(f"gpt new 'my text.txt' --output 'long one.yaml' {SMALLER} train.log_interval=1")
    line = "gpt train --config 'long one.yaml' train.max_steps=100000"
    with subprocess.Popen(["bash", "-c", f"exec {line}"], stderr=subprocess.PIPE, text=True, **shell.place) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if "step" in line and "loss" in line)
        process.send_signal(signal.SIGINT)
        again = after("continue with:", process.stderr.read())
    assert again.endswith("--resume auto")
    assert "max_steps: 100000" in shell.paste(f"{again} --print-config")


def test_errors_and_lists(shell: Shell) -> None:
    train = after("train first:", shell.paste("gpt sample", code=2))
    assert "source: pydocs" in shell.paste(f"{train} --print-config")
    broken = shell.paste("gpt train --config quickstart data.tokenizer=bpe --nonsense", code=2)
    assert "--config" in shell.paste(after("; see", broken))
