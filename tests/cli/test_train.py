"""Training by a recipe or on a text, and the recipe that fits a text."""

import contextlib
import itertools
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import gpt
from cli.conftest import Call, Refuse
from gpt.checkpoint import RunFolder, read_checkpoint, write_checkpoint
from gpt.config.loading import parse_config
from gpt.config.sources import load_config
from gpt.training.loss import Evaluation
from tiny import CORPUS

TRAIN = "train --config tiny.yaml"
AUTO = f"{TRAIN} --resume auto"
RUN = Path("runs/tiny")


@pytest.mark.parametrize(
    "place", ["runs/renamed", "runs/tiny (copy)", "elsewhere/tiny", "elsewhere/checkpoints"]
)
def test_configuration_of_a_run_names_it_wherever_its_folder_is(
    workplace: Path, run: Call, refuse: Refuse, place: str
) -> None:
    """Whether the folder was moved, or is a copy of one that stays as it was."""
    run(f"{TRAIN} train.max_steps=3")
    original = (RUN / "metrics.jsonl").read_bytes()
    shutil.copytree(RUN, place)
    own = f"train --config '{place}/config.yaml'"
    assert f"the run folder {place} exists already, with this configuration; continue it" in refuse(
        own
    )
    said = run(f"{own} train.max_steps=6 --resume auto").err
    assert f"resuming {place}/checkpoints/step-000003" in said
    assert "done: 6 steps" in run(f"{own} --resume auto").err
    assert (
        "step-000006"
        in run(f"train --config '{place}/checkpoints/step-000006/config.yaml' --resume auto").err
    )
    with contextlib.chdir(place):
        assert (
            "done: 6 steps"
            in run(f"train --config config.yaml --resume auto data.path={workplace}/corpus.txt").err
        )
    run(f"{own} run.seed=5")
    assert Path(f"{place}-2/last.json").is_file()
    run(f"{own} run.name=named run.seed=5")
    assert (RUN / "metrics.jsonl").read_bytes() == original
    beside = {path.name for path in Path("runs").iterdir()} | {
        path.name for path in Path(place).parent.iterdir()
    }
    assert beside == {"tiny", "named", Path(place).name, f"{Path(place).name}-2"}
    assert "at step 3" in run("train --config runs/tiny/config.yaml --resume auto").err


@pytest.mark.parametrize("key", ["train.teacher", "train.init_from"])
def test_run_goes_on_when_the_run_that_it_names_was_moved_too(
    workplace: Path, run: Call, refuse: Refuse, key: str
) -> None:
    run(f"{TRAIN} train.max_steps=2")
    run(f"{TRAIN} train.max_steps=2 run.name=named {key}=runs/tiny/best")
    RUN.rename("runs/moved")
    shutil.move("runs/named", "elsewhere")
    again = "train --config elsewhere/config.yaml --resume train.max_steps=3"
    said = run(f"{again} {key}=moved").err
    assert (
        said.count(
            f"{key}: nothing is at runs/tiny/best any more; moved is taken for what was there"
        )
        == 1
    )
    assert "resuming elsewhere/checkpoints/step-000002" in said
    run("train --config tiny.yaml run.name=other train.max_steps=2")
    run(f"train --config elsewhere/config.yaml --resume train.max_steps=4 {key}=runs/other")
    assert Path("elsewhere-2/last.json").is_file()


def test_finished_run_is_found_after_its_base_was_moved(workplace: Path, run: Call) -> None:
    run(f"{TRAIN} train.max_steps=2")
    lines = Path("tiny.yaml").read_text(encoding="utf-8").splitlines()
    Path("tuned.yaml").write_text(
        "\n".join(line for line in lines if "model:" not in line), encoding="utf-8"
    )
    tune = "train --config tuned.yaml run.name=tuned train.max_steps=2 train.init_from=runs"
    run(f"{tune}/tiny")
    RUN.rename("runs/moved")
    assert "resuming runs/tuned/checkpoints/step-000002" in run(f"{tune}/moved --resume").err
    assert {path.name for path in Path("runs").iterdir()} == {"moved", "tuned"}


