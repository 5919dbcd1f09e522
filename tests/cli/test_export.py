"""`scripts/export.py`."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from gpt import checkpoint
from gpt.cli import export, quantize
from gpt.config import SamplingParams
from gpt.interop import page_check as export_node
from gpt.model.gpt import Block
from programs import find_node


def run(trained: Path, output: Path, *options: str) -> int:
    return export.main(["--to", "html", "--checkpoint", str(trained / "runs/tiny"), "--output", str(output), *options])


def test_a_page_is_written_and_its_size_is_said(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {}
    for weights in ("int8", "fp16", "float32"):
        page = tmp_path / "tiny.html"
        assert run(trained, page, "--weights", weights, "--force") == 0
        assert f"written to {page}" in capsys.readouterr().err
        assert f"{weights} weights" in page.read_text(encoding="utf-8")
        sizes[weights] = page.stat().st_size
    assert sizes["int8"] < sizes["fp16"] < sizes["float32"]
    assert "<title>tiny</title>" in page.read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.html"]


@pytest.mark.parametrize(
    ("output", "options", "message"),
    [
        (".", [], "is a folder"),
        ("gone/x.html", [], "is not a folder"),
        ("x.html", ["--checkpoint", "nothing"], "nothing"),
        ("x.html", ["--prompt", "It #"], "'#' at 3"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    output: str,
    options: list[str],
    message: str,
    trained: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(trained, tmp_path / output, *options) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("to", ["html", "gguf", "onnx"])
def test_a_file_that_is_there_is_replaced_only_by_force(
    to: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine"
    file.write_text("mine")
    assert run(trained, file, "--to", to) == 2
    assert f"{file} exists already; choose another --output, or replace it by --force" in capsys.readouterr().err
    assert file.read_text() == "mine"
    if to == "gguf":
        assert run(trained, file, "--to", to, "--force") == 0
        assert file.read_bytes().startswith(b"GGUF")


def without_attention(self: Block, x: Tensor, rotation: Any, mask: Any, cache: Any = None) -> Tensor:
    x = x + 0.0 * self.attn(self.ln_1(x), rotation, mask, cache)
    return x + self.mlp(self.ln_2(x))


@pytest.mark.parametrize("to", ["html", "gguf", "hf"])
def test_a_format_that_computes_something_else_is_one_line_and_leaves_nothing(
    to: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_node, "find_node", find_node)
    monkeypatch.setattr(Block, "forward", without_attention)
    assert run(trained, tmp_path / "x", "--to", to) == 2
    error = capsys.readouterr().err
    assert "cannot be exported: the written file computes other logits than the model (they differ by 0." in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_page_that_cannot_be_checked_here_says_that_it_checks_itself(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run(trained, tmp_path / "x.html") == 0
    assert "open it in a browser, where it checks itself: here is no node to do it" in capsys.readouterr().err


def test_sampling_that_a_format_does_not_have_is_named(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_with_sampling(*arguments: Any) -> checkpoint.Loaded:
        loaded = load(*arguments)
        sample = SamplingParams(min_p=0.1, top_k=3, logprobs=2, stop=("x",))
        return dataclasses.replace(loaded, config=loaded.config.model_copy(update={"sample": sample}))

    load = checkpoint.load_trained
    monkeypatch.setattr(checkpoint, "load_trained", load_with_sampling)
    assert run(trained, tmp_path / "x.html") == 0
    error = capsys.readouterr().err
    assert "x.html samples without sample.min_p=0.1, sample.stop=('x',), which --to html does not have\n" in error


@pytest.mark.parametrize("options", [["--to", "pdf"], ["--weights", "int4"], ["--to", "html"]])
def test_a_wrong_option_exits_with_2(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        export.main(options)
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_folder_for_transformers_is_written(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "hf"
    arguments = ["--to", "hf", "--checkpoint", str(trained / "runs/tiny"), "--output", str(folder)]
    assert export.main(arguments) == 0
    assert f"from_pretrained('{folder}') loads it" in capsys.readouterr().err
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "# tiny" in card
    assert "nats per token" in card
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]
    assert export.main(arguments) == 2
    assert "exists already" in capsys.readouterr().err
    assert export.main([*arguments, "--force"]) == 2
    assert "--force has no effect with --to hf" in capsys.readouterr().err
    assert export.main([*arguments, "--prompt", "x"]) == 2
    assert "--prompt has no effect with --to hf" in capsys.readouterr().err
    assert export.main([*arguments, "--weights", "q8_0"]) == 2
    assert "--weights q8_0 is not for --to hf" in capsys.readouterr().err


def test_an_onnx_file_is_written_and_a_quantized_checkpoint_is_named(
    trained: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ["--checkpoint", str(trained / "runs/tiny"), "--output", str(tmp_path / "tiny.onnx")]
    assert export.main(["--to", "onnx", *options]) == 0
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "InferenceSession(" in printed.err
    assert printed.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.onnx"]
    small = tmp_path / "int8"
    assert quantize.main(["--checkpoint", str(trained / "runs/tiny"), "--weights", "int8", "--output", str(small)]) == 0
    capfd.readouterr()
    for to in ("hf", "gguf", "onnx"):
        assert export.main(["--to", to, "--checkpoint", str(small), "--output", str(tmp_path / "x")]) == 2
        assert f"error: {small} cannot be exported: the weights are int8" in capfd.readouterr().err
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("output", [".", "gone/x.gguf"])
def test_a_gguf_file_that_cannot_be_written_leaves_nothing(
    output: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--to", "gguf", "--checkpoint", str(trained / "runs/tiny"), "--output", str(tmp_path / output)]
    assert export.main(arguments) == 2
    assert capsys.readouterr().err.count("error: ") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("to", ["html", "gguf", "hf", "onnx"])
def test_nothing_is_written_into_a_checkpoint_or_over_a_pipe(
    to: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    checkpoint = next((trained / "runs/tiny/checkpoints").iterdir())
    before = {file.name: file.read_bytes() for file in checkpoint.iterdir()}
    for output in (tmp_path / "pipe", checkpoint / "model.safetensors"):
        assert export.main(["--to", to, "--checkpoint", str(checkpoint), "--output", str(output)]) == 2
    assert (tmp_path / "pipe").is_fifo()
    assert {file.name: file.read_bytes() for file in checkpoint.iterdir()} == before
