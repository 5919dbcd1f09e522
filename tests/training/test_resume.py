import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt.checkpoint import Checkpoint, RunFolder, read_checkpoint, weights_of, write_checkpoint
from gpt.config import Config
from gpt.data import Dataset
from gpt.data.tokenizers import CharTokenizer
from gpt.errors import CheckpointError
from gpt.model import GPT
from gpt.training.resume import AUTO, HARMLESS, ResumePoint, check_fits, differences, find_resume_point
from gpt.training.training_state import TrainingState

MODEL = {"n_layer": 1, "n_head": 1, "n_embd": 8, "block_size": 8, "vocab_size": 3}
KEYS = [
    f"{section}.{key}"
    for section, field in Config.model_fields.items()
    for key in field.annotation.model_fields  # type: ignore[union-attr]
]


def changed(config: Config, key: str, value: object) -> Config:
    section, name = key.split(".")
    return config.model_copy(update={section: getattr(config, section).model_copy(update={name: value})})


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config.model_validate({"model": MODEL, "run": {"dir": str(tmp_path)}})


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "run")


@pytest.fixture
def dataset() -> Dataset:
    tokens = torch.zeros(20, dtype=torch.uint8).numpy()
    return Dataset(tokens, tokens, CharTokenizer("abc"), "fingerprint")


@pytest.fixture
def make_checkpoint(config: Config) -> Callable[[int], Checkpoint]:
    def make(step: int) -> Checkpoint:
        state: dict[str, Any] = {"step": step, "data": "fingerprint"}
        return Checkpoint(weights_of(GPT(config.model)), {}, state, config, CharTokenizer("abc"))

    return make


# --- differences ---------------------------------------------------------------------------------


def test_every_harmless_key_exists() -> None:
    assert set(KEYS) >= HARMLESS


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("key", KEYS)
def test_a_changed_key_is_a_difference_unless_it_is_harmless(config: Config, key: str) -> None:
    is_harmless = key in HARMLESS or key.startswith("sample.")
    expected = [] if is_harmless else [f"{key}: {config.leaves()[key]} -> other"]
    assert differences(config, changed(config, key, "other")) == expected


@pytest.mark.parametrize(
    "key", ["optim.learning_rate", "train.batch_size", "train.max_steps", "run.seed", "model.dropout", "run.dtype"]
)
def test_what_decides_the_weights_is_never_harmless(key: str) -> None:
    assert key in KEYS
    assert key not in HARMLESS


# --- where to continue ---------------------------------------------------------------------------


def test_a_run_that_exists_is_not_overwritten_and_can_be_continued(run: RunFolder, config: Config) -> None:
    run.create(config)
    with pytest.raises(CheckpointError, match="exists already, with this configuration; continue it with --resume"):
        find_resume_point(run, None, changed(config, "model.vocab_size", None), pytest.fail)


def test_a_run_of_another_configuration_names_the_keys_and_does_not_offer_to_continue(
    run: RunFolder, config: Config
) -> None:
    run.create(config)
    other = changed(changed(config, "run.seed", 7), "optim.weight_decay", 0.5)
    with pytest.raises(CheckpointError) as error:
        find_resume_point(run, None, other, pytest.fail)
    message = str(error.value)
    assert "another configuration (run.seed: 1337 -> 7; optim.weight_decay: 0.1 -> 0.5); choose another name" in message
    assert "--resume" not in message


def test_auto_continues_from_the_newest_checkpoint(
    run: RunFolder, config: Config, make_checkpoint: Callable[[int], Checkpoint]
) -> None:
    for step in (5, 10):
        run.save(make_checkpoint(step), best=step == 5, keep_last=2)
    point = find_resume_point(run, AUTO, config, pytest.fail)
    assert point is not None
    assert (point.folder.name, point.checkpoint.state["step"]) == ("step-000010", 10)


def test_auto_passes_over_damaged_checkpoints_with_a_warning_each(
    run: RunFolder, config: Config, make_checkpoint: Callable[[int], Checkpoint]
) -> None:
    for step in (5, 10, 15):
        folder = run.save(make_checkpoint(step), best=False, keep_last=3)
        if step > 5:
            (folder / "state.json").unlink()
    lines: list[str] = []
    point = find_resume_point(run, AUTO, config, lines.append)
    assert point is not None
    assert point.checkpoint.state["step"] == 5
    assert [name in line for name, line in zip(("step-000015", "step-000010"), lines, strict=True)] == [True, True]
    assert all(line.startswith("warning: ") for line in lines)


def test_auto_with_only_damaged_checkpoints_does_not_start_afresh(
    run: RunFolder, config: Config, make_checkpoint: Callable[[int], Checkpoint]
) -> None:
    (run.save(make_checkpoint(5), best=False, keep_last=1) / "optimizer.pt").unlink()
    with pytest.raises(CheckpointError, match="no readable checkpoint"):
        find_resume_point(run, AUTO, config, pytest.fail)


@pytest.mark.parametrize(("path", "step"), [("", 10), ("last", 10), ("best", 5), ("checkpoints/step-000005", 5)])
def test_a_path_of_a_run_means_its_last_checkpoint(
    run: RunFolder, config: Config, make_checkpoint: Callable[[int], Checkpoint], path: str, step: int
) -> None:
    for number in (5, 10):
        run.save(make_checkpoint(number), best=number == 5, keep_last=2)
    point = find_resume_point(RunFolder(run.path.with_name("new")), str(run.path / path), config, pytest.fail)
    assert point is not None
    assert point.checkpoint.state["step"] == step


