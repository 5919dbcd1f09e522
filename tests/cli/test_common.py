import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpt.cli import evaluate, plot, prepare_data, quantize, sample, train
from gpt.cli.common import SPINS, STANDARD_INPUT, read_text, run_command
from gpt.errors import GPTError

LONG = "x" * 300
COMMANDS = {
    "evaluate": evaluate,
    "plot": plot,
    "prepare": prepare_data,
    "quantize": quantize,
    "sample": sample,
    "train": train,
}


@pytest.mark.parametrize(("given", "expected"), [(None, SPINS), ("123", "123")])
def test_idle_threads_sleep_soon_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, given: str | None, expected: str
) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", given or "")
    if given is None:
        monkeypatch.delenv("GOMP_SPINCOUNT")
    assert run_command(lambda: int(os.environ["GOMP_SPINCOUNT"])) == int(expected)


@pytest.mark.parametrize("command", ["train", "sample", "evaluate", "explain"])
def test_a_command_does_not_load_torch_before_it_runs(command: str) -> None:
    """Its OpenMP library reads the environment when it is loaded."""
    code = f"import sys, gpt.cli.{command}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["evaluate", "--checkpoint", LONG],
        ["evaluate", "--runs", LONG],
        ["evaluate", "--text-file", LONG, "--checkpoint", "runs/tiny"],
        ["plot", LONG, "--output", "x.png"],
        ["plot", "runs/tiny", "--output", f"{LONG}.png"],
        ["prepare", "--config", LONG],
        ["prepare", "--config", "tiny.yaml", f"data.path={LONG}"],
        ["prepare", "--config", "tiny.yaml", f"data.dir={LONG}"],
        ["quantize", "--checkpoint", "runs/tiny", "--output", LONG],
        ["sample", "--prompt-file", LONG],
        ["sample", "--checkpoint", "runs/tiny", "--output", LONG],
        ["sample", "--checkpoint", "runs/tiny", "--speculate", LONG],
        ["train", "--config", "tiny.yaml", f"run.name={LONG}"],
        ["train", "--config", "tiny.yaml", f"run.dir={LONG}"],
        ["train", "--config", "tiny.yaml", "--resume", LONG],
        ["train", "--config", "tiny.yaml", "--resume", f"runs/{LONG}/last"],
    ],
    ids=lambda arguments: " ".join(arguments).replace(LONG, "LONG"),
)
def test_a_name_that_is_too_long_is_one_line(
    arguments: list[str], trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(trained)
    assert COMMANDS[arguments[0]].main(arguments[1:]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert LONG in error


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("evaluate", ["--checkpoint", ""]),
        ("evaluate", ["--text-file", ""]),
        ("plot", ["", "--output", "x.png"]),
        ("quantize", ["--output", ""]),
        ("sample", ["--runs", ""]),
        ("sample", ["--speculate", ""]),
        ("train", ["--config", ""]),
        ("train", ["--config", "tiny.yaml", "--resume", ""]),
    ],
)
def test_an_empty_path_is_no_default(command: str, options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        COMMANDS[command].main(options)
    assert caught.value.code == 2
    assert "expected a value, got an empty text" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["train", "prepare"])
def test_a_key_that_is_overridden_twice_is_refused(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert COMMANDS[command].main(["--config", "tiny.yaml", "run.seed=1", "train.max_steps=2", " run.seed =3"]) == 2
    assert capsys.readouterr().err == "error: command line: run.seed is given twice; leave one of them out\n"


def test_what_no_name_can_be_is_not_hidden() -> None:
    def command() -> int:
        return len(Path("/nowhere/at all").read_bytes())

    with pytest.raises(FileNotFoundError):  # not a user's mistake that a command has forgotten
        run_command(command)


@pytest.mark.parametrize("content", ["a\r\nb", "a\rb\n", "\u2028\x0c\x85", "a\ufeffb"])
def test_a_text_is_read_as_it_is(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text").write_bytes(content.encode())
    assert read_text(tmp_path / "text") == content
    (tmp_path / "text").write_bytes(b"\xef\xbb\xbf" + content.encode())
    assert read_text(tmp_path / "text") == content
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
    assert read_text(STANDARD_INPUT) == content


def test_standard_input_that_cannot_be_read_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(GPTError, match="standard input is closed"):
        read_text(STANDARD_INPUT)
