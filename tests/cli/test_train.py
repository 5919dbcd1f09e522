import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cli.conftest import Call
from gpt.checkpoint import RunFolder, read_checkpoint, write_checkpoint
from gpt.config import Config
from gpt.config.loading import parse_config

TRAIN = "train --config tiny.yaml"
AUTO = f"{TRAIN} --resume auto"
RUN = Path("runs/tiny")
Refuse = Callable[..., str]


def config_of(run: Path) -> Config:
    return parse_config((run / "config.yaml").read_text(encoding="utf-8"), "config.yaml")


def test_a_run_leaves_what_the_readme_describes(trained: Path) -> None:
    run = trained / RUN
    names = {path.name.split(".")[0] if "tfevents" in path.name else path.name for path in run.iterdir()}
    files = {"config.yaml", "metrics.jsonl", "best.json", "last.json"}
    assert names == {*files, "events", "samples", "snapshots", "checkpoints"}
    files = {"model.safetensors", "optimizer.pt", "state.json", "config.yaml", "tokenizer.json"}
    assert {path.name for path in (run / "checkpoints/step-000006").iterdir()} == {*files, "manifest.json"}
    assert {path.name for path in (run / "samples").iterdir()} == {f"step-00000{step}.txt" for step in (3, 6)}
    config = config_of(run)
    assert config.model.vocab_size is not None
    assert (config.run.name, config.train.max_steps) == ("tiny", 6)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "val/loss" in row] == [3, 6]
    assert [row["step"] for row in rows if "train/loss" in row] == [1, 2, 3, 4, 5, 6]
    names = {"train/loss", "train/learning_rate", "train/grad_norm", "val/loss", "val/bits_per_char", "speed/seconds"}
    names |= {"speed/tokens_per_second", "speed/mfu", "speed/memory_bytes"}
    assert {name for row in rows for name in row} >= names


def test_print_config_and_schema_print_what_would_be_used(workplace: Path, run: Call) -> None:
    printed = parse_config(run(f"{TRAIN} optim.learning_rate=3e-4 --print-config").out, "printed")
    assert (printed.optim.learning_rate, printed.model.n_embd) == (3e-4, 16)
    assert not (workplace / "runs").exists()
    assert json.loads(run("train --print-schema").out) == Config.model_json_schema()


LARGE = "error: out of memory; lower train.batch_size or --batch-size, model.block_size or the size of the model ("


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ("model.n_layers=2", ["command line", "model.n_layers", "did you mean n_layer"]),
        ("model.n_embd=15", ["model.n_embd", "15 is not divisible by n_head 2"]),
        ("model.n_head=16 model.position=rope", ["even head_dim"]),
        ("train.batch_size=0", ["train.batch_size", "greater than or equal to 1"]),
        ("data.path=gone.txt", ["gone.txt", "no such file"]),
        ("model.block_size=10000", ["split has", "fewer than block_size + 1 = 10,001"]),
        ("model.vocab_size=2", ["model.vocab_size is 2", "leave vocab_size out"]),
        ("run.device=cuda:99", ["cuda:99"]),
        ("run.dir=corpus.txt", ["cannot write the run folder"]),
        ("data.dir=corpus.txt", ["cannot write corpus.txt/tokens", "data.dir"]),
        ("model.n_embd=2000000000", [LARGE]),
        ("model.n_layer=1000000000", ["model.n_layer", "less than or equal to 10000"]),
        ("train.batch_size=1000000000", ["train.batch_size", "less than or equal to 1000000"]),
        ("train.grad_accum_steps=1000000000", ["train.grad_accum_steps", "less than or equal to 1000000"]),
        ("model.mlp_width=10000000000000", [LARGE]),
    ],
)
def test_a_mistake_gives_one_line_and_leaves_no_run(
    workplace: Path, refuse: Refuse, overrides: str, words: list[str]
) -> None:
    line = refuse(f"{TRAIN} {overrides}")
    assert all(word in line for word in words), line
    assert not (workplace / "runs").exists()


def test_a_file_that_is_not_a_corpus_gives_one_line(workplace: Path, refuse: Refuse) -> None:
    (workplace / "corpus.txt").write_bytes(b"good \xff bad" * 50)
    assert "not UTF-8: byte 5" in refuse(TRAIN)
    assert not (workplace / "runs").exists()


