import json
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gpt.checkpoint import RunFolder, read_checkpoint, write_checkpoint
from gpt.cli import train
from gpt.config import Config, parse_config


def one_error_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The last line on standard error, which must be the only error."""
    lines = capsys.readouterr().err.strip().splitlines()
    assert sum(line.startswith("error: ") for line in lines) == 1
    assert lines[-1].startswith("error: ")
    return lines[-1]


def test_a_run_leaves_the_folder_that_the_readme_describes(trained: Path) -> None:
    run = trained / "runs" / "tiny"
    names = {path.name.split(".")[0] if "tfevents" in path.name else path.name for path in run.iterdir()}
    assert names == {"config.yaml", "metrics.jsonl", "events", "samples", "checkpoints", "best.json", "last.json"}
    assert {path.name for path in (run / "checkpoints" / "step-000006").iterdir()} == {
        "model.safetensors",
        "ngrams.safetensors",
        "optimizer.pt",
        "state.json",
        "config.yaml",
        "tokenizer.json",
        "manifest.json",
    }
    assert sorted(path.name for path in (run / "samples").iterdir()) == [
        "step-000000.txt",
        "step-000003.txt",
        "step-000006.txt",
    ]


def test_the_run_folder_keeps_the_resolved_configuration(trained: Path) -> None:
    config = parse_config((trained / "runs" / "tiny" / "config.yaml").read_text(encoding="utf-8"), "config.yaml")
    assert config.model.vocab_size is not None
    assert config.run.name == "tiny"
    assert config.train.max_steps == 6


def test_metrics_have_every_scalar(trained: Path) -> None:
    rows = [json.loads(line) for line in (trained / "runs" / "tiny" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "val/loss" in row] == [0, 3, 6]
    assert [row["step"] for row in rows if "train/loss" in row] == [1, 2, 3, 4, 5, 6]
    names = {name for row in rows for name in row}
    assert names >= {
        "train/loss",
        "train/learning_rate",
        "train/grad_norm",
        "val/loss",
        "val/bits_per_char",
        "speed/tokens_per_second",
        "speed/mfu",
        "speed/memory_bytes",
        "speed/seconds",
    }


def test_print_config_prints_what_would_be_used(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main(["--config", "tiny.yaml", "optim.learning_rate=3e-4", "--print-config"]) == 0
    printed = parse_config(capsys.readouterr().out, "printed")
    assert printed.optim.learning_rate == 3e-4
    assert printed.model.n_embd == 16
    assert not (workplace / "runs").exists()


def test_print_schema_is_the_schema_of_configurations(capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main(["--print-schema"]) == 0
    assert json.loads(capsys.readouterr().out) == Config.model_json_schema()


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["model.n_layers=2"], ["command line", "model.n_layers", "did you mean n_layer"]),
        (["model.n_embd=15"], ["model.n_embd", "15 is not divisible by n_head 2"]),
        (["model.n_head=16", "model.position=rope"], ["even head_dim"]),
        (["train.batch_size=0"], ["train.batch_size", "greater than or equal to 1"]),
        (["data.path=gone.txt"], ["gone.txt", "no such file"]),
        (["data.max_bytes=100"], ["more than data.max_bytes 100"]),
        (["model.block_size=10000"], ["split has", "fewer than block_size + 1 = 10,001"]),
        (["model.vocab_size=2"], ["model.vocab_size is 2", "leave vocab_size out"]),
        (["run.device=cuda:99"], ["cuda:99"]),
        (["run.dir=corpus.txt"], ["cannot write the run folder"]),
        (["data.dir=corpus.txt"], ["cannot write corpus.txt/tokens", "data.dir"]),
    ],
)
def test_a_mistake_gives_one_line_and_leaves_no_run(
    workplace: Path, capsys: pytest.CaptureFixture[str], overrides: list[str], words: list[str]
) -> None:
    assert train.main(["--config", "tiny.yaml", *overrides]) == 2
    line = one_error_line(capsys)
    assert all(word in line for word in words), line
    assert not (workplace / "runs").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"aaaaaaaaaaaaaaaa" * 50, "1 distinct characters"),
        (b"one\r\ntwo\r\n" * 50, "CRLF"),
        ("wide text".encode("utf-16") * 50, "UTF-16"),
        (b"good \xff bad" * 50, "not UTF-8: byte 5"),
    ],
)
def test_a_file_that_is_not_a_corpus_gives_one_line(
    workplace: Path, capsys: pytest.CaptureFixture[str], content: bytes, words: str
) -> None:
    (workplace / "corpus.txt").write_bytes(content)
    assert train.main(["--config", "tiny.yaml"]) == 2
    assert words in one_error_line(capsys)
    assert not (workplace / "runs").exists()
    assert (workplace / "corpus.txt").read_bytes() == content


def test_offline_says_which_file_to_put_where(
    workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPT_DATA_DIR", str(workplace / "corpora"))
    (workplace / "s.yaml").write_text("data: {source: shakespeare}", encoding="utf-8")
    assert train.main(["--config", "s.yaml", "--offline"]) == 2
    line = one_error_line(capsys)
    assert str(workplace / "corpora" / "tinyshakespeare.txt") in line
    assert "86c4e6aa9db7c042" in line


def test_a_second_start_of_the_same_run_is_refused(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main(["--config", "tiny.yaml", "train.max_steps=3"]) == 0
    before = (workplace / "runs" / "tiny" / "metrics.jsonl").read_bytes()
    assert train.main(["--config", "tiny.yaml", "train.max_steps=3"]) == 2
    assert "--resume auto" in one_error_line(capsys)
    assert train.main(["--config", "tiny.yaml", "train.max_steps=3", "optim.weight_decay=0.2"]) == 2
    assert "optim.weight_decay: 0.1 -> 0.2" in one_error_line(capsys)
    assert (workplace / "runs" / "tiny" / "metrics.jsonl").read_bytes() == before


def test_resume_auto_of_a_finished_run_changes_nothing(workplace: Path) -> None:
    assert train.main(["--config", "tiny.yaml"]) == 0
    before = (workplace / "runs" / "tiny" / "metrics.jsonl").read_bytes()
    assert train.main(["--config", "tiny.yaml", "--resume", "auto"]) == 0
    assert (workplace / "runs" / "tiny" / "metrics.jsonl").read_bytes() == before


def test_an_explicit_damaged_checkpoint_is_an_error_and_auto_falls_back(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main(["--config", "tiny.yaml"]) == 0
    newest = workplace / "runs" / "tiny" / "checkpoints" / "step-000006"
    weights = newest / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-7])
    assert train.main(["--config", "tiny.yaml", "--resume", str(newest)]) == 2
    assert "model.safetensors is damaged" in one_error_line(capsys)
    assert train.main(["--config", "tiny.yaml", "--resume", "auto"]) == 0
    said = capsys.readouterr().err
    assert "model.safetensors is damaged" in said
    assert "resuming" in said
    assert "step-000003" in said


def test_a_checkpoint_of_another_text_is_refused(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main(["--config", "tiny.yaml"]) == 0
    (workplace / "other.txt").write_text("Entirely different letters: zxq!\n" * 60, encoding="utf-8")
    arguments = ["--config", "tiny.yaml", "run.name=other", "data.path=other.txt", "--resume", "runs/tiny"]
    assert train.main(arguments) == 2
    assert "another tokenizer" in one_error_line(capsys)


def test_a_resume_with_another_schedule_is_refused_unless_allowed(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main(["--config", "tiny.yaml"]) == 0
    longer = ["--config", "tiny.yaml", "train.max_steps=8", "--resume", "auto"]
    assert train.main(longer) == 2
    assert "train.max_steps: 6 -> 8" in one_error_line(capsys)
    assert train.main([*longer, "--allow-config-change"]) == 0
    assert (workplace / "runs" / "tiny" / "checkpoints" / "step-000008").is_dir()


def test_the_file_name_names_the_run(workplace: Path) -> None:
    text = (workplace / "tiny.yaml").read_text(encoding="utf-8").replace("name: tiny, ", "")
    (workplace / "mine.yaml").write_text(text, encoding="utf-8")
    assert train.main(["--config", "mine.yaml", "train.max_steps=3"]) == 0
    assert (workplace / "runs" / "mine" / "last.json").is_file()


def test_a_run_that_refuses_empty_prompts_still_writes_its_samples(workplace: Path) -> None:
    assert train.main(["--config", "tiny.yaml", "train.max_steps=3", "sample.empty_prompt=refuse"]) == 0


def test_a_checkpoint_without_its_training_state_touches_nothing(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main(["--config", "tiny.yaml"]) == 0
    run = workplace / "runs" / "tiny"
    folder = run / "checkpoints" / "step-000003"
    saved = read_checkpoint(folder)
    write_checkpoint(folder, replace(saved, training={}))
    before = (run / "metrics.jsonl").read_bytes()
    assert train.main(["--config", "tiny.yaml", "--resume", str(folder)]) == 2
    assert "training state does not fit" in one_error_line(capsys)
    assert (run / "metrics.jsonl").read_bytes() == before


def test_auto_does_not_start_over_a_run_that_has_lost_its_checkpoints(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main(["--config", "tiny.yaml"]) == 0
    run = workplace / "runs" / "tiny"
    before = (run / "metrics.jsonl").read_bytes()
    for manifest in run.glob("checkpoints/*/manifest.json"):
        manifest.unlink()
    assert train.main(["--config", "tiny.yaml", "--resume", "auto"]) == 2
    assert "no readable checkpoint" in one_error_line(capsys)
    shutil.rmtree(run / "checkpoints")
    assert train.main(["--config", "tiny.yaml", "--resume", "auto"]) == 2
    assert "has lost its checkpoints" in one_error_line(capsys)
    assert (run / "metrics.jsonl").read_bytes() == before


def test_overrides_may_stand_on_both_sides_of_an_option(workplace: Path) -> None:
    assert train.main(["--config", "tiny.yaml", "run.name=both", "--resume", "auto", "train.max_steps=3"]) == 0
    assert (workplace / "runs/both/checkpoints/step-000003").is_dir()


def test_a_forgotten_override_is_named_before_the_tokenizer(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main(["--config", "tiny.yaml", "data.tokenizer=byte"]) == 0
    assert train.main(["--config", "tiny.yaml", "--resume", "auto"]) == 2
    assert "data.tokenizer: byte -> char" in one_error_line(capsys)


def test_a_copied_run_that_is_resumed_by_its_own_configuration_is_told_from_the_original(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main(["--config", "tiny.yaml"]) == 0
    shutil.copytree(workplace / "runs" / "tiny", workplace / "runs" / "copy")
    capsys.readouterr()
    assert train.main(["--config", "runs/copy/config.yaml", "--resume", "auto"]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert len(said) == 1
    assert "the configuration in runs/copy names the run runs/tiny" in said[0]
    hint = said[0].partition("to continue the copy, pass ")[2].split()
    assert train.main(["--config", "runs/copy/config.yaml", "--resume", "auto", *hint]) == 0
    assert train.main(["--config", "runs/tiny/config.yaml", "--resume", "auto"]) == 0
    assert "warning" not in capsys.readouterr().err


@pytest.mark.parametrize("steps", [1, 20])
def test_a_run_shorter_than_its_warmup_shrinks_it_and_goes_on_exactly(
    workplace: Path, capsys: pytest.CaptureFixture[str], steps: int
) -> None:
    short = ["--config", "tiny.yaml", f"train.max_steps={steps}", "optim.warmup_steps=100"]
    assert train.main(short) == 0
    line = f"optim.warmup_steps: {steps // 10} instead of 100, since train.max_steps is {steps}"
    assert line in capsys.readouterr().err.splitlines()
    kept = parse_config((workplace / "runs" / "tiny" / "config.yaml").read_text(encoding="utf-8"), "config.yaml")
    assert kept.optim.warmup_steps == steps // 10
    assert train.main([*short, "--resume", "auto"]) == 0
    assert train.main(["--config", "runs/tiny/config.yaml", "--resume", "auto"]) == 0


def test_a_run_goes_on_although_standard_error_is_closed(workplace: Path) -> None:
    script = Path(train.__file__).parents[2] / "scripts" / "train.py"
    command = f"exec {shlex.quote(sys.executable)} {shlex.quote(str(script))} --config tiny.yaml 2>&-"
    assert subprocess.run(command, shell=True, check=False).returncode == 0
    assert (workplace / "runs" / "tiny" / "checkpoints" / "step-000006").is_dir()


def test_a_key_with_dashes_is_shown_without_them(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        train.main(["--config", "configs/quickstart.yaml", "--max_iters=5"])
    assert stopped.value.code == 2
    assert "--max_iters=5 (keys of the configuration have no dashes; did you mean train.max_steps?)" in one_error_line(
        capsys
    )


def test_a_loss_that_is_not_finite_ends_a_run_with_exit_code_3_and_the_weights_from_before(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main(["--config", "tiny.yaml", "optim.learning_rate=1e30", "optim.warmup_steps=0"]) == 3
    assert "the loss or a gradient is not finite at step 1; the update was not made" in one_error_line(capsys)
    checkpoint = read_checkpoint(RunFolder(Path("runs/tiny")).checkpoints()[0])
    assert checkpoint.state["step"] == 0
    assert all(bool(torch.isfinite(weight).all()) for weight in checkpoint.model.values())
