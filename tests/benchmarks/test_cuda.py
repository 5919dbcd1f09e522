"""The stages of `make cuda`, each on the CPU in a size that costs seconds, and what happens where one fails."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.cuda import __main__, runner, stage_result
from benchmarks.cuda.stage_result import StageResult
from benchmarks.cuda.stages import decoding, equality, memory, race, recipes, tests
from benchmarks.cuda.training_runs import Run
from benchmarks.cuda.workload import FULL, TINY
from benchmarks.processes import Line
from gpt.generation import Completion, SampledToken


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the text is encoded, and results are written."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- stages --------------------------------------------------------------------------------------


def test_the_tests_are_run_and_counted() -> None:
    found = tests.run(TINY)
    assert found.problems == []
    assert found.facts["counts"] == {"passed": 4}


def test_tests_that_do_not_run_are_a_problem() -> None:
    found = tests.run(replace(TINY, tests="nothing_of_that_name"))
    assert "no test passed" in found.problems


def test_the_cpu_is_equal_to_itself() -> None:
    found = equality.run(TINY)
    assert found.problems == []
    assert [row[1] for row in found.rows] == ["0.00e+00", "0.00e+00", "4 of 4"]
    losses = found.facts["shakespeare"]["device"]
    assert len(losses) == TINY.equality_steps
    assert losses[-1] < losses[0]


def test_a_loss_beyond_the_tolerance_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equality, "TOLERANCES", {"shakespeare": -1.0})
    assert [problem.partition(":")[0] for problem in equality.run(TINY).problems] == ["shakespeare"]


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


def test_memory_is_predicted_to_a_few_percent() -> None:
    found = memory.run(TINY)
    assert found.problems == []
    assert len(found.rows) == 2 * len(memory.RECIPES)
    assert all(0.97 < float(row[-1]) < 1.03 for row in found.rows)


def test_memory_that_is_not_what_was_predicted_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "LOWEST", 1.1)
    assert len(memory.run(TINY).problems) == 2 * len(memory.RECIPES)


def test_everybody_decodes_every_batch() -> None:
    found = decoding.run(TINY)
    assert found.problems == []
    assert list(found.header) == ["shape, batch", "eager", "Hugging Face"]
    assert [row[0] for row in found.rows] == ["1/2/32, 1", "1/2/32, 2"]
    assert all(rate > 0 for rates in found.facts.values() for rate in rates.values())


def test_recipes_are_trained_as_whole_processes() -> None:
    found = recipes.run(TINY)
    assert found.problems == ()
    for name in recipes.RECIPES:
        facts = found.facts[name]
        assert 3.0 < facts["loss"] < 5.0
        seconds, _ = facts["evaluations"][-1]
        assert 0 < seconds < facts["seconds"]


@pytest.fixture
def ours_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training costs seconds, and `recipes` has been there."""
    run = Run(60.0, [(20.0, 2.0), (50.0, 1.5)], 1000.0, 1.48)
    monkeypatch.setattr(race, "train_ours", lambda *_: run)


@pytest.mark.usefixtures("ours_is_done")
def test_a_race_whose_peer_fails_keeps_what_ours_did(folder: Path) -> None:
    data = folder / "checkout" / "data" / "shakespeare_char"
    data.mkdir(parents=True)
    (data / "prepare.py").write_text("raise SystemExit('no network')", encoding="utf-8")
    found = race.run(replace(TINY, nanogpt=folder / "checkout"))
    assert [row[:5] for row in found.rows] == [("gpt", "60.0", "50.0", "1.5000", "1.4800")]
    assert len(found.problems) == 1
    assert found.problems[0].startswith("nanoGPT: prepare.py")
    assert found.problems[0].endswith("no network")


@pytest.mark.usefixtures("ours_is_done")
def test_a_race_says_that_no_peer_was_given() -> None:
    found = race.run(TINY)
    assert found.problems == []
    assert found.rows[1][0] == "nanoGPT, not run: no NANOGPT=PATH"