def test_numbered_run_keeps_its_name_when_it_is_continued(
    workplace: Path, run: Call, refuse: Refuse
) -> None:
    run(f"{TRAIN} train.max_steps=3")
    run(f"{TRAIN} train.max_steps=3 run.seed=5")
    run("train --config runs/tiny-2/config.yaml --resume train.max_steps=4")
    assert "runs/tiny-2 exists already" in refuse(f"{TRAIN} train.max_steps=4 run.seed=5")
    run("quantize --checkpoint runs/tiny-2")
    assert Path("runs/tiny-2-int8").is_dir()
    Path("runs/tiny-2").rename("runs/renamed")
    run("train --config runs/renamed/config.yaml run.seed=6")
    own = "train --config runs/renamed/config.yaml run.seed=6 --resume"
    assert "resuming runs/renamed-2/checkpoints/step-000004" in run(own).err
    assert "resuming runs/renamed-2/checkpoints/step-000004" in run(f"{own} renamed-2").err
    assert "resuming runs/renamed-2/checkpoints/step-000004" in run(own).err


def test_finished_run_has_the_files_of_the_readme(trained: Path) -> None:
    run = trained / RUN
    names = {
        path.name.split(".")[0] if "tfevents" in path.name else path.name for path in run.iterdir()
    }
    files = {"config.yaml", "metrics.jsonl", "best.json", "last.json"}
    assert names == {*files, "events", "samples", "snapshots", "checkpoints"}
    files = {"model.safetensors", "optimizer.pt", "state.json", "config.yaml", "tokenizer.json"}
    assert {path.name for path in (run / "checkpoints/step-000006").iterdir()} == {
        *files,
        "manifest.json",
    }
    assert {path.name for path in (run / "samples").iterdir()} == {
        f"step-00000{step}.txt" for step in (3, 6)
    }
    config = parse_config((run / "config.yaml").read_text(encoding="utf-8"), "config.yaml")
    assert config.model.vocab_size is not None
    assert (config.run.name, config.train.max_steps) == ("tiny", 6)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "val/loss" in row] == [3, 6]
    assert [row["step"] for row in rows if "train/loss" in row] == [1, 2, 3, 4, 5, 6]
    names = {
        "train/loss",
        "train/learning_rate",
        "train/grad_norm",
        "val/loss",
        "val/bits_per_char",
        "speed/seconds",
    }
    names |= {"speed/tokens_per_second", "speed/mfu", "speed/memory_bytes"}
    assert {name for row in rows for name in row} >= names


def test_finished_run_goes_on_only_where_that_is_allowed(
    own: Path, run: Call, refuse: Refuse
) -> None:
    before = (RUN / "metrics.jsonl").read_bytes()
    assert "--resume auto" in refuse(TRAIN)
    assert "optim.weight_decay: 0.1 -> 0.2" in refuse(
        f"{TRAIN} optim.weight_decay=0.2 --resume runs/tiny"
    )
    assert "data.tokenizer: char -> byte" in refuse(
        f"{TRAIN} data.tokenizer=byte --resume runs/tiny"
    )
    run(AUTO)
    assert (RUN / "metrics.jsonl").read_bytes() == before
    run(f"{AUTO} train.max_steps=8 --allow-config-change")
    assert (RUN / "checkpoints/step-000008").is_dir()


def test_unusable_checkpoint_is_refused_and_auto_falls_back(
    own: Path, run: Call, refuse: Refuse
) -> None:
    (own / "other.txt").write_text("Entirely different letters: zxq!\n" * 60, encoding="utf-8")
    assert "another tokenizer" in refuse(
        f"{TRAIN} run.name=other data.path=other.txt --resume runs/tiny"
    )
    before = (RUN / "metrics.jsonl").read_bytes()
    weights = RUN / "checkpoints/step-000006/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-7])
    assert "model.safetensors is damaged" in refuse(f"{TRAIN} --resume {weights.parent}")
    folder = RUN / "checkpoints/step-000003"
    whole = read_checkpoint(folder)
    write_checkpoint(folder, replace(whole, training={}))
    assert "training state does not fit" in refuse(f"{TRAIN} --resume {folder}")
    assert (RUN / "metrics.jsonl").read_bytes() == before
    write_checkpoint(folder, whole)
    said = run(AUTO).err
    assert all(
        words in said for words in ("model.safetensors is damaged", "resuming", "step-000003")
    )


