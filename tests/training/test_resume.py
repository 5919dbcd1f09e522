import math
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt.checkpoint import Checkpoint, RunFolder, read_checkpoint, weights_of, write_checkpoint
from gpt.config import Config, TrainConfig
from gpt.data.dataset import Dataset
from gpt.data.tokenizers import CharTokenizer
from gpt.model import GPT
from gpt.system.errors import CheckpointError
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
def save(config: Config, run: RunFolder) -> Callable[..., Path]:
    def save(step: int, best: bool = False, run: RunFolder = run) -> Path:
        state: dict[str, Any] = {"step": step, "data": "fingerprint"}
        checkpoint = Checkpoint(weights_of(GPT(config.model)), {}, state, config, CharTokenizer("abc"))
        return run.save(checkpoint, best=best, keep_last=3)

    return save


# --- differences ---------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_a_changed_key_is_a_difference_unless_it_is_harmless(config: Config) -> None:
    deciding = {"optim.learning_rate", "train.batch_size", "train.max_steps", "run.seed", "model.dropout", "run.dtype"}
    assert set(KEYS) >= HARMLESS | deciding
    assert not HARMLESS & deciding
    for key in KEYS:
        is_harmless = key in HARMLESS or key.startswith("sample.")
        expected = [] if is_harmless else [f"{key}: {config.leaves()[key]} -> other"]
        assert differences(config, changed(config, key, "other")) == expected


# --- where to continue ---------------------------------------------------------------------------


def test_a_run_that_exists_is_not_overwritten(
    run: RunFolder, config: Config, save: Callable[..., Path], tmp_path: Path
) -> None:
    other = RunFolder(tmp_path / "other")
    save(3, run=other)
    assert find_resume_point(run, str(other.path), config, print) is not None
    run.create(config)
    with pytest.raises(CheckpointError, match="exists already, with this configuration; continue it with --resume"):
        find_resume_point(run, None, changed(config, "model.vocab_size", None), pytest.fail)
    with pytest.raises(CheckpointError, match="exists already"):
        find_resume_point(run, str(other.path), config, print)
    changes = changed(changed(config, "run.seed", 7), "optim.weight_decay", 0.5)
    with pytest.raises(CheckpointError) as error:
        find_resume_point(run, None, changes, pytest.fail)
    message = str(error.value)
    assert "another configuration (run.seed: 1337 -> 7; optim.weight_decay: 0.1 -> 0.5); choose another name" in message
    assert "--resume" not in message


def test_auto_passes_over_damaged_checkpoints_with_a_warning_each(
    run: RunFolder, config: Config, save: Callable[..., Path]
) -> None:
    folders = [save(step) for step in (5, 10, 15)]
    lines: list[str] = []
    for newest in (15, 10, 5):
        point = find_resume_point(run, AUTO, config, lines.append)
        assert point is not None
        assert (point.folder.name, point.checkpoint.state["step"]) == (f"step-{newest:06d}", newest)
        (folders.pop() / "state.json").unlink()
    assert [line[:9] for line in lines] == ["warning: "] * 3
    assert [re.search(r"step-0000\d\d", line)[0] for line in lines] == [f"step-0000{n}" for n in (15, 15, 10)]  # type: ignore[index]
    with pytest.raises(CheckpointError, match="no readable checkpoint"):  # it does not start afresh
        find_resume_point(run, AUTO, config, lines.append)


@pytest.mark.parametrize(("path", "step"), [("", 10), ("last", 10), ("best", 5), ("checkpoints/step-000005", 5)])
def test_a_path_of_a_run_means_its_last_checkpoint_and_no_other_if_that_is_damaged(
    run: RunFolder, config: Config, save: Callable[..., Path], path: str, step: int
) -> None:
    save(5, best=True)
    last = save(10)
    new = RunFolder(run.path.with_name("new"))
    point = find_resume_point(new, str(run.path / path), config, pytest.fail)
    assert point is not None
    assert point.checkpoint.state["step"] == step
    (last / "model.safetensors").write_bytes(b"")
    if step == 10:
        with pytest.raises(CheckpointError, match=r"step-000010.model\.safetensors is damaged"):
            find_resume_point(new, str(run.path / path), config, pytest.fail)


# --- whether it fits -----------------------------------------------------------------------------


@pytest.fixture
def point(save: Callable[..., Path]) -> ResumePoint:
    return ResumePoint(Path("step-000005"), read_checkpoint(save(5)))


def test_another_key_or_other_data_are_refused_until_they_are_allowed(
    point: ResumePoint, config: Config, dataset: Dataset
) -> None:
    for other, data, message in (
        (changed(config, "optim.learning_rate", 0.5), dataset, r"optim\.learning_rate: 0\.001 -> 0\.5\. Change that"),
        (config, replace(dataset, fingerprint="another"), "trained on other data; pass --allow-config-change"),
    ):
        with pytest.raises(CheckpointError, match=message):
            check_fits(point, other, data, allow_config_change=False)
        check_fits(point, other, data, allow_config_change=True)


@pytest.mark.parametrize("allow", [False, True])
def test_a_foreign_tokenizer_is_refused_always(
    point: ResumePoint, config: Config, dataset: Dataset, allow: bool
) -> None:
    """The same ids would mean other characters."""
    with pytest.raises(CheckpointError, match="another tokenizer"):
        check_fits(point, config, replace(dataset, tokenizer=CharTokenizer("abd")), allow)


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
    with pytest.raises(CheckpointError, match="has no 'evaluated_step'"):
        TrainingState.from_dict({"step": 3})


def test_a_run_is_over_once_its_last_step_is_evaluated() -> None:
    """A signal may have come between the two."""
    train = TrainConfig(max_steps=6)
    for is_over, state in (
        (True, TrainingState(step=6, evaluated_step=6)),
        (False, TrainingState(step=6, evaluated_step=3)),
        (False, TrainingState(step=3, evaluated_step=3)),
    ):
        assert state.is_over(train) == is_over


def test_a_training_state_of_other_kinds_is_refused_in_one_line(tmp_path: Path, start: Callable[..., Any]) -> None:
    """The hashes of the checkpoint are right all the same."""
    trainer = start(tmp_path, "train.max_steps=3")
    trainer.run()
    folder = trainer.run_folder.checkpoints()[0]
    checkpoint = read_checkpoint(folder)
    changes: list[tuple[dict[str, Any], str]] = [
        ({"optimizer": {"adamw": {**checkpoint.training["optimizer"]["adamw"], "state": {}}}}, "has no moments"),
        ({"optimizer": {"adamw": []}}, ""),
        ({"optimizer": None}, ""),
        ({"sampler": {"generator": torch.zeros(3)}}, ""),
        ({"sampler": []}, ""),
        ({"generators": {"cpu": torch.zeros(5, dtype=torch.uint8), "cuda": []}}, ""),
        ({"generators": {"cpu": torch.get_rng_state(), "cuda": 3}}, ""),
    ]
    for change, message in changes:
        write_checkpoint(folder, replace(checkpoint, training={**checkpoint.training, **change}))
        with pytest.raises(CheckpointError, match="training state does not fit") as caught:
            start(tmp_path, "train.max_steps=3", resume="auto")
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)
