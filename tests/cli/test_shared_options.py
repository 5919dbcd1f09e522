import io
from pathlib import Path

import pytest

from gpt.cli import evaluate, plot, prepare_data, quantize, sample, train
from gpt.cli.shared_options import STANDARD_INPUT, read_text
from gpt.errors import GPTError

COMMANDS = {
    "evaluate": evaluate,
    "plot": plot,
    "prepare": prepare_data,
    "quantize": quantize,
    "sample": sample,
    "train": train,
}


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("evaluate", ["--checkpoint", ""]),
        ("evaluate", ["--text-file", ""]),
        ("plot", ["", "--output", "x.png"]),
        ("quantize", ["--output", ""]),
        ("sample", ["--runs", ""]),
        ("sample", ["--speculate", ""]),
        ("train", ["--config", ""]),
        ("train", ["--config", "tiny.yaml", "--resume", ""]),
    ],
)
def test_an_empty_path_is_no_default(command: str, options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        COMMANDS[command].main(options)
    assert caught.value.code == 2
    assert "expected a value, got an empty string" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "options"), [("sample", ["--prompt-file"]), ("train", ["--config"]), ("sample", ["--speculate"])]
)
def test_a_path_that_cannot_be_encoded_is_refused(
    command: str, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        COMMANDS[command].main([*options, "x\ud819"])
    assert caught.value.code == 2
    assert r"expected text that can be encoded, got 'x\ud819'" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["train", "prepare"])
def test_a_key_that_is_overridden_twice_is_refused(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert COMMANDS[command].main(["--config", "tiny.yaml", "run.seed=1", "train.max_steps=2", " run.seed =3"]) == 2
    assert capsys.readouterr().err == "error: command line: run.seed is given twice; leave one of them out\n"


@pytest.mark.parametrize("content", ["a\r\nb", "a\rb\n", "\u2028\x0c\x85", "a\ufeffb"])
def test_a_text_is_read_as_it_is(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text").write_bytes(content.encode())
    assert read_text(tmp_path / "text") == content
    (tmp_path / "text").write_bytes(b"\xef\xbb\xbf" + content.encode())
    assert read_text(tmp_path / "text") == content
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
    assert read_text(STANDARD_INPUT) == content


def test_standard_input_that_cannot_be_read_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(GPTError, match="standard input is closed"):
        read_text(STANDARD_INPUT)
