"""Micro-batches that fit into memory as predicted."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gpt.config import Config, RunConfig
from gpt.config.loading import load_saved_config
from gpt.device import Compute
from gpt.errors import ConfigError, DeviceError
from gpt.training import fitting
from gpt.training.fitting import SHARES, fit_and_tell, fit_memory, fit_unsized
from gpt.training.parallel import check_parallel
from training.sessions import Start, same, weights

COMPUTE = Compute(torch.device("cpu"), torch.float32)
SIZES = (1, 2, 3, 4, 6, 12)


@pytest.fixture(autouse=True)
def _predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    """As simple as predictions can be: `tests/accounting/test_memory.py` has the real ones."""
    monkeypatch.setattr(fitting, "predict_memory", lambda config, batch, length, compute: predicted(config, batch))


def predicted(config: Config, batch: int) -> SimpleNamespace:
    sequence = 100 if config.train.activation_checkpointing else 1000
    return SimpleNamespace(peak=500 + 500 * (config.train.grad_accum_steps > 1) + batch * sequence)


def config_of(batch_size: int, grad_accum_steps: int = 1, checkpointing: bool = False) -> Config:
    sizes = {"batch_size": batch_size, "grad_accum_steps": grad_accum_steps}
    return Config.model_validate({"train": {**sizes, "activation_checkpointing": checkpointing}})


def chosen(config: Config, peak: float) -> tuple[int, int, bool]:
    """What fits where a predicted peak may be so large."""
    train = fit_memory(config, round(peak / SHARES["cpu"]), COMPUTE).train
    return train.batch_size, train.grad_accum_steps, train.activation_checkpointing


def test_the_largest_micro_batch_that_fits_is_taken_whatever_the_split_was() -> None:
    for number, size in enumerate(SIZES):
        limit = 500 + 500 * (size < 12) + 1000 * size
        for parts in (1, 3, 12):
            assert chosen(config_of(12 // parts, parts), limit + 2) == (size, 12 // size, False)
        if number:
            assert chosen(config_of(12), limit - 2)[0] == SIZES[number - 1]


def test_where_no_sequence_fits_activations_are_recomputed_and_then_it_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert chosen(config_of(12), 1900) == (12, 1, True)
    assert chosen(config_of(12), 1500) == (4, 3, True)
    assert chosen(config_of(12, checkpointing=True), 1e6) == (12, 1, True)  # it was asked for
    message = r"^a training step needs 1,748 MiB of memory as predicted.* has 1,024 MiB; lower model\.block_size"
    monkeypatch.setattr(fitting, "predict_memory", lambda *given: SimpleNamespace(peak=1.1e9))
    with pytest.raises(DeviceError, match=message):
        fit_memory(config_of(12), 1 << 30, COMPUTE)


def test_a_run_is_split_once_and_resumed_as_it_was_split(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where more memory is available then, and with the configuration that did not say how to split."""
    lines: list[str] = []
    monkeypatch.setattr(fitting, "available_bytes", lambda device: round(9500 / SHARES["cpu"]))
    recipe = ("run.memory=auto", "model.dropout=0.2", "train.batch_size=32")
    whole = start(tmp_path, *recipe, report=lines.append)
    assert "run.memory=auto, 0 MiB: train.batch_size=8 train.grad_accum_steps=4 as predicted" in lines
    assert (whole.batches.size, whole.batches.sequences) == (8, 32)
    whole.run()
    assert load_saved_config(whole.run_folder.path / "config.yaml").train == whole.config.train
    monkeypatch.setattr(fitting, "available_bytes", lambda device: 1 << 40)
    learned, middle = weights(whole.model), whole.run_folder.path / "checkpoints" / "step-000003"
    resumed = start(tmp_path, *recipe, resume=str(middle))
    assert resumed.config.train == whole.config.train
    resumed.run()
    assert same(weights(resumed.model), learned)


def test_a_split_run_goes_on_without_the_memory_that_it_was_split_for(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "available_bytes", lambda device: round(9500 / SHARES["cpu"]))
    split = start(tmp_path, "run.memory=auto", "train.batch_size=32").run()
    assert split.step == 6
    for _ in range(2):  # what it writes can be resumed again
        resumed = start(tmp_path, "train.batch_size=32", resume="auto")
        assert (resumed.config.run.memory, resumed.batches.size, resumed.state.step) == ("auto", 8, 6)
        resumed.run()


def test_memory_that_is_given_to_a_resumed_run_keeps_its_split_and_says_so(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(tmp_path).run()
    for limit, added in ((1 << 40, ""), (4400, " train.activation_checkpointing=true")):
        monkeypatch.setattr(fitting, "available_bytes", lambda device, limit=limit: limit)
        lines: list[str] = []
        resumed = start(tmp_path, "run.memory=auto", resume="auto", report=lines.append)
        kept = f"train.batch_size=4 train.grad_accum_steps=1{added}"
        assert f"run.memory=auto: the split of the checkpoint is kept, {kept}" in lines
        assert resumed.config.train.activation_checkpointing == bool(added)
        resumed.run()


def test_a_recipe_can_be_fitted_for_a_device_that_is_not_here() -> None:
    lines: list[str] = []
    absent = config_of(12).model_copy(update={"run": RunConfig(device="cuda:99", memory="8GB")})
    assert fit_unsized(absent, 65, lines.append).train.batch_size == 12
    assert lines[0] == "cuda:99 is not on this machine: memory is predicted as on its CPU"
    with pytest.raises(DeviceError, match=r"^device cuda:99"):
        fit_unsized(absent.model_copy(update={"run": RunConfig(device="cuda:99", memory="auto")}), 65, lines.append)


def test_a_system_that_does_not_tell_its_memory_needs_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "available_bytes", lambda device: None)
    with pytest.raises(DeviceError, match=r"set run\.memory=8GB$"):
        fit_and_tell(config_of(12), COMPUTE)
    sized = config_of(12).model_copy(update={"run": RunConfig(memory="1.5 MiB")})
    assert "run.memory=1.5 MiB, 2 MiB: train.batch_size=12" in fit_and_tell(sized, COMPUTE)[1]


def test_several_processes_are_not_fitted() -> None:
    config = Config.model_validate({"run": {"memory": "auto"}})
    with pytest.raises(ConfigError, match=r"^run\.memory is for one process"):
        check_parallel(config, SimpleNamespace(size=2))  # type: ignore[arg-type]
