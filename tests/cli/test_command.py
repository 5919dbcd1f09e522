import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gpt.cli import evaluate, plot, prepare_data, quantize, sample, train
from gpt.cli.command import SPINS, run_command

LONG = "x" * 300
COMMANDS = {
    "evaluate": evaluate,
    "plot": plot,
    "prepare": prepare_data,
    "quantize": quantize,
    "sample": sample,
    "train": train,
}


def test_a_thread_that_cannot_write_is_one_line_and_another_error_of_a_thread_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """TensorBoard writes in a thread."""

    def fail_in_a_thread(error: Exception) -> int:
        thread = threading.Thread(target=lambda: throw(error))
        thread.start()
        thread.join()
        return 0

    def throw(error: Exception) -> None:
        raise error

    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)
    run_command(lambda: fail_in_a_thread(OSError(errno.ENOSPC, "No space left on device")))
    assert capsys.readouterr().err == "warning: a background thread cannot write: No space left on device\n"
    run_command(lambda: fail_in_a_thread(ZeroDivisionError()))
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(("given", "expected"), [(None, SPINS), ("123", "123")])
def test_idle_threads_sleep_soon_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, given: str | None, expected: str
) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", given or "")
    if given is None:
        monkeypatch.delenv("GOMP_SPINCOUNT")
    assert run_command(lambda: int(os.environ["GOMP_SPINCOUNT"])) == int(expected)


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


def test_what_no_name_can_be_is_not_hidden() -> None:
    def command() -> int:
        return len(Path("/nowhere/at all").read_bytes())

    with pytest.raises(FileNotFoundError):  # not a user's mistake that a command has forgotten
        run_command(command)


@pytest.mark.parametrize(
    "command",
    [
        lambda name: train.main(["--config", name]),
        lambda name: sample.main(["--checkpoint", name]),
        lambda name: evaluate.main(["--text-file", name]),
        lambda name: quantize.main(["--weights", "int8", "--checkpoint", "runs/no", name]),
    ],
    ids=["configuration", "checkpoint", "text", "unknown argument"],
)
def test_a_name_begins_no_line_and_does_not_steer_the_terminal(
    command: Callable[[str], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        code = command("a\nerror: all is well\x1b[2J")
    except SystemExit as stopped:
        code = int(str(stopped.code))
    errors = capsys.readouterr().err
    assert code == 2
    assert errors.count("\n") == 1
    assert "\x1b" not in errors


def test_a_list_of_mistakes_keeps_its_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.yaml").write_text("model: {n_layers: 1, n_heads: 1}\n")
    assert train.main(["--config", str(tmp_path / "a.yaml")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 3