def test_a_damaged_checkpoint_that_was_named_is_an_error(
    run: RunFolder, config: Config, make_checkpoint: Callable[[int], Checkpoint]
) -> None:
    """Another one was not asked for."""
    for step in (5, 10):
        folder = run.save(make_checkpoint(step), best=False, keep_last=2)
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"step-000010.model\.safetensors is damaged"):
        find_resume_point(run, str(run.path), config, pytest.fail)


# --- whether it fits -----------------------------------------------------------------------------


@pytest.fixture
def point(make_checkpoint: Callable[[int], Checkpoint]) -> ResumePoint:
    return ResumePoint(Path("step-000005"), make_checkpoint(5))


def test_a_changed_key_is_refused_until_it_is_allowed(point: ResumePoint, config: Config, dataset: Dataset) -> None:
    other = changed(config, "optim.learning_rate", 0.5)
    with pytest.raises(CheckpointError, match=r"optim\.learning_rate: 0\.001 -> 0\.5\. Change that back"):
        check_fits(point, other, dataset, allow_config_change=False)
    check_fits(point, other, dataset, allow_config_change=True)


def test_other_data_is_refused_until_it_is_allowed(point: ResumePoint, config: Config, dataset: Dataset) -> None:
    other = replace(dataset, fingerprint="another")
    with pytest.raises(CheckpointError, match="trained on other data; pass --allow-config-change"):
        check_fits(point, config, other, allow_config_change=False)
    check_fits(point, config, other, allow_config_change=True)


@pytest.mark.parametrize("allow", [False, True])
def test_a_foreign_tokenizer_is_refused_always(
    point: ResumePoint, config: Config, dataset: Dataset, allow: bool
) -> None:
    """The same ids would mean other characters."""
    with pytest.raises(CheckpointError, match="another tokenizer"):
        check_fits(point, config, replace(dataset, tokenizer=CharTokenizer("abd")), allow)


def test_a_checkpoint_of_another_run_does_not_write_into_a_run_that_exists(
    run: RunFolder, config: Config, make_checkpoint: Callable[[int], Checkpoint], tmp_path: Path
) -> None:
    other = RunFolder(tmp_path / "other")
    other.save(make_checkpoint(3), best=True, keep_last=1)
    assert find_resume_point(run, str(other.path), config, print) is not None
    run.create(config)
    with pytest.raises(CheckpointError, match="exists already"):
        find_resume_point(run, str(other.path), config, print)


def test_a_state_without_its_keys_is_an_error_of_the_checkpoint() -> None:
    with pytest.raises(CheckpointError, match="has no 'evaluated_step'"):
        TrainingState.from_dict({"step": 3})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("step", 39.5),
        ("step", -1),
        ("step", True),
        ("step", None),
        ("step", 2**63),
        ("val_loss", "1"),
        ("seconds", math.inf),
    ],
)
def test_a_state_of_other_kinds_is_an_error_of_the_checkpoint(key: str, value: object) -> None:
    with pytest.raises(CheckpointError, match=f"^state.json of the checkpoint: {key}: [^\n]+$"):
        TrainingState.from_dict({**asdict(TrainingState()), key: value})


def with_training(run: RunFolder, **changes: Any) -> Path:
    """Replace parts of what the last checkpoint keeps for training; its hashes are right all the same."""
    folder = run.checkpoints()[0]
    checkpoint = read_checkpoint(folder)
    write_checkpoint(folder, replace(checkpoint, training={**checkpoint.training, **changes}))
    return folder


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": {"adamw": []}},
        {"optimizer": None},
        {"sampler": {"generator": torch.zeros(3)}},
        {"sampler": []},
        {"generators": {"cpu": torch.zeros(5, dtype=torch.uint8), "cuda": []}},
        {"generators": {"cpu": torch.get_rng_state(), "cuda": 3}},
        {"average": {"wte.weight": torch.zeros(1)}},
        {"average": None},
    ],
)
def test_a_training_state_of_other_kinds_is_refused_in_one_line(
    tmp_path: Path, start: Callable[..., Any], changes: dict[str, Any]
) -> None:
    trainer = start(tmp_path, "train.max_steps=3", "optim.ema_decay=0.5")
    trainer.run()
    with_training(trainer.run_folder, **changes)
    with pytest.raises(CheckpointError, match="training state does not fit") as caught:
        start(tmp_path, "train.max_steps=3", "optim.ema_decay=0.5", resume="auto")
    assert "\n" not in str(caught.value)


def test_an_optimizer_that_has_lost_its_moments_is_refused(tmp_path: Path, start: Callable[..., Any]) -> None:
    trainer = start(tmp_path, "train.max_steps=3")
    trainer.run()
    state = trainer.stepper.optimizer.state_dict()
    with_training(trainer.run_folder, optimizer={"adamw": {**state["adamw"], "state": {}}})
    with pytest.raises(CheckpointError, match="the optimizer has no moments"):
        start(tmp_path, "train.max_steps=3", resume="auto")
