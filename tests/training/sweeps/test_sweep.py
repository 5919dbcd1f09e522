import csv
import json
import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpt.checkpoint import RunFolder
from gpt.config.loading import load_config
from gpt.errors import CheckpointError
from gpt.progress import silent
from gpt.training.signals import Interrupted
from gpt.training.sweeps import sweep as sweeps
from gpt.training.sweeps.sweep import Outcome, Sweep
from gpt.training.sweeps.trials import Trial
from training.sweeps.in_process import Ended

FOLDER = Path("runs/sweep")
QUICK = ("run.name=null", "train.max_steps=2", "train.eval_interval=2", "train.sample_tokens=0", "train.ngrams=false")
RATES = tuple({"optim.learning_rate": rate} for rate in (1e-4, 1e-2))
Commands = list[list[str]]


def make(*values: dict[str, Any], overrides: Sequence[str] = (), report: Any = silent) -> Sweep:
    base = load_config(Path("tiny.yaml"), [*QUICK, *overrides]).config
    return Sweep(FOLDER, [Trial(each) for each in values], base, [], report)


def results() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((FOLDER / "results.json").read_text())["trials"]
    return rows


def test_every_trial_is_trained_once_and_its_loss_recorded(workplace: Path, trained_here: Commands) -> None:
    make(*RATES).run()
    rows = results()
    assert [row["values"]["optim.learning_rate"] for row in rows] == [1e-2, 1e-4]  # sorted by loss
    assert rows[0]["best_val_loss"] < rows[1]["best_val_loss"]
    with (FOLDER / "results.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    for row, cells in zip(rows, table, strict=True):
        best = json.loads((FOLDER / row["name"] / "best.json").read_text())
        assert (row["best_val_loss"], row["best_step"]) == (best["val_loss"], best["step"])
        assert (row["status"], row["step"]) == ("finished", 2)
        assert float(cells["best_val_loss"]) == best["val_loss"]
        assert float(cells["optim.learning_rate"]) == row["values"]["optim.learning_rate"]
        config = RunFolder(FOLDER / row["name"]).config()
        assert config is not None
        assert config.optim.learning_rate == row["values"]["optim.learning_rate"]
        assert config.train.max_steps == 2
    (FOLDER / "results.json").write_bytes(b"{")  # what became of the trials is read from their runs
    make(*RATES).run()
    assert results() == rows
    assert len(trained_here) == 2
    make({"optim.learning_rate": 1e-3}, *RATES).run()  # a larger grid
    assert len(trained_here) == 3
    assert "optim.learning_rate=0.001" in trained_here[-1]


def test_a_failed_trial_is_reported_the_rest_go_on_and_it_is_tried_again(
    workplace: Path, trained_here: Commands
) -> None:
    lines: list[str] = []
    sweep = make({"optim.learning_rate": 1e30}, RATES[0], report=lines.append)
    sweep.run()
    assert [outcome.status for outcome in sweep.outcomes.values()] == ["failed", "finished"]
    assert "trial 1 of 2: failed (error: its last line); see runs/sweep/" in lines[1]
    assert sweep.outcomes[sweep.trials[0].name].message == "error: its last line"
    again = make({"optim.learning_rate": 1e30}, RATES[0])
    assert again.outcomes == sweep.outcomes
    again.run()
    assert ["optim.learning_rate=1e+30" in command for command in trained_here] == [True, False, True]


@pytest.mark.parametrize(("code", "status"), [(0, "failed"), (-15, "stopped"), (130, "stopped"), (3, "failed")])
def test_a_trial_that_ended_without_a_loss_is_not_finished(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, code: int, status: str
) -> None:
    monkeypatch.setattr(sweeps, "start_trial", lambda folder, arguments: Ended(code))
    monkeypatch.setattr(sweeps, "POLL_SECONDS", 0)
    sweep = make(RATES[0])
    sweep.run()
    assert [outcome.status for outcome in sweep.outcomes.values()] == [status]


@pytest.mark.parametrize("damaged", ["checkpoints/step-000002/state.json", "last.json"])
def test_a_trial_whose_run_is_damaged_goes_on_from_its_last_good_checkpoint(
    workplace: Path, trained_here: Commands, damaged: str
) -> None:
    make(*RATES).run()
    before = results()
    file = FOLDER / before[0]["name"] / damaged
    content = file.read_text()
    digits = str(before[0]["best_val_loss"])
    assert digits in content
    file.write_text(content.replace(digits, f"1{digits}") if damaged != "last.json" else "")
    make(*RATES).run()
    assert len(trained_here) == 3
    after = results()
    for row in (*before, *after):
        del row["seconds"]
    assert after == before


def test_another_configuration_is_refused_unless_it_learns_the_same(workplace: Path, trained_here: Commands) -> None:
    make(RATES[0]).run()
    make(RATES[0], overrides=["train.log_interval=2"]).run()
    with pytest.raises(CheckpointError, match=r"another configuration \(optim.weight_decay: 0.1 -> 0.5\)"):
        make(RATES[0], overrides=["optim.weight_decay=0.5"]).run()
    assert load_config(FOLDER / "base.yaml").config.optim.weight_decay == 0.1


def test_the_folder_of_a_run_is_refused(workplace: Path) -> None:
    FOLDER.mkdir(parents=True)
    (FOLDER / "config.yaml").write_text("model: {n_layer: 1}")
    with pytest.raises(CheckpointError, match="runs/sweep is a run, not a sweep"):
        make(RATES[0]).run()
    assert sorted(path.name for path in FOLDER.iterdir()) == ["config.yaml"]


@pytest.mark.parametrize("taken", [FOLDER, FOLDER / Trial(RATES[0]).name])
def test_a_sweep_or_trial_that_another_process_runs_is_refused(workplace: Path, taken: Path) -> None:
    other = RunFolder(taken)
    other.lock()
    with pytest.raises(CheckpointError, match=f"another process is training {taken};"):
        make(RATES[0]).run()
    other.unlock()


def test_a_folder_that_cannot_be_written_is_named(workplace: Path) -> None:
    FOLDER.parent.write_text("a file")
    with pytest.raises(CheckpointError, match="cannot write"):
        make(RATES[0]).run()


def test_each_device_runs_one_trial_at_a_time(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running: list[str] = []
    most = 0

    class Slow(Ended):
        """Ends at the third look at it."""

        def __init__(self, device: str) -> None:
            self.looks, self.device = 0, device

        def poll(self) -> int | None:  # type: ignore[override]
            self.looks += 1
            if self.looks == 3:
                running.remove(self.device)
            return -9 if self.looks >= 3 else None

    def start(folder: Path, arguments: Sequence[str]) -> Slow:
        nonlocal most
        (device,) = (text for text in arguments if text.startswith("run.device="))
        assert device not in running
        running.append(device)
        most = max(most, len(running))
        return Slow(device)

    monkeypatch.setattr(sweeps, "start_trial", start)
    monkeypatch.setattr(sweeps, "POLL_SECONDS", 0)
    sweep = make(*({"optim.learning_rate": 0.1 + rate} for rate in range(5)))
    sweep.run(["cuda:0", "cuda:1"])
    assert most == 2
    assert {outcome.message for outcome in sweep.outcomes.values()} == {"ended by SIGKILL"}


def test_ctrl_c_ends_a_trial_with_its_checkpoint_and_the_next_sweep_continues_it(
    workplace: Path, request: pytest.FixtureRequest
) -> None:
    """With a real process, which is stopped."""
    long = ["train.max_steps=200", "train.eval_interval=200", "train.log_interval=1"]
    lines: list[str] = []
    sweep = make(RATES[0], overrides=long, report=lines.append)
    metrics = FOLDER / sweep.trials[0].name / "metrics.jsonl"
    waiter = threading.Thread(target=_interrupt_when, args=(metrics,))
    waiter.start()
    with pytest.raises(Interrupted) as stopped:
        sweep.run()
    waiter.join()
    assert stopped.value.exit_code == 130
    (outcome,) = sweep.outcomes.values()
    assert outcome.status == "stopped"
    assert outcome.step is not None
    assert 0 < outcome.step < 200
    assert lines[-1] == f"trial 1 of 1: stopped at step {outcome.step}"
    request.getfixturevalue("trained_here")
    again = make(RATES[0], overrides=long)
    assert again.outcomes == {outcome.name: outcome}
    again.run()
    steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines() if "train/loss" in line]
    assert steps == list(range(1, 201))
    assert again.outcomes[outcome.name].status == "finished"


def _interrupt_when(file: Path) -> None:
    """Send SIGINT to this process as soon as the file is there."""
    while not file.is_file() or b"train/loss" not in file.read_bytes():
        threading.Event().wait(0.01)
    os.kill(os.getpid(), signal.SIGINT)


def test_an_outcome_without_a_loss_comes_last() -> None:
    ranked = sorted(
        [Outcome("a"), Outcome("b", "failed", 1.0), Outcome("c", "finished", 3.0), Outcome("d", "finished", 2.0)],
        key=lambda outcome: outcome.rank,
    )
    assert [outcome.name for outcome in ranked] == ["d", "c", "b", "a"]
