"""`scripts/export.py`."""

import os
from pathlib import Path

import pytest

from gpt.cli import export, quantize


def run(trained: Path, output: Path, *options: str) -> int:
    return export.main(["--to", "html", "--checkpoint", str(trained / "runs/tiny"), "--output", str(output), *options])


def test_a_page_is_written_and_its_size_is_said(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {}
    for weights in ("int8", "fp16", "float32"):
        page = tmp_path / "tiny.html"
        assert run(trained, page, "--weights", weights) == 0
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