def test_what_nanogpt_prints_is_read() -> None:
    lines = [
        Line(1.0, "tokens per iteration will be: 16,384"),
        Line(9.0, "step 0: train loss 4.2, val loss 4.3"),
        Line(9.1, "iter 0: loss 4.2, time 8000.00ms, mfu -100.00%"),
        Line(9.2, "iter 10: loss 3.2, time 10.00ms, mfu 1.00%"),
        Line(9.3, "iter 20: loss 3.1, time 12.00ms, mfu 1.00%"),
        Line(20.0, "step 250: train loss 1.9, val loss 2.1"),
    ]
    run = race.read_log(30.0, lines, 2.0, race.tokens_per_iteration(lines))
    assert run == Run(30.0, [(9.0, 4.3), (20.0, 2.1)], 16384 / 0.012, 2.0)
    assert run.seconds_to(4.0) == 20.0
    assert run.seconds_to(1.0) is None


# --- running them --------------------------------------------------------------------------------


def script(folder: Path, code: str) -> list[str]:
    """A process that stands for a stage: `write(name, problems)` leaves its result."""
    path = folder / "stage.py"
    path.write_text(
        "import sys\nfrom pathlib import Path\n"
        "def write(name, problems):\n"
        "    from benchmarks.cuda import runner, stage_result\n"
        "    found = stage_result.StageResult('T', ('a', 'b'), [('x', '1')], {}, problems)\n"
        f"    stage_result.write(Path({str(folder)!r}), name, found, runner._about('cpu', 1.0))\n"
        f"{code}\n",
        encoding="utf-8",
    )
    return [sys.executable, str(path)]


def test_a_stage_that_fails_is_reported_and_the_others_go_on(folder: Path) -> None:
    codes = {
        "tests": "print('error: a device-side assert', file=sys.stderr); sys.exit(134)",
        "equality": "write('equality', ['losses differ']); sys.exit(1)",
        "memory": "write('memory', [])",
    }
    good = runner.run_all(list(codes), lambda name: script(folder, codes[name]), "cpu", folder)
    assert not good
    table = stage_result.render(folder, ["tests", "equality", "memory", "race"])
    assert "**Failed:** ended with 134: error: a device-side assert" in table
    assert "**Failed:** losses differ" in table
    assert table.count("| x | 1 |") == 2
    assert "## race\n\nNot run." in table
    assert json.loads((folder / "cuda_memory.json").read_text())["problems"] == []


def test_a_stage_that_takes_too_long_is_ended(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(runner.MINUTES, "tests", 1 / 120)
    assert not runner.run_all(["tests"], lambda _: script(folder, "import time; time.sleep(60)"), "cpu", folder)
    assert "it took more than" in stage_result.render(folder, ["tests"])


def test_an_older_result_does_not_stand_for_a_stage_that_died(folder: Path) -> None:
    stage_result.write(folder, "tests", StageResult("old", ("a",), [("b",)]), runner._about("cpu", 1.0))
    runner.run_all(["tests"], lambda _: script(folder, "sys.exit(9)"), "cpu", folder)
    assert "ended with 9" in stage_result.render(folder, ["tests"])
    assert "old" not in stage_result.render(folder, ["tests"])


def test_all_stages_take_at_most_forty_minutes() -> None:
    assert sum(runner.MINUTES.values()) <= 40
    assert FULL.device == "cuda"


def call(monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setattr(sys, "argv", ["cuda", *options])
    return __main__.main()


def test_the_command_runs_a_stage_in_a_process_of_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "--size", "tiny", "--stages", "memory", "--output", str(folder / "out")) == 0
    printed = capsys.readouterr().out
    assert (folder / "out" / "cuda.md").read_text() in printed
    assert "| shakespeare: prefill of 2 |" in printed
    assert json.loads((folder / "out" / "cuda_memory.json").read_text())["gpu"] == "no GPU"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "sees no CUDA device, and this needs one"),
        (("--stages", "memory,nonsense"), "--stages: 'nonsense' is none of tests, equality"),
        (("--size", "tiny", "--nanogpt", "nowhere"), "--nanogpt nowhere is not a checkout of nanoGPT"),
    ],
)
def test_a_mistake_or_no_gpu_is_one_line(
    options: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert call(monkeypatch, *options) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1


def test_packages_that_the_interpreter_lacks_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(__main__, "NEEDED", ("torch", "no_such_package", "nor_that"))
    assert call(monkeypatch) == 2
    assert capsys.readouterr().err == f"error: {sys.executable} lacks no_such_package, nor_that; install them for it\n"