def test_offline_says_which_file_to_put_where(workplace: Path, refuse: Refuse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPT_DATA_DIR", str(workplace / "corpora"))
    (workplace / "s.yaml").write_text("data: {source: shakespeare}", encoding="utf-8")
    line = refuse("train --config s.yaml --offline")
    assert str(workplace / "corpora" / "tinyshakespeare.txt") in line
    assert "86c4e6aa9db7c042" in line


def test_a_finished_run_is_neither_started_again_nor_changed_by_resuming(
    workplace: Path, run: Call, refuse: Refuse
) -> None:
    run(TRAIN)
    before = (RUN / "metrics.jsonl").read_bytes()
    assert "--resume auto" in refuse(TRAIN)
    assert "optim.weight_decay: 0.1 -> 0.2" in refuse(f"{TRAIN} optim.weight_decay=0.2 --resume runs/tiny")
    run(AUTO)
    assert (RUN / "metrics.jsonl").read_bytes() == before
    run(f"{AUTO} train.max_steps=8 --allow-config-change")
    assert (RUN / "checkpoints/step-000008").is_dir()


def test_an_explicit_damaged_checkpoint_is_an_error_and_auto_falls_back(
    workplace: Path, run: Call, refuse: Refuse
) -> None:
    run(TRAIN)
    weights = RUN / "checkpoints/step-000006/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-7])
    assert "model.safetensors is damaged" in refuse(f"{TRAIN} --resume {weights.parent}")
    said = run(AUTO).err
    assert all(words in said for words in ("model.safetensors is damaged", "resuming", "step-000003"))


def test_a_checkpoint_of_another_text_or_without_its_training_is_refused(
    workplace: Path, run: Call, refuse: Refuse
) -> None:
    run(TRAIN)
    (workplace / "other.txt").write_text("Entirely different letters: zxq!\n" * 60, encoding="utf-8")
    assert "another tokenizer" in refuse(f"{TRAIN} run.name=other data.path=other.txt --resume runs/tiny")
    folder = RUN / "checkpoints/step-000003"
    write_checkpoint(folder, replace(read_checkpoint(folder), training={}))
    before = (RUN / "metrics.jsonl").read_bytes()
    assert "training state does not fit" in refuse(f"{TRAIN} --resume {folder}")
    assert (RUN / "metrics.jsonl").read_bytes() == before


def test_the_file_name_names_the_run(workplace: Path, run: Call) -> None:
    text = (workplace / "tiny.yaml").read_text(encoding="utf-8").replace("name: tiny, ", "")
    (workplace / "mine.yaml").write_text(text, encoding="utf-8")
    run("train --config mine.yaml train.max_steps=3")  # and samples are written
    assert Path("runs/mine/last.json").is_file()
    assert list(Path("runs/mine/samples").iterdir())


def test_auto_does_not_start_over_a_run_that_has_lost_its_checkpoints(
    workplace: Path, run: Call, refuse: Refuse
) -> None:
    run(TRAIN)
    before = (RUN / "metrics.jsonl").read_bytes()
    for manifest in RUN.glob("checkpoints/*/manifest.json"):
        manifest.unlink()
    assert "no readable checkpoint" in refuse(AUTO)
    shutil.rmtree(RUN / "checkpoints")
    assert "has lost its checkpoints" in refuse(AUTO)
    assert (RUN / "metrics.jsonl").read_bytes() == before


def test_overrides_may_stand_on_both_sides_of_an_option(workplace: Path, run: Call) -> None:
    run(f"{TRAIN} run.name=both --resume auto train.max_steps=3")
    assert Path("runs/both/checkpoints/step-000003").is_dir()


def test_a_forgotten_override_is_named_before_the_tokenizer(workplace: Path, run: Call, refuse: Refuse) -> None:
    run(f"{TRAIN} data.tokenizer=byte")
    assert "data.tokenizer: byte -> char" in refuse(f"{TRAIN} --resume runs/tiny")


@pytest.mark.parametrize("steps", [1, 20])
def test_a_run_shorter_than_its_warmup_shrinks_it_and_goes_on_exactly(workplace: Path, run: Call, steps: int) -> None:
    short = f"{TRAIN} train.max_steps={steps} optim.warmup_steps=100"
    line = f"optim.warmup_steps: {steps // 10} instead of 100, since train.max_steps is {steps}"
    assert line in run(short).err.splitlines()
    assert config_of(RUN).optim.warmup_steps == steps // 10
    run(f"{short} --resume auto")
    run("train --config runs/tiny/config.yaml --resume auto")


def test_a_loss_that_is_not_finite_ends_a_run_with_exit_code_3_and_saves_nothing(workplace: Path, call: Call) -> None:
    code, _, err = call(f"{TRAIN} optim.learning_rate=1e30 optim.warmup_steps=0")
    assert code == 3
    assert "error: the loss or a gradient is not finite at step 1; the update was not made" in err
    assert RunFolder(RUN).checkpoints() == []
