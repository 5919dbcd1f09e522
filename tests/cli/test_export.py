"""`scripts/export.py`."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from cli.conftest import Call
from gpt.model.gpt import Block

TINY = "--checkpoint runs/tiny --output"
FORMATS = ("html", "gguf", "hf")
Refuse = Callable[..., str]
pytestmark = pytest.mark.usefixtures("here")


def test_a_page_is_written_and_its_size_is_said(tmp_path: Path, run: Call) -> None:
    page, sizes = tmp_path / "tiny.html", list[int]()
    for weights in ("int8", "fp16", "float32"):
        assert f"written to {page}" in run(f"export --to html {TINY} {page} --weights {weights}").err
        text = page.read_text(encoding="utf-8")
        assert f"{weights} weights" in text
        assert "<title>tiny</title>" in text
        assert [path.name for path in tmp_path.iterdir()] == ["tiny.html"]
        sizes.append(page.stat().st_size)
        page.unlink()
    assert sizes == sorted(set(sizes))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--to html --output .", ". exists already"),
        ("--to gguf --output gone/x", "cannot write gone/x"),
        ("--to hf --output x --weights q8_0", "--weights q8_0 is not for --to hf"),
        *(
            (f"--to {to} --output there", "there exists already; choose another --output, or remove it")
            for to in FORMATS
        ),
        *((f"--to {to} --output pipe", "pipe") for to in FORMATS),
    ],
)
def test_a_mistake_is_one_line_and_changes_nothing(
    options: str, message: str, trained: Path, tmp_path: Path, refuse: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").write_text("mine")
    os.mkfifo(tmp_path / "pipe")
    assert message in refuse(f"export --checkpoint {trained}/runs/tiny {options}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pipe", "there"]
    assert (tmp_path / "there").read_text() == "mine"
    assert (tmp_path / "pipe").is_fifo()


def without_attention(self: Block, x: Tensor, rotation: Any, mask: Any, cache: Any = None) -> Tensor:
    x = x + 0.0 * self.attn(self.ln_1(x), rotation, mask, cache)
    return x + self.mlp(self.ln_2(x))


@pytest.mark.parametrize("to", ["html", "gguf", "hf"])
def test_a_format_that_computes_something_else_is_one_line_and_leaves_nothing(
    to: str, tmp_path: Path, refuse: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Block, "forward", without_attention)
    error = refuse(f"export --to {to} {TINY} {tmp_path}/x")
    assert "cannot be exported: the model is not what its configuration builds: Block of gpt/model/gpt.py" in error
    assert list(tmp_path.iterdir()) == []


def test_a_folder_for_transformers_is_written(tmp_path: Path, run: Call) -> None:
    folder = tmp_path / "hf"
    assert f"from_pretrained('{folder}') loads it" in run(f"export --to hf {TINY} {folder}").err
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_a_file_for_llama_cpp_is_written(tmp_path: Path, run: Call) -> None:
    assert f"llama-cli -m {tmp_path}/x.gguf runs it" in run(f"export --to gguf {TINY} {tmp_path}/x.gguf").err
    assert (tmp_path / "x.gguf").read_bytes().startswith(b"GGUF")
