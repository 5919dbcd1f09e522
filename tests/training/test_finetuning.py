"""Fine-tuning: a run that begins with the weights of another one."""

from pathlib import Path

import pytest
import torch

from gpt.checkpoint import Checkpoint, find_checkpoint, load_trained, read_checkpoint, weights_of, write_checkpoint
from gpt.config.loading import parse_config
from gpt.config.sources import LoadedConfig
from gpt.data import CharTokenizer
from gpt.model.quantized import quantize
from gpt.system.errors import CheckpointError, ConfigError
from gpt.training.resume import ResumePoint, with_architecture
from gpt.training.trainer import Trainer
from tiny import CORPUS

from .conftest import Start

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, start: Start) -> Path:
    """A finished run on the tiny corpus, whose head is not its embedding."""
    folder = tmp_path_factory.mktemp("a")
    start(folder, "run.name=base", "model.tie_weights=false").run()
    return folder / "runs/base"


def write(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "corpus.txt").write_text(text, encoding="utf-8")
    return folder


def logits(trainer: Trainer, text: str) -> torch.Tensor:
    ids = torch.as_tensor(trainer.dataset.tokenizer.encode(text).astype("int64"))[None]
    with torch.no_grad():
        return trainer.model.eval()(ids)


def test_it_begins_with_weights_architecture_and_tokenizer(tmp_path: Path, base: Path, start: Start) -> None:
    text = "the keeper keeps the key.\n" * 60  # fewer characters than the base knows
    trainer = start(write(tmp_path / "b", text), f"train.init_from={base}", "model.n_embd=16", "model.dropout=0.1")
    trained = load_trained(base / "last", base.parent, CPU)
    assert trainer.config.model.tie_weights is False
    assert trainer.config.model.dropout == 0.1
    assert trainer.dataset.tokenizer.to_dict() == trained.tokenizer.to_dict()
    ids = torch.as_tensor(trained.tokenizer.encode("the keeper").astype("int64"))[None]
    torch.testing.assert_close(logits(trainer, "the keeper"), trained.model(ids), atol=0, rtol=0)


def test_added_characters_leave_the_others_as_they_were(tmp_path: Path, base: Path, start: Start) -> None:
    text = "é the #keeper\n" * 60
    lines: list[str] = []
    trainer = start(write(tmp_path / "b", text), f"train.init_from={base}", report=lines.append)
    assert any(f"beginning with {base}" in line for line in lines)
    before, after = load_trained(base / "last", base.parent, CPU), trainer.dataset.tokenizer
    assert isinstance(before.tokenizer, CharTokenizer)
    assert isinstance(after, CharTokenizer)
    assert set(after.itos) == {*before.tokenizer.itos, "é", "#"}
    ids = torch.as_tensor(before.tokenizer.encode("the keeper").astype("int64"))[None]
    rows = [after.stoi[character] for character in before.tokenizer.itos]
    torch.testing.assert_close(logits(trainer, "the keeper")[..., rows], before.model(ids), atol=0, rtol=0)
    new = logits(trainer, "é#")
    assert new.isfinite().all()
    trainer.run()
    assert load_trained(trainer.run_folder.path, base.parent, CPU).tokenizer.to_dict() == after.to_dict()


def test_it_resumes_as_if_never_stopped_even_when_the_base_is_gone(tmp_path: Path, base: Path, start: Start) -> None:
    options = (f"train.init_from={base}",)
    folders = [write(tmp_path / name, "é the keeper\n" * 60) for name in ("b", "c")]
    whole, stopped = (start(folder, *options) for folder in folders)
    whole.run()
    stopped.run()
    for checkpoint in (folders[1] / "runs/run/checkpoints").glob("step-000006*"):
        for file in checkpoint.iterdir():
            file.unlink()
    elsewhere = base.rename(base.with_name("elsewhere"))
    resumed = start(folders[1], *options, resume="auto")
    elsewhere.rename(base)
    resumed.run()
    for ours, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("model.n_layer=3", r"model.n_layer is 3, but .*, from which train.init_from begins, has 1"),
        ("model.position=rope", "model.position is rope"),
        ("data.tokenizer=byte", "data.tokenizer is byte, but .* has char"),
    ],
)
def test_a_contradiction_is_refused(option: str, message: str, tmp_path: Path, base: Path, start: Start) -> None:
    folder = write(tmp_path / "b", "é#\n" * 60)
    with pytest.raises(ConfigError, match=message):
        start(folder, f"train.init_from={base}", option)
    assert not (folder / "runs/run").exists()


def test_windows_of_its_architecture_that_cannot_be_cut_are_refused(base: Path) -> None:
    loaded = LoadedConfig(parse_config("", "mine.yaml", ["train.length_warmup=[0.4, 0.4]"]), "mine")
    point = ResumePoint(base, read_checkpoint(find_checkpoint(base, base.parent, prefer="last")))
    with pytest.raises(ConfigError, match=r"train\.length_warmup: cannot cut model\.block_size 16 into 4 sequences"):
        with_architecture(loaded, point)


def test_another_tokenizer_of_byte_pairs_is_refused(tmp_path: Path, start: Start) -> None:
    write(tmp_path / "a", CORPUS * 20)
    start(tmp_path / "a", "run.name=base", "data.tokenizer=bpe", "data.bpe_vocab_size=280").run()
    options = (f"train.init_from={tmp_path / 'a/runs/base'}", "data.tokenizer=bpe")
    folder = write(tmp_path / "b", CORPUS * 20)
    with pytest.raises(ConfigError, match=r"data\.bpe_vocab_size is 300, but .* has 280"):
        start(folder, *options, "data.bpe_vocab_size=300")
    assert start(folder, *options).dataset.tokenizer.vocab_size == 280


def test_what_cannot_be_begun_with_is_refused(tmp_path: Path, base: Path, start: Start) -> None:
    folder = write(tmp_path / "b", CORPUS * 20)
    with pytest.raises(CheckpointError, match="nothing: no such run or checkpoint"):
        start(folder, f"train.init_from={tmp_path / 'nothing'}")
    loaded, saved = load_trained(base, base.parent, CPU), read_checkpoint(next((base / "checkpoints").iterdir()))
    int8 = weights_of(quantize(loaded.model, "int8"))
    write_checkpoint(tmp_path / "int8", Checkpoint(int8, {}, saved.state, saved.config, saved.tokenizer))
    with pytest.raises(CheckpointError, match="int8 weights, which cannot be trained"):
        start(folder, f"train.init_from={tmp_path / 'int8'}")


def test_a_padded_vocabulary_stays_as_large_as_it_is(tmp_path: Path, start: Start) -> None:
    start(tmp_path / "a", "run.name=padded", "model.vocab_size=64").run()
    trainer = start(write(tmp_path / "b", CORPUS * 20), f"train.init_from={tmp_path / 'a/runs/padded'}")
    assert trainer.model.vocab_size == 64
