import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from gpt.checkpoint import read_checkpoint
from gpt.data.batches import read_windows
from gpt.distributed import World
from gpt.errors import NonFiniteError
from gpt.training.incidents import MAX_PENDING, MAX_SKIPPED, MEMORY, LossAnomaly, LossMonitor
from gpt.training.saving import CheckpointWriter
from gpt.training.trainer import Trainer
from training.sessions import Start, rows, same, weights


def feed(watch: LossMonitor, losses: list[float], first: int = 0) -> list[LossAnomaly]:
    for step, loss in enumerate(losses, start=first):
        watch.begin(step, torch.tensor([step, 7]))
        watch.observe(torch.tensor(loss), torch.tensor(1.0), torch.tensor(not math.isfinite(loss)))
    return watch.read()


def noise(count: int, mean: float = 2.0, deviation: float = 0.1) -> list[float]:
    return (mean + deviation * torch.randn(count)).tolist()


# --- what is an incident -------------------------------------------------------------------------


def test_a_spike_is_found_with_its_step_height_and_windows() -> None:
    watch = LossMonitor(6.0)
    assert feed(watch, noise(5000)) == []
    assert watch.statistics.mean == pytest.approx(2.0, abs=0.05)
    assert watch.statistics.deviation == pytest.approx(0.1, rel=0.4)
    (incident,) = feed(watch, [3.5], first=200)
    assert (incident.step, incident.kind, incident.loss, incident.windows) == (200, "spike", 3.5, [200, 7])
    assert incident.mean == pytest.approx(2.0, abs=0.1)
    assert "loss 3.5000 at step 200 is 1" in str(incident)
    assert json.loads(incident.to_json())["windows"] == [200, 7]
    assert watch.counters == {"train/loss_spikes": 1, "train/skipped_steps": 0}


@pytest.mark.parametrize(
    ("deviations", "losses"),
    [
        (6.0, [4.0 - step / 100 for step in range(300)]),
        (6.0, [2.0] * 300),
        (6.0, [2.0] * 200 + [2.1]),
        (6.0, [2.0] * (MEMORY - 1) + [9.0]),  # nothing to compare with
        (None, [2.0] * 200 + [9.0]),
    ],
)
def test_learning_a_plateau_and_a_small_step_are_no_incidents(deviations: float | None, losses: list[float]) -> None:
    assert feed(LossMonitor(deviations), losses) == []


def test_one_spike_does_not_hide_the_next_and_a_new_level_becomes_normal() -> None:
    watch = LossMonitor(6.0)
    feed(watch, noise(200))
    assert len(feed(watch, [50.0, 3.5])) == 2
    assert 1 < len(feed(watch, noise(400, mean=3.5))) < 60
    assert feed(watch, noise(100, mean=3.5)) == []


def test_values_that_are_not_finite_are_counted_and_kept_out_of_the_mean() -> None:
    watch = LossMonitor(6.0)
    feed(watch, [2.0] * 100)
    incidents = feed(watch, [math.nan, math.inf, 2.0])
    assert [(incident.kind, incident.loss) for incident in incidents] == [("nonfinite", None)] * 2
    assert watch.statistics.mean == 2.0
    assert watch.counters == {"train/loss_spikes": 0, "train/skipped_steps": 2}


def test_what_waits_is_bounded() -> None:
    watch = LossMonitor(6.0)
    for step in range(MAX_PENDING):
        assert not watch.is_full
        watch.begin(step, torch.tensor([0]))
    assert watch.is_full
    watch.read()
    assert not watch.is_full


@pytest.mark.parametrize("change", [{"mean": math.nan}, {"variance": -1.0}, {"count": "5"}, {"skipped": 2**70}])
def test_hostile_statistics_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        LossMonitor(6.0).load_state_dict({**LossMonitor(6.0).state_dict(), **change})


# --- in a run ------------------------------------------------------------------------------------

SKIP = "train.on_nonfinite=skip"


def spoil_steps(trainer: Trainer, steps: set[int], factor: float = math.nan) -> None:
    """Multiply the logits of certain training steps."""

    def hook(module: torch.nn.Module, inputs: Any, logits: Tensor) -> Tensor:
        return logits * factor if module.training and trainer.state.step in steps else logits

    trainer.model.register_forward_hook(hook)


def incidents(folder: Path) -> list[dict[str, Any]]:
    file = folder / "runs" / "run" / "incidents.jsonl"
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def test_a_run_that_stops_records_the_sequences_of_its_step(tmp_path: Path, start: Start) -> None:
    trainer = start(tmp_path, "train.log_interval=1000")
    spoil_steps(trainer, {2})
    with pytest.raises(NonFiniteError, match="step 2;"):
        trainer.run()
    (incident,) = incidents(tmp_path)
    assert (incident["step"], incident["kind"]) == (2, "nonfinite")
    assert len(incident["windows"]) == 4
    assert all(0 <= position < len(trainer.dataset.train) - 16 for position in incident["windows"])