def test_auto_does_not_start_over_a_run_without_its_checkpoints(own: Path, refuse: Refuse) -> None:
    before = (RUN / "metrics.jsonl").read_bytes()
    for manifest in RUN.glob("checkpoints/*/manifest.json"):
        manifest.unlink()
    assert "no readable checkpoint" in refuse(AUTO)
    shutil.rmtree(RUN / "checkpoints")
    assert "has lost its checkpoints" in refuse(AUTO)
    assert (RUN / "metrics.jsonl").read_bytes() == before


def test_resume_needs_no_more_than_the_name_of_a_run(
    workplace: Path, run: Call, refuse: Refuse
) -> None:
    run(f"{TRAIN} train.max_steps=3")
    for number, words in enumerate(
        ("--resume runs/tiny", "--resume tiny", "--resume runs/tiny/last", "--resume")
    ):
        steps = f"train.max_steps={4 + number}"
        said = run(f"train {words} {steps}" if "tiny" in words else f"{TRAIN} {words} {steps}").err
        assert f"resuming runs/tiny/checkpoints/step-{3 + number:06d}" in said
        assert f"done: {4 + number} steps" in said
    run("train --resume runs/tiny/checkpoints/step-000006")
    run("train --resume tiny run.name=branch train.max_steps=9")
    assert {path.name for path in Path("runs").iterdir()} == {"tiny", "branch"}
    assert "tina: no such run or checkpoint; did you mean tiny?" in refuse("train --resume tina")
    for words in ("--resume", "--resume auto"):
        assert (
            "nothing to train on: give a text, such as my.txt, --config FILE or --resume RUN"
            in refuse(f"train {words}")
        )
    for words in ("corpus.txt run.name=text", "run.name=other corpus.txt"):
        run(f"train --resume {words} train.max_steps=1 {SMALL}")
    assert Path("runs/text/last.json").is_file()
    assert Path("runs/other/last.json").is_file()


def test_resume_looks_its_name_up_once_and_in_run_dir(
    workplace: Path, run: Call, refuse: Refuse
) -> None:
    run(f"{TRAIN} run.dir={workplace}/own train.max_steps=2")
    shutil.copytree("own/tiny", RUN)
    shutil.copytree("own/tiny", "runs/moved")
    for name in ("tiny", "moved"):
        assert (
            f"resuming runs/{name}/checkpoints/step-000002"
            in run(f"train --resume {name} train.max_steps=3").err
        )
    said = run("train --resume tiny run.dir=own train.max_steps=4").err
    assert "resuming own/tiny/checkpoints/step-000002" in said
    trained = gpt.train(resume="tiny", run={"dir": "own"}, max_steps=5, report=None)
    assert trained.folder == Path("own/tiny")
    assert "moved: no such run or checkpoint; own has tiny" in refuse(
        "train --resume moved run.dir=own"
    )


@pytest.mark.parametrize(
    "file", ["config.yaml", "last.json", "checkpoints/step-000003/model.safetensors"]
)
def test_file_of_a_run_after_resume_means_the_run(workplace: Path, run: Call, file: str) -> None:
    run(f"{TRAIN} train.max_steps=3")
    said = run(f"train --resume {RUN / file} train.max_steps=4").err
    assert "resuming runs/tiny/checkpoints/step-000003" in said
    Path("manifest.json").write_text("{}", encoding="utf-8")  # of another program
    run(f"train --resume corpus.txt run.name=text train.max_steps=1 {SMALL}")
    assert Path("runs/text/last.json").is_file()


def test_key_that_nothing_reads_is_named(workplace: Path, run: Call) -> None:
    keys = (
        "optim.schedule=constant optim.min_lr=2e-4 optim.decay_steps=3 "
        "train.teacher_weight=0.2 model.rope_theta=500"
    )
    said = run(f"{TRAIN} train.max_steps=1 {keys}").err.splitlines()
    for line in (
        "optim.min_lr: 0.0002 has no effect with optim.schedule: constant",
        "optim.decay_steps: 3 has no effect with optim.schedule: constant",
        "train.teacher_weight: 0.2 has no effect without train.teacher",
        "model.rope_theta: 500 has no effect with model.position: learned",
    ):
        assert line in said
    keys = (
        "optim.schedule=wsd train.teacher=tiny model.position=rope optim.min_lr=2e-4 "
        "train.teacher_weight=0.2"
    )
    assert "no effect" not in run(f"{TRAIN} train.max_steps=2 {keys} run.name=used").err


