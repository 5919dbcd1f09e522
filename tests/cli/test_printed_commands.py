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
SMALLER = "train.max_steps=2 train.batch_size=2 train.teacher_share=null model.n_layer=1 run.device=cpu"
PROGRAMS = {"a script": "scripts/{}.py", "the module": "-m gpt {}"}
SCRIPT_OF = {"new": "make_config"}


class Shell:
    """A terminal in a folder, with a way to call the program.

    Args:
        way: of `PROGRAMS`.
    """

    def __init__(self, folder: Path, way: str) -> None:
        self.folder, self.way = folder, way
        folder.mkdir()
        (folder / "scripts").symlink_to(ROOT / "scripts")
        (folder / "my text.txt").write_text(CORPUS * 30, encoding="utf-8")

    @property
    def place(self) -> dict[str, Any]:
        return {"cwd": self.folder, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}

    def line(self, name: str, options: str) -> str:
        """Return a command line of this way."""
        name = SCRIPT_OF.get(name, name) if self.way == "a script" else name
        return f"{shlex.quote(sys.executable)} {PROGRAMS[self.way].format(name)} {options}"

    def call(self, name: str, options: str, code: int = 0) -> str:
        return self.paste(self.line(name, options), code)

    def paste(self, line: str, code: int = 0) -> str:
        """Run a line and return what it prints."""
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=PATIENCE, **self.place)
        assert done.returncode == code, f"{line}\n{done.stderr}"
        return done.stdout + done.stderr


@pytest.fixture(params=PROGRAMS)
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Shell:
    return Shell(tmp_path / "été 1", request.param)


def after(words: str, printed: str) -> str:
    """Return the command that is printed after some words, up to the end of its line."""
    found = re.search(rf"{words}\s*(.*)$", printed, re.MULTILINE)
    assert found is not None, printed
    return found[1]


def test_from_a_text_to_a_sample_and_an_extra(shell: Shell) -> None:
    train = after("train with:", "train with:" + shell.call("new", f"'my text.txt' {SMALLER}").splitlines()[0])
    sample = after("sample with:", shell.paste(train))
    assert PROGRAMS[shell.way].format("train") in train
    assert PROGRAMS[shell.way].format("sample") in sample
    assert "\n" in shell.paste(sample)
    without = "import sys; sys.modules['gguf'] = None; from gpt.__main__ import main; main()"
    said = shell.paste(f"{shlex.quote(sys.executable)} -c {shlex.quote(without)} export --to gguf --output x", code=2)
    install = said.partition("package: ")[2].rstrip()
    assert "Install Options" in shell.paste(f"{install} --help")  # pip itself reaches for the network


def test_what_is_interrupted_goes_on_with_the_command_that_is_told(shell: Shell) -> None:
    shell.call("new", f"'my text.txt' --output 'long one.yaml' {SMALLER} train.log_interval=1")
    line = shell.line("train", "--config 'long one.yaml' train.max_steps=100000")
    with subprocess.Popen(["bash", "-c", f"exec {line}"], stderr=subprocess.PIPE, text=True, **shell.place) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if "step" in line and "loss" in line)
        process.send_signal(signal.SIGINT)
        again = after("continue with:", process.stderr.read())
    assert again.endswith("--resume auto")
    assert "max_steps: 100000" in shell.paste(f"{again} --print-config")


def test_errors_and_lists(shell: Shell) -> None:
    train = after("train first:", shell.call("sample", "", code=2))
    assert "source: pydocs" in shell.paste(f"{train} --print-config")
    broken = shell.call("train", "--config quickstart data.tokenizer=bpe --nonsense", code=2)
    assert "--config" in shell.paste(after("; see", broken))
    if shell.way == "the module":  # has no script
        listed = shell.call("recipes", "")
        assert "source: pydocs" in shell.paste(f"{after('train one:', listed)} --print-config")
        assert "my.txt: no such file" in shell.paste(after("your own text:", listed), code=2)