def test_a_step_that_is_skipped_changes_nothing_and_the_next_ones_train(tmp_path: Path, start: Start) -> None:
    lines: list[str] = []
    trainer = start(tmp_path, SKIP, "train.max_steps=12", report=lines.append)
    spoil_steps(trainer, {0, 5, 6})
    seen: list[dict[str, Tensor]] = []
    step = trainer.stepper.step

    def watched(*arguments: Any) -> Any:
        seen.append(weights(trainer.model))
        return step(*arguments)

    with patch.object(trainer.stepper, "step", watched):
        assert trainer.run().step == 12
    assert [number for number in range(11) if same(seen[number], seen[number + 1])] == [0, 5, 6]
    assert [incident["step"] for incident in incidents(tmp_path)] == [0, 5, 6]
    assert sum("not finite at step" in line for line in lines) == 3
    assert rows(tmp_path, "train/skipped_steps")[12] == 3


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path, start: Start) -> None:
    """The loss may be finite although one is not, as where it is multiplied by 0."""
    trainer = start(tmp_path)
    writer = CheckpointWriter(trainer.config, trainer.dataset, trainer.run_folder, World(), print)
    with pytest.raises(NonFiniteError, match=r"the weights w are not finite at step 0; nothing was saved"):
        writer.write({"w": torch.tensor([1.0, math.inf])}, {}, trainer.state, best=True, required=False)
    assert trainer.run_folder.checkpoints() == []


def test_too_many_in_a_row_end_a_run_that_skips_also_after_a_resume(tmp_path: Path, start: Start) -> None:
    spoiled = {3, *range(6, 40)}
    trainer = start(tmp_path, SKIP, "train.max_steps=8", "train.eval_interval=8")
    spoil_steps(trainer, spoiled)
    trainer.run()
    options = (SKIP, "train.max_steps=40", "train.eval_interval=50")
    again = start(tmp_path, *options, resume="auto", allow_config_change=True)
    spoil_steps(again, spoiled)
    with pytest.raises(NonFiniteError, match=f"step {6 + MAX_SKIPPED}, as in the {MAX_SKIPPED} steps before"):
        again.run()
    assert all(torch.isfinite(weight).all() for weight in weights(again.model).values())


@pytest.mark.parametrize("spoiled", [{0}, {0, 1, 2}, {4, 8}])
def test_a_resumed_run_counts_on_and_repeats_no_incident(tmp_path: Path, start: Start, spoiled: set[int]) -> None:
    """The steps before the first checkpoint may all have been skipped."""
    options = (SKIP, "optim.ema_decay=0.9", "train.eval_interval=3", "train.max_steps=9")
    whole, first = start(tmp_path / "whole", *options), start(tmp_path / "parts", *options)
    for trainer in (whole, first):
        spoil_steps(trainer, spoiled)
    whole.run()
    step = first.stepper.step

    def crash(number: int, *arguments: Any) -> Any:
        if number == 5:
            raise KeyboardInterrupt
        return step(number, *arguments)

    with patch.object(first.stepper, "step", crash), pytest.raises(KeyboardInterrupt):
        first.run()
    second = start(tmp_path / "parts", *options, resume="auto")
    assert second.state.step == 3
    spoil_steps(second, spoiled)
    second.run()
    assert incidents(tmp_path / "parts") == incidents(tmp_path / "whole")
    assert same(weights(second.model), weights(whole.model))
    assert second.watch.state_dict() == whole.watch.state_dict()


def test_a_spike_is_reported_in_a_run(tmp_path: Path, start: Start) -> None:
    lines: list[str] = []
    options = (f"train.max_steps={MEMORY + 12}", "train.eval_interval=1000", "optim.learning_rate=1e-3")
    options += ("train.grad_accum_steps=2",)
    trainer = start(tmp_path, *options, "train.log_interval=1000", report=lines.append)
    seen: list[Tensor] = []

    def note(module: torch.nn.Module, inputs: Any) -> None:
        if module.training and trainer.state.step == MEMORY + 5:
            seen.append(inputs[0])

    trainer.model.register_forward_pre_hook(note)
    spoil_steps(trainer, {MEMORY + 5}, factor=-100.0)
    trainer.run()
    (incident,) = incidents(tmp_path)
    assert (incident["step"], incident["kind"]) == (MEMORY + 5, "spike")
    windows = torch.tensor(incident["windows"])
    assert torch.equal(read_windows(trainer.dataset.train, windows, 16)[0], torch.cat(seen))
    assert any(f"at step {MEMORY + 5} is" in line and "incidents.jsonl" in line for line in lines)


def test_a_checkpoint_of_an_old_version_has_no_statistics_and_can_be_resumed(tmp_path: Path, start: Start) -> None:
    start(tmp_path, "train.max_steps=3").run()
    checkpoint = read_checkpoint(tmp_path / "runs" / "run" / "checkpoints" / "step-000003")
    training = {name: value for name, value in checkpoint.training.items() if name not in ("watch", "guard")}
    trainer = start(tmp_path / "other")
    trainer.restore(replace(checkpoint, training=training))
    assert trainer.state.step == 3
