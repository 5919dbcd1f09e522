"""Commands called in this process, mostly in the folder of the trained run."""

import json
import shlex
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest


class Result(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The last line of the output."""
        return json.loads(self.out.splitlines()[-1])

    @property
    def rows(self) -> list[Any]:
        """All lines of the output; what is inside a JSON string is no line end."""
        return [json.loads(line) for line in self.out.split("\n")[:-1]]


Call = Callable[..., Result]
Refuse = Callable[..., str]


@pytest.fixture(autouse=True)
def usual_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a sample without a seed be the same each time."""
    monkeypatch.setattr("gpt.cli.sample.randrange", lambda most: 1337)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Call a command: its name and options as in a shell, then further options word by word."""

    def call(line: str, *options: str) -> Result:
        name, *words = shlex.split(line)
        capsys.readouterr()
        try:
            code = import_module(f"gpt.cli.{name}").main([*words, *options])
        except SystemExit as stop:
            code = int(str(stop.code or 0))
        return Result(code, *capsys.readouterr())

    return call


@pytest.fixture
def run(call: Call) -> Call:
    """The same; it succeeds."""

    def run(line: str, *options: str) -> Result:
        result = call(line, *options)
        assert result.code == 0, result.err
        return result

    return run


@pytest.fixture
def refuse(call: Call) -> Refuse:
    """The same; it ends with 2, one line about a mistake after whatever it reported before, and no
    other output.
    """

    def refuse(line: str, *options: str) -> str:
        code, out, err = call(line, *options)
        *before, error = err.splitlines()
        assert (code, out, error[:7]) == (2, "", "error: "), err
        assert not any(line.startswith(("error", "Traceback", " ")) for line in before), err
        assert error.isprintable(), "a name in it steers the terminal"
        return error

    return refuse


@pytest.fixture
def here(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with runs/tiny, which is the working directory; do not write into it."""
    monkeypatch.chdir(trained)
    return trained


@pytest.fixture
def own(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, to write into."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path
