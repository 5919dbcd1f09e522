"""What all commands share: exit codes, messages, numbers, texts and tables."""

import argparse
import errno
import io
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from gpt.cli.command import run_command
from gpt.cli.shared_options import STANDARD_INPUT, number, read_text
from gpt.cli.tables import add_json_option, human_bytes, human_count, print_view
from gpt.inspection.rendering.tables import Table
from gpt.system.errors import GPTError


def test_a_thread_that_cannot_write_is_one_line_and_another_error_of_a_thread_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """TensorBoard writes in a thread."""

    def fail_in_a_thread(error: Exception) -> int:
        thread = threading.Thread(target=lambda: throw(error))
        thread.start()
        thread.join()
        return 0

    def throw(error: Exception) -> None:
        raise error

    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)
    run_command(lambda: fail_in_a_thread(OSError(errno.ENOSPC, "No space left on device")))
    assert capsys.readouterr().err == "warning: a background thread cannot write: No space left on device\n"
    run_command(lambda: fail_in_a_thread(ZeroDivisionError()))
    assert "Traceback" in capsys.readouterr().err


def out_of_memory_on_cuda() -> list[object]:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nSee the documentation")


@pytest.mark.parametrize(
    "allocate",
    [
        lambda: torch.empty(1 << 50),
        lambda: torch.empty(1 << 62, device="meta"),
        lambda: np.ones(1 << 50),
        lambda: [0] * (1 << 60),
        out_of_memory_on_cuda,
    ],
    ids=["torch", "bytes", "numpy", "python", "cuda"],
)
def test_an_allocation_that_fails_is_one_line(
    allocate: Callable[[], object], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(lambda: len(allocate())) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: out of memory; lower train.batch_size or --batch-size, model.block_size or")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("work", "error"),
    [
        (lambda: len(torch.ones(2).reshape(3)), RuntimeError),
        (lambda: len(Path("/nowhere/at all").read_bytes()), FileNotFoundError),
    ],
)
def test_what_no_user_has_caused_is_not_hidden(work: Callable[[], int], error: type[Exception]) -> None:
    with pytest.raises(error):
        run_command(work)


def test_a_list_of_mistakes_keeps_its_lines(tmp_path: Path, call: Callable[..., tuple[int, str, str]]) -> None:
    (tmp_path / "a.yaml").write_text("model: {n_layers: 1, n_heads: 1}\n")
    assert len(call(f"train --config {tmp_path / 'a.yaml'}").err.splitlines()) == 3


@pytest.mark.parametrize(
    ("parse", "good", "bad"),
    [
        (number(0, 9), ["0", "9"], ["-1", "10"]),
        (number(0, kind=float), ["0", "1e9"], ["-1e-9", "nan", "inf"]),
    ],
)
def test_a_number_is_in_its_range(parse: Callable[[str], float], good: list[str], bad: list[str]) -> None:
    assert [parse(text) for text in good] == [float(text) if "." in text or "e" in text else int(text) for text in good]
    for text in bad:
        with pytest.raises(argparse.ArgumentTypeError, match=rf"^{text}, expected (at least|0 to)"):
            parse(text)


@pytest.mark.parametrize("content", ["a\r\nb", "a\rb\n", "\u2028\x0c\x85", "a\ufeffb"])
def test_a_text_is_read_as_it_is(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for mark in (b"", b"\xef\xbb\xbf"):
        (tmp_path / "text").write_bytes(mark + content.encode())
        assert read_text(tmp_path / "text") == content
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
    assert read_text(STANDARD_INPUT) == content


def test_what_is_no_text_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text").write_bytes(b"ab\xff")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"abc\xff"), encoding="utf-8"))
    for path, name in ((tmp_path / "text", r"text is not UTF-8 text \(byte 2\)"), (STANDARD_INPUT, r"\(byte 3\)")):
        with pytest.raises(GPTError, match=name):
            read_text(path)
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(GPTError, match="standard input is closed"):
        read_text(STANDARD_INPUT)


TABLE = Table("Fruit", ("kind", "count"), [("apple", "1"), ("  fig", "1,000")], "<>", "Eat them.")


@pytest.mark.parametrize(
    ("form", "printed"),
    [
        ([], "A title\n\nFruit\nkind   count\n-----  -----\napple      1\n  fig  1,000\nEat them.\n"),
        (["--json"], '{"total": 3}\n'),
    ],
)
def test_a_view_is_printed(form: list[str], printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_json_option(parser)
    print_view(parser.parse_args(form), "A title", [TABLE], {"total": 3})
    assert capsys.readouterr().out == printed


def test_numbers_have_three_digits() -> None:
    counts = {0: "0", 7: "7", 0.5: "0.50", 999: "999", 1000: "1.00 k", 124_439_808: "124 M", 999_999: "1.00 M"}
    assert {number: human_count(number) for number in counts} == counts
    assert [human_count(n, unit) for n, unit in ((312e12, "FLOP"), (2000e9, "B"), (5, "B"))] == [
        "312 TFLOP",
        "2.00 TB",
        "5 B",
    ]
    sizes = {0: "0 B", 5: "5 B", 1023: "1.00 KiB", 1024: "1.00 KiB", 1_572_864: "1.50 MiB", 10 << 20: "10.0 MiB"}
    sizes |= {475 << 20: "475 MiB", 5 << 50: "5,120 TiB"}
    assert {number: human_bytes(number) for number in sizes} == sizes
