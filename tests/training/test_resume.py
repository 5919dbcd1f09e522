"""Where a run continues (`resume`) or begins (`train.init_from`), and what may differ from the
checkpoint's.
"""

import math
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gpt.checkpoint import (
    Checkpoint,
    RunFolder,
    find_checkpoint,
    load_trained,
    read_checkpoint,
    weights_of,
    write_checkpoint,
)
from gpt.config import Config
from gpt.data.dataset import Dataset
from gpt.data.tokenizers import CharTokenizer
from gpt.model import GPT
from gpt.model.quantized import quantize
from gpt.system.errors import CheckpointError, ConfigError
from gpt.training.resume import AUTO, New, Resume, check_fits, find_resumed, find_start
from gpt.training.trainer import Trainer
from gpt.training.training_state import TrainingState
from training.sessions import same, weights
from training.sessions import start_session as start

MODEL = {"n_layer": 1, "n_head": 1, "n_embd": 8, "block_size": 8, "vocab_size": 3}
CONFIG = Config.model_validate({"model": MODEL})
TOKENS = torch.zeros(20, dtype=torch.uint8).numpy()
DATASET = Dataset(TOKENS, TOKENS, CharTokenizer("abc"), "fingerprint")


def changed(key: str, value: object, config: Config = CONFIG) -> Config:
    section, name = key.split(".")
    return config.model_copy(
        update={section: getattr(config, section).model_copy(update={name: value})}
    )


def save(run: RunFolder, step: int, best: bool = False) -> Path:
    state: dict[str, Any] = {"step": step, "data": "fingerprint"}
    checkpoint = Checkpoint(weights_of(GPT(CONFIG.model)), {}, state, CONFIG, CharTokenizer("abc"))
    return run.save(checkpoint, best=best, keep_last=3)


def last_of(run: RunFolder) -> Path:
    return find_checkpoint(run.path, run.path.parent, prefer="last")


