"""`scripts/import_model.py`, and what other commands make of its result."""

import json
import pickle
from pathlib import Path

import pytest
import torch

from gpt.checkpoint import read_checkpoint
from gpt.cli import evaluate, explain, export, import_model, sample


@pytest.fixture
def exported(trained: Path, tmp_path: Path) -> Path:
    """A folder for transformers of the tiny run."""
    folder = tmp_path / "hf"
    assert export.main(["--to", "hf", "--checkpoint", str(trained / "runs/tiny"), "--output", str(folder)]) == 0
    return folder


def load(source: str, path: Path, output: Path, *options: str) -> int:
    return import_model.main(["--from", source, "--input", str(path), "--output", str(output), *options])


def text_of(capsys: pytest.CaptureFixture[str], checkpoint: Path, *options: str) -> str:
    capsys.readouterr()
    arguments = ["--checkpoint", str(checkpoint), "--prompt", "It", "--max-new-tokens", "40", *options]
    assert sample.main(arguments) == 0
    return capsys.readouterr().out


def test_what_was_exported_writes_the_same_text(
    exported: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert load("hf", exported, tmp_path / "back") == 0
    assert f"{tmp_path / 'back'}: " in capsys.readouterr().err
    for options in ([], ["--backend", "eager"]):
        assert text_of(capsys, tmp_path / "back", *options) == text_of(capsys, trained / "runs/tiny", *options)


def test_an_imported_model_ends_a_text_where_its_own_program_does(exported: Path, tmp_path: Path) -> None:
    (exported / "generation_config.json").write_text('{"eos_token_id": [2, 3]}')
    assert load("hf", exported, tmp_path / "back") == 0
    assert read_checkpoint(tmp_path / "back").config.sample.end_id == 2


def test_an_imported_model_is_evaluated_looked_into_and_exported_again(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    back, text = str(tmp_path / "back"), tmp_path / "text.txt"
    text.write_text("It was the best of rooms", encoding="utf-8")
    assert load("hf", exported, tmp_path / "back") == 0
    assert evaluate.main(["--checkpoint", back, "--text-file", str(text)]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == 23
    assert explain.main(["lens", "--checkpoint", back, "--prompt", "It was"]) == 0
    assert export.main(["--to", "hf", "--checkpoint", back, "--output", str(tmp_path / "again")]) == 0
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (exported / name).read_bytes()


def test_a_run_of_nanogpt_is_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 8, "block_size": 16, "bias": False, "vocab_size": 4}
    shapes = {"wte": (4, 8), "wpe": (16, 8), "ln_f": (8,), "h.0.ln_1": (8,), "h.0.ln_2": (8,)}
    shapes |= {
        "h.0.attn.c_attn": (24, 8),
        "h.0.attn.c_proj": (8, 8),
        "h.0.mlp.c_fc": (32, 8),
        "h.0.mlp.c_proj": (8, 32),
    }
    weights = {f"transformer.{name}.weight": torch.ones(shape) for name, shape in shapes.items()}
    torch.save({"model": weights, "model_args": sizes}, tmp_path / "ckpt.pt")
    (tmp_path / "elsewhere.pkl").write_bytes(pickle.dumps({"itos": dict(enumerate("\nItx"))}))
    output = tmp_path / "run"
    assert load("nanogpt", tmp_path / "ckpt.pt", output, "--meta", str(tmp_path / "elsewhere.pkl")) == 0
    assert read_checkpoint(output).config.model.vocab_size == 4
    assert text_of(capsys, output).startswith("It")


@pytest.mark.parametrize(
    ("source", "name", "options", "message"),
    [
        ("hf", "nothing", [], "nothing has no config.json"),
        ("hf", "hf/config.json", [], "config.json is a file; give the folder"),
        ("nanogpt", "nothing.pt", [], "there is no"),
        ("hf", "hf", ["--meta", "x"], "--meta has no effect with --from hf"),
        ("nanogpt", "hf", [], "hf cannot be imported"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    source: str,
    name: str,
    options: list[str],
    message: str,
    exported: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    capsys.readouterr()
    assert load(source, tmp_path / name, tmp_path / "out", *options) == 2
    error = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(error) == 1
    assert message in error[0]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", ['{"weight_map": {"a": "x\\ny"}}', '{"weight_map": {"a": "\\u001b[31m"}}'])
def test_names_in_a_file_do_not_break_the_line(
    content: str, exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (exported / "model.safetensors.index.json").write_text(content)
    capsys.readouterr()
    assert load("hf", exported, exported.with_name("out")) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "loading torch" not in line]
    assert line.startswith("error: ")
    assert line.isprintable()


def test_nothing_is_written_over(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert load("hf", exported, exported) == 2
    assert "exists already" in capsys.readouterr().err


def test_the_corpus_of_an_imported_model_is_not_known(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert load("hf", exported, tmp_path / "back") == 0
    assert evaluate.main(["--checkpoint", str(tmp_path / "back")]) == 2
    assert "does not know what it was trained on; give a text with --text-file" in capsys.readouterr().err