@pytest.mark.parametrize("gone", ["checkpoint", "pointer", "both", "damaged pointer"])
def test_run_that_lost_its_best_checkpoint_keeps_as_few(
    workplace: Path, run: Call, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    losses = itertools.count(1)
    monkeypatch.setattr(
        "gpt.training.train.evaluate", lambda *arguments: Evaluation(float(next(losses)), 1)
    )
    auto = f"{TRAIN} train.keep_last=1 train.eval_interval=1 --resume auto"
    run(f"{auto} train.max_steps=3")
    best = RUN / "checkpoints/step-000001"
    assert RunFolder(RUN).pointed("best") == best
    if gone in ("checkpoint", "both"):
        shutil.rmtree(best)
    if gone in ("pointer", "both"):
        (RUN / "best.json").unlink()
    if gone == "damaged pointer":
        (RUN / "best.json").write_text("{")
    is_lost = gone in ("checkpoint", "both")
    said = run(f"{auto} train.max_steps=3").err
    assert (
        "warning: runs/tiny has lost its best checkpoint, that of step 1; the next evaluation"
        in said
    ) == is_lost
    assert f"; {'last' if is_lost else 'best'} validation loss" in said
    run("sample --checkpoint runs/tiny --max-new-tokens 2")
    run(f"{auto} train.max_steps=9")
    best = RUN / "checkpoints/step-000004" if is_lost else best
    assert RunFolder(RUN).pointed("best") == best
    assert set(RunFolder(RUN).checkpoints()) == {best, RUN / "checkpoints/step-000009"}


@pytest.mark.parametrize("steps", [1, 20])
def test_run_shorter_than_its_warmup_shrinks_it_and_resumes(
    workplace: Path, run: Call, steps: int
) -> None:
    short = f"{TRAIN} train.max_steps={steps} optim.warmup_steps=100"
    line = f"optim.warmup_steps: {steps // 10} instead of 100, since train.max_steps is {steps}"
    assert line in run(short).err.splitlines()
    run(f"{short} --resume auto")
    run("train --config runs/tiny/config.yaml --resume auto")
    assert load_config(RUN / "config.yaml").config.optim.warmup_steps == steps // 10


def test_loss_that_is_not_finite_ends_with_3_and_saves_nothing(workplace: Path, call: Call) -> None:
    code, _, err = call(f"{TRAIN} optim.learning_rate=1e30 optim.warmup_steps=0")
    assert code == 3
    assert "error: the loss or a gradient is not finite at step 1; the update was not made" in err
    assert RunFolder(RUN).checkpoints() == []


TEXT = "'Mein Text.v2.txt'"
SMALL = "model.n_layer=1 train.batch_size=2 train.sample_tokens=0 train.eval_max_tokens=512"


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in (TEXT[1:-1], "日本.txt", "a=b.txt"):
        Path(name).write_text(CORPUS * 30, encoding="utf-8")
    return tmp_path


def test_recipe_of_a_text_trains_from_wherever_it_stands(
    text: Path, run: Call, refuse: Refuse
) -> None:
    assert run(f"make_config {TEXT}").out == "gpt train --config Mein-Text.v2.yaml\n"
    assert f"{len(CORPUS) * 30:,} characters" in Path("Mein-Text.v2.yaml").read_text(
        encoding="utf-8"
    )
    run(
        "train --config Mein-Text.v2.yaml train.max_steps=2 train.batch_size=2 "
        "train.sample_tokens=0"
    )
    assert Path("runs/Mein-Text.v2/last.json").is_file()
    overrides = "model.n_layer=1 data.val_fraction=0.05 run.device=cuda:99"  # of another machine
    run(f"make_config {TEXT} --output 'my növel.yaml' {overrides}")
    named = load_config(Path("my növel.yaml"))
    assert (named.name, named.config.data.path) == ("my-növel", TEXT[1:-1])
    found = named.config
    assert (found.model.n_layer, found.data.val_fraction, found.run.device) == (1, 0.05, "cuda:99")
    (text / "sub").mkdir()
    run(f"make_config {TEXT} --output sub/there.yaml")
    assert load_config(Path("sub/there.yaml")).config.data.path == str(text / TEXT[1:-1])
    Path("short.txt").write_text("too short\n" * 20)
    assert "has 200 characters" in refuse("make_config short.txt")
    assert not Path("short.yaml").exists()
    Path("pipe.txt").write_text(CORPUS * 30)
    os.mkfifo("pipe.yaml")
    assert "cannot read pipe.yaml: not a regular file" in refuse("train pipe.txt")


def test_text_trains_at_once_for_a_try_and_then_again(
    text: Path, run: Call, refuse: Refuse
) -> None:
    said = run(f"train 日本.txt {SMALL} train.max_steps=2").err
    length = len(CORPUS) * 30
    assert (
        f"日本.yaml: 1 layers of 128, 128 positions, 2 steps of 2 sequences; {length:,} "
        "characters, each"
    ) in said
    recipe = Path("日本.yaml").read_text(encoding="utf-8")
    run("make_config 日本.txt --output same.yaml")
    assert Path("same.yaml").read_text(encoding="utf-8") == recipe  # without what was for the try
    run(f"train 日本.txt {SMALL} train.max_steps=3")
    assert {path.name for path in Path("runs").iterdir()} == {"日本", "日本-2"}
    run("train 日本.txt --print-config")
    Path("日本.txt").write_text(CORPUS * 90, encoding="utf-8")  # another recipe
    run(f"train ./日本.txt {SMALL} train.max_steps=3")
    assert {path.name for path in Path("runs").iterdir()} == {"日本", "日本-2", "日本-3"}
    recipe = Path("日本.yaml").read_text(encoding="utf-8")
    Path("日本.yaml").write_text(recipe.replace("n_layer: 4", "n_layer: 3"), encoding="utf-8")
    error = refuse(f"train 日本.txt {SMALL}")
    assert "日本.yaml already exists with different settings than this text's recipe" in error
    assert "(model.n_layer: 3, not 4)" in error


def test_overrides_say_how_a_text_is_read(text: Path, run: Call) -> None:
    """Its name may look like one."""
    assert (
        "path: a=b.txt"
        in run(f"train a=b.txt {SMALL} --print-config train.init_from={'d' * 300}").out
    )
    run(f"train 日本.txt {SMALL} train.max_steps=1 data.tokenizer=byte run.name=other")
    config = load_config(Path("日本.yaml")).config
    assert (config.data.tokenizer, config.run.name) == ("byte", None)
    assert Path("runs/other/last.json").is_file()


def test_texts_of_your_own_validate_and_test(text: Path, run: Call, refuse: Refuse) -> None:
    Path("val.txt").write_text(CORPUS * 3, encoding="utf-8")
    Path("test.txt").write_text(CORPUS * 2, encoding="utf-8")
    Path("bad.txt").write_text(f"{CORPUS * 2}\n\N{SNOWMAN}", encoding="utf-8")
    train = f"train 日本.txt {SMALL} --val val.txt --test test.txt"
    run(f"{train} train.max_steps=2")
    assert load_config(Path("日本.yaml")).config.data.val_path == "val.txt"
    assert run("evaluate --checkpoint 日本 --split val").json["tokens"] == 3 * len(CORPUS) - 1
    assert run("evaluate --checkpoint 日本 --split test").json["tokens"] == 2 * len(CORPUS) - 1
    Path("val.txt").rename("moved.txt")
    said = run("train --resume 日本 train.max_steps=3 data.val_path=moved.txt").err
    assert "resuming runs/日本/checkpoints/step-000002" in said
    line = 2 * CORPUS.count("\n") + 2
    error = refuse(f"train a=b.txt {SMALL} --val bad.txt")
    assert f"bad.txt, line {line}, column 1: '\N{SNOWMAN}' is not in the corpus" in error
    assert not Path("a=b.yaml").exists()
    run(f"train a=b.txt {SMALL} --val bad.txt data.unknown=drop train.max_steps=1")