def test_existing_run_is_not_overwritten(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    other = RunFolder(tmp_path / "other")
    save(other, 3)
    assert find_start(CONFIG, run, None, print) == New()
    assert isinstance(find_start(CONFIG, run, last_of(other), print), Resume)
    run.create(CONFIG)
    for resume in (None, last_of(other)):
        with pytest.raises(
            CheckpointError,
            match="exists already, with this configuration; continue it with --resume",
        ):
            find_start(CONFIG, run, resume, pytest.fail)


def test_path_means_one_checkpoint_and_auto_skips_damaged_ones(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    new = RunFolder(tmp_path / "new")
    lines: list[str] = []
    folders = [save(run, step, best=step == 5) for step in (5, 10, 15)]

    def step_of(place: RunFolder, resume: str) -> int:
        start = find_start(CONFIG, place, find_resumed(resume, tmp_path), lines.append)
        assert isinstance(start, Resume)
        assert start.folder.name == f"step-{start.checkpoint.state['step']:06d}"
        return int(start.checkpoint.state["step"])

    for path, step in (("", 15), ("last", 15), ("best", 5), ("checkpoints/step-000010", 10)):
        assert step_of(new, str(run.path / path)) == step
    for newest in (15, 10, 5):
        assert step_of(run, AUTO) == newest
        (folders.pop() / "state.json").unlink()
    assert re.findall("warning: .*step-0000(15|15|10)", "\n".join(lines)) == ["15", "15", "10"]
    with pytest.raises(CheckpointError, match="no readable checkpoint"):  # it does not start afresh
        step_of(run, AUTO)
    with pytest.raises(
        CheckpointError, match=r"cannot read .*step-000015.state\.json"
    ):  # nor take another than is named
        step_of(new, str(run.path))


def test_checkpoint_allows_only_some_changes_of_configuration(tmp_path: Path) -> None:
    """With another tokenizer the same ids would mean other characters."""
    point = Resume(Path("step-000005"), read_checkpoint(save(RunFolder(tmp_path), 5)))
    rate = changed("optim.learning_rate", 0.5)
    foreign = replace(DATASET, tokenizer=CharTokenizer("abd"))
    for config, data, message in (
        (rate, DATASET, r"optim\.learning_rate: 0\.001 -> 0\.5\. Change that"),
        (
            CONFIG,
            replace(DATASET, fingerprint="another"),
            "trained on other data; pass --allow-config-change",
        ),
        (CONFIG, foreign, "another tokenizer"),
    ):
        with pytest.raises(CheckpointError, match=message):
            check_fits(point, config, data, allow_config_change=False)
        if data is not foreign:
            check_fits(point, config, data, allow_config_change=True)
    with pytest.raises(CheckpointError, match="another tokenizer"):
        check_fits(point, CONFIG, foreign, allow_config_change=True)


@pytest.mark.parametrize(
    ("key", "values"),
    [("step", [39.5, -1, True, None, 2**63]), ("val_loss", ["1"]), ("seconds", [math.inf])],
)
def test_state_of_other_kinds_is_refused(key: str, values: list[object]) -> None:
    for value in values:
        with pytest.raises(CheckpointError, match=f"^state.json of the checkpoint: {key}: [^\n]+$"):
            TrainingState.from_dict({**asdict(TrainingState()), key: value})
    with pytest.raises(CheckpointError, match="has no 'evaluated_step'"):
        TrainingState.from_dict({"step": 3})


def test_training_state_of_other_kinds_is_refused_in_one_line(tmp_path: Path) -> None:
    """The hashes of the checkpoint are right all the same."""
    trainer = start(tmp_path, "train.max_steps=3")
    trainer.run()
    folder = trainer.run_folder.checkpoints()[0]
    checkpoint = read_checkpoint(folder)
    without_moments = {**checkpoint.training["optimizer"]["adamw"], "state": {}}
    changes: list[tuple[dict[str, Any], str]] = [
        ({"optimizer": {"adamw": without_moments}}, "the optimizer state is empty"),
        ({"optimizer": {"adamw": []}}, ""),
        ({"optimizer": None}, ""),
        ({"sampler": {"generator": torch.zeros(3)}}, ""),
        ({"sampler": []}, ""),
        ({"generators": [{"cpu": torch.zeros(5, dtype=torch.uint8), "cuda": []}]}, ""),
        ({"generators": [{"cpu": torch.get_rng_state(), "cuda": 3}]}, ""),
    ]
    for change, message in changes:
        write_checkpoint(folder, replace(checkpoint, training={**checkpoint.training, **change}))
        with pytest.raises(
            CheckpointError, match=f"^[^\n]*training state does not fit[^\n]*{message}[^\n]*$"
        ):
            start(tmp_path, "train.max_steps=3", resume="auto")


def test_checkpoint_of_another_shape_or_optimizer_is_refused(tmp_path: Path) -> None:
    """Even where changes are allowed."""
    for optimizer in ("muon", "adamw"):
        run = start(tmp_path / optimizer, f"optim.name={optimizer}", "train.max_steps=3")
        run.run()

    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    before = files()
    for folder, option, message in (
        (
            "adamw",
            "optim.name=muon",
            "training state does not fit: optim.name: adamw -> muon;.*init_from=RUN",
        ),
        (
            "muon",
            "optim.name=adamw",
            "training state does not fit: optim.name: muon -> adamw;.*init_from=RUN",
        ),
        ("adamw", "model.n_embd=32", r"does not fit the model: .*expected \(29, 32\)"),
    ):
        with pytest.raises(CheckpointError, match=message):
            start(tmp_path / folder, option, resume="auto", allow_config_change=True)
    assert files() == before


def test_allowed_change_of_configuration_holds_after_the_resume(tmp_path: Path) -> None:
    first = start(tmp_path, "train.max_steps=3").run().seconds
    trainer = start(
        tmp_path,
        "train.max_steps=4",
        "optim.weight_decay=0.5",
        resume="auto",
        allow_config_change=True,
    )
    assert 0 < first < trainer.run().seconds
    assert [group["weight_decay"] for group in trainer.stepper.optimizer.param_groups] == [0.5, 0.0]
    config = trainer.run_folder.config()
    assert config is not None
    assert config.optim.weight_decay == 0.5


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on the tiny corpus, whose head is not its embedding."""
    trainer = start(tmp_path_factory.mktemp("base"), "model.tie_weights=false")
    trainer.run()
    return trainer.run_folder.path


def logits(trainer: Trainer, text: str) -> Tensor:
    ids = torch.as_tensor(trainer.dataset.tokenizer.encode(text).astype("int64"))[None]
    with torch.no_grad():
        return trainer.model.eval()(ids)


@pytest.mark.parametrize("added", ["", "é#"])
def test_run_begins_with_weights_architecture_and_tokenizer(
    tmp_path: Path, base: Path, added: str
) -> None:
    """Characters that the base does not know leave the others as they were."""
    lines: list[str] = []
    options = ("model.n_embd=16", "model.dropout=0.1")
    text = f"the {added}keeper keeps the key.\n" * 60  # fewer characters than the base knows
    (tmp_path / "corpus.txt").write_text(text, encoding="utf-8")
    trainer = start(tmp_path, f"train.init_from={base}", *options, report=lines.append)
    assert any(f"beginning with {base}" in line for line in lines)
    assert (trainer.config.model.tie_weights, trainer.config.model.dropout) == (False, 0.1)
    before = load_trained(base / "last", base.parent, torch.device("cpu"))
    after = trainer.dataset.tokenizer
    assert isinstance(before.tokenizer, CharTokenizer)
    assert isinstance(after, CharTokenizer)
    assert sorted(after.itos) == sorted({*before.tokenizer.itos, *added})
    ids = torch.as_tensor(before.tokenizer.encode("the keeper").astype("int64"))[None]
    rows = [after.stoi[character] for character in before.tokenizer.itos]
    assert torch.equal(logits(trainer, "the keeper")[..., rows], before.model(ids))
    assert logits(trainer, f"{added}k").isfinite().all()


def test_run_with_a_base_resumes_exactly_without_the_base(tmp_path: Path, base: Path) -> None:
    gone = base.rename(tmp_path / "gone")
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "corpus.txt").write_text("é the key\n" * 60, encoding="utf-8")
    whole = start(tmp_path / "a", f"train.init_from={gone}")
    stopped = start(tmp_path / "b", f"train.init_from={gone}")
    gone.rename(base)
    whole.run()
    stopped.run()
    shutil.rmtree(stopped.run_folder.path / "checkpoints/step-000006")
    resumed = start(tmp_path / "b", f"train.init_from={gone}", resume="auto")
    assert resumed.state.step == 3
    resumed.run()
    assert same(weights(resumed.model), weights(whole.model))
    tokenizer = load_trained(resumed.run_folder.path, base.parent, torch.device("cpu")).tokenizer
    assert tokenizer.to_dict() == whole.dataset.tokenizer.to_dict()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["model.n_layer=3"],
            r"model.n_layer is 3, but .*, from which the run begins .*, has 1",
        ),
        (["model.position=rope"], "model.position is rope"),
        (["data.tokenizer=byte"], "data.tokenizer is byte, but .* has char"),
        (
            ["train.init_from=PLACE/bytes", "data.tokenizer=bpe", "data.bpe_vocab_size=300"],
            "bpe_vocab_size is 300, but",
        ),
        (
            ["train.init_from=PLACE/nothing"],
            "train.init_from: .*nothing: no such run or checkpoint",
        ),
        (["train.init_from=PLACE/int8"], "int8 weights, which cannot be trained"),
    ],
)
def test_base_that_does_not_fit_is_refused(
    tmp_path: Path, base: Path, options: list[str], message: str
) -> None:
    if "int8" in options[0]:
        saved = read_checkpoint(find_checkpoint(base, base.parent))
        int8 = weights_of(
            quantize(load_trained(base, base.parent, torch.device("cpu")).model, "int8")
        )
        write_checkpoint(tmp_path / "int8", replace(saved, model=int8))
    if "bytes" in options[0]:
        start(tmp_path, "data.tokenizer=bpe", "data.bpe_vocab_size=280").run()
        (tmp_path / "runs/run").rename(tmp_path / "bytes")
    options = [option.replace("PLACE", str(tmp_path)) for option in options]
    with pytest.raises((CheckpointError, ConfigError), match=message):
        start(tmp_path, f"train.init_from={base}", *options)
    assert not (tmp_path / "runs/run").exists()
