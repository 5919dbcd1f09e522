"""What `make cuda` runs: each measurement on the CPU in a size that costs seconds, and what happens where one fails."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import cuda, equality, memory
from benchmarks.cli import main
from benchmarks.processes import Line
from benchmarks.training_runs import Run, read_log
from gpt.generation import Completion, SampledToken

TINY = ("--config", "tiny.yaml")


def measured(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def test_the_cpu_is_equal_to_itself(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--variants", "eager", "--steps", "4", "--tokens", "8", "--tolerance", "0"]
    assert main(["train", "equality", *TINY, *sizes]) == 0
    found = measured(capsys)
    assert (len(found["losses"]["cpu"]), found["largest"]) == (4, 0)
    assert [text["equal"] for text in found["texts"]["eager"]] == [True] * 4


def test_a_difference_beyond_the_tolerance_ends_with_1(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = {"equal": False, "close": False, "reason": "they differ"}
    monkeypatch.setattr(equality, "compare_texts", lambda *_: [text])
    assert main(["train", "equality", *TINY, "--steps", "2", "--variants", "eager"]) == 1
    assert "not equal: eager: they differ" in capsys.readouterr().err


@pytest.mark.parametrize(("ahead", "close"), [(1e-4, True), (0.5, False)])
def test_texts_may_differ_at_a_tie_only(ahead: float, close: bool) -> None:
    def completion(last: int) -> Completion:
        sampled = [
            SampledToken(1, 0.0, ((1, 0.0), (2, -9.0))),
            SampledToken(last, -1.0, ((3, -1.0), (4, -1.0 - ahead))),
        ]
        return Completion("O", "", 0, "length", sampled)

    assert equality.compare(completion(3), completion(3)) == {"equal": True, "close": True, "reason": ""}
    found = equality.compare(completion(3), completion(4))
    assert (found["equal"], found["close"]) == (False, close)
    assert "differs at token 1" in found["reason"]


def test_memory_is_predicted_to_a_few_percent(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "memory", *TINY]) == 0
    rows = measured(capsys)["rows"]
    assert list(rows) == ["training step, float32", "prefill of 4"]
    assert all(0.97 < row["measured"] / row["predicted"] < 1.03 for row in rows.values())


def test_memory_that_is_not_what_was_predicted_ends_with_1(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(memory, "LOWEST", 1.1)
    assert main(["train", "memory", *TINY]) == 1
    assert "not as predicted: prefill of 4" in capsys.readouterr().err


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
        "equality": [["-c", "print('a table'); print('{}')"]],
        "memory": [["-c", "import time; time.sleep(60)"]],
    }
    monkeypatch.setitem(cuda.MINUTES, "memory", 1 / 120)
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
    assert sum(cuda.MINUTES.values()) <= 40
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
        (("--stages", "memory,nonsense"), "--stages: 'nonsense' is none of tests, equality"),
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


def test_packages_that_the_interpreter_lacks_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cuda, "NEEDED", ("torch", "no_such_package", "nor_that"))
    assert cuda.main([]) == 2
    assert "lacks no_such_package, nor_that; install them for it\n" in capsys.readouterr().err
