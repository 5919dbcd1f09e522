"""What `make cuda` runs, and what happens where a command fails."""

from pathlib import Path

import pytest
import torch

from benchmarks import cuda
from benchmarks.cli import main
from benchmarks.processes import Line
from benchmarks.training_runs import Run, read_log


def test_what_nanogpt_prints_is_read() -> None:
    lines = [
        Line(1.0, "tokens per iteration will be: 16,384"),
        Line(9.0, "step 0: train loss 4.2, val loss 4.3"),
        Line(9.1, "iter 0: loss 4.2, time 8000.00ms, mfu -100.00%"),
        Line(9.2, "iter 10: loss 3.2, time 10.00ms, mfu 1.00%"),
        Line(9.3, "iter 20: loss 3.1, time 12.00ms, mfu 1.00%"),
        Line(20.0, "step 250: train loss 1.9, val loss 2.1"),
    ]
    model = torch.nn.Identity()
    found = read_log(30.0, lines, model)
    assert found == Run(30.0, model, [(9.0, 4.3), (20.0, 2.1)], 16384 / 0.012)
    assert (found.seconds_to(4.0), found.seconds_to(1.0)) == (20.0, None)


def test_a_command_that_fails_or_takes_too_long_is_reported_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = {
        "tests": [["-c", "print('error: a device-side assert', file=__import__('sys').stderr); exit(134)"]],
        "decoding": [["-c", "print('a table'); print('{}')"]],
        "step": [["-c", "import time; time.sleep(60)"]],
    }
    monkeypatch.setitem(cuda.MINUTES, "step", 1 / 120)
    assert cuda.run_all(commands, list(commands), tmp_path) == 1
    text = (tmp_path / "cuda.md").read_text(encoding="utf-8")
    assert text in capsys.readouterr().out
    assert "... ended with 134: a device-side assert" in text
    assert "```\na table\n```" in text
    assert "**Failed:** it took more than 0.0 minutes" in text
    assert "## race\n\nNot run." in text


def test_every_command_is_one_that_there_is(checkout: Path) -> None:
    stages = cuda.commands_of(checkout)
    assert list(stages) == list(cuda.MINUTES)
    for commands in stages.values():
        for script, *words in commands:
            if script == "scripts/bench.py":
                with pytest.raises(SystemExit) as ended:
                    main([*words, "--help"])
                assert ended.value.code == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "sees no CUDA device, and this needs one"),
        (("--stages", "step,nonsense"), "--stages: 'nonsense' is none of tests, decoding"),
        (("--nanogpt", "nowhere"), "--nanogpt nowhere is not a checkout of nanoGPT"),
    ],
)
def test_a_mistake_or_no_gpu_is_one_line(
    options: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cuda.main(options) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1
