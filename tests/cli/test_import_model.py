"""`scripts/import_model.py`, and what other commands make of its result."""

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cli.conftest import Call
from gpt.checkpoint import read_checkpoint


@pytest.fixture
def exported(trained: Path, tmp_path: Path, run: Call, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the folder `hf` for transformers of the tiny run."""
    monkeypatch.chdir(tmp_path)
    run(f"export --to hf --checkpoint {trained}/runs/tiny --output hf")
    return tmp_path


def test_what_was_exported_writes_the_same_text_and_is_exported_again(
    exported: Path, trained: Path, run: Call, refuse: Callable[..., str]
) -> None:
    assert "back: " in run("import_model --from hf --input hf --output back").err
    for backend in ("auto", "eager"):
        line = f"sample --prompt It --max-new-tokens 40 --backend {backend} --checkpoint"
        assert run(line, "back").out == run(line, f"{trained}/runs/tiny").out
    Path("text.txt").write_text("It was the best of rooms", encoding="utf-8")
    assert run("evaluate --checkpoint back --text-file text.txt").json["tokens"] == 23
    run("explain lens --checkpoint back --prompt 'It was'")
    run("export --to hf --checkpoint back --output again")
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert Path("again", name).read_bytes() == Path("hf", name).read_bytes()
    error = refuse("evaluate --checkpoint back")
    assert "does not know what it was trained on; give a text with --text-file" in error


def test_an_imported_model_ends_a_text_where_its_own_program_does(exported: Path, run: Call) -> None:
    Path("hf/generation_config.json").write_text('{"eos_token_id": [2, 3]}')
    run("import_model --from hf --input hf --output back")
    assert read_checkpoint(Path("back")).config.sample.end_id == 2


def test_a_run_of_nanogpt_is_imported(tmp_path: Path, run: Call) -> None:
    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 8, "block_size": 16, "bias": False, "vocab_size": 4}
    shapes = {"wte": (4, 8), "wpe": (16, 8), "ln_f": (8,), "h.0.ln_1": (8,), "h.0.ln_2": (8,)}
    shapes |= {"h.0.attn.c_attn": (24, 8), "h.0.attn.c_proj": (8, 8)}
    shapes |= {"h.0.mlp.c_fc": (32, 8), "h.0.mlp.c_proj": (8, 32)}
    weights = {f"transformer.{name}.weight": torch.ones(shape) for name, shape in shapes.items()}
    torch.save({"model": weights, "model_args": sizes}, tmp_path / "ckpt.pt")
    (tmp_path / "elsewhere.pkl").write_bytes(pickle.dumps({"itos": dict(enumerate("\nItx"))}))
    run(f"import_model --from nanogpt --input {tmp_path}/ckpt.pt --meta {tmp_path}/elsewhere.pkl --output {tmp_path}/a")
    assert read_checkpoint(tmp_path / "a").config.model.vocab_size == 4
    assert run(f"sample --checkpoint {tmp_path}/a --prompt It --max-new-tokens 40").out.startswith("It")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--from hf --input nothing --output out", "nothing has no config.json"),
        ("--from hf --input hf/config.json --output out", "config.json is a file; give the folder"),
        ("--from nanogpt --input nothing.pt --output out", "there is no"),
        ("--from hf --input hf --output out --meta x", "--meta has no effect with --from hf"),
        ("--from nanogpt --input hf --output out", "hf cannot be imported"),
        ("--from hf --input hf --output hf", "exists already"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    options: str, message: str, exported: Path, refuse: Callable[..., str]
) -> None:
    assert message in refuse(f"import_model {options}")
    assert [path.name for path in exported.iterdir()] == ["hf"]


@pytest.mark.parametrize("content", ['{"weight_map": {"a": "x\\ny"}}', '{"weight_map": {"a": "\\u001b[31m"}}'])
def test_names_in_a_file_do_not_break_the_line(content: str, exported: Path, refuse: Callable[..., str]) -> None:
    Path("hf/model.safetensors.index.json").write_text(content)
    assert "hf cannot be imported: " in refuse("import_model --from hf --input hf --output out")
