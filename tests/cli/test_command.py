"""The command `gpt`, and what all commands share: exit codes, messages, numbers, texts and tables."""

import argparse
import errno
import io
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import gpt
from cli.conftest import Call, Refuse
from gpt.cli.command import run_command
from gpt.cli.commands import COMMANDS
from gpt.cli.shared_options import STANDARD_INPUT, number, read_text
from gpt.cli.tables import add_json_option, human_bytes, human_count, print_view
from gpt.config.sources import load_config
from gpt.extras.inspection.rendering.tables import Table
from gpt.system.errors import GPTError


def test_help_lists_every_command_with_its_own_help(run: Call) -> None:
    listed = run("commands").out
    assert listed == run("commands --help").out
    for name, command in COMMANDS.items():
        assert command.summary in listed
        own = run(f"commands {name} --help").out
        assert " ".join(own.split()).startswith(f"usage: gpt {name} [-h]")  # a long name ends the line
        assert f"example:\n  gpt {name} " in own


def test_gpt_runs_a_command_or_tells_its_version(run: Call, refuse: Refuse) -> None:
    printed = run("commands train --config quickstart run.name=x --print-config").out
    assert printed.splitlines()[:2] == ["run:", "  name: x"]
    assert run("commands --version").out.startswith(f"gpt {gpt.__version__}, torch ")
    for words, told in (
        ("trian", "no command 'trian'; did you mean train?"),
        ("--nonsense", "unrecognized arguments"),
        ("sample --seed a", "--seed"),
    ):
        assert told in refuse(f"commands {words}")


def test_recipe_gives_way_to_a_file_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuse: Refuse
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart").mkdir()
    assert load_config("quickstart").config.data.source == "pydocs"
    assert "did you mean the recipe, quickstart?" in refuse("train --config configs/quickstart.yaml")
    assert "neither a file nor a recipe; did you mean quickstart?" in refuse("train --config quickstar")
    (tmp_path / "quickstar.yaml").touch()
    assert "neither a file nor a recipe; did you mean quickstar.yaml?" in refuse("train --config quickstar")
    (tmp_path / "text8").write_text("data: {source: pydocs}")
    assert load_config("text8").config.data.source == "pydocs"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device"),
            "warning: a background thread cannot write: No space left on device\n",
        ),
        (ZeroDivisionError(), "Traceback"),
    ],
)
def test_thread_that_cannot_write_is_one_line(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """TensorBoard writes in a thread."""

    def throw() -> None:
        raise error

    def fail() -> int:
        thread = threading.Thread(target=throw)
        thread.start()
        thread.join()
        return 0

    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)
    run_command(fail)
    assert said in capsys.readouterr().err


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
def test_failed_allocation_is_one_line(allocate: Callable[[], object], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(lambda: len(allocate())) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: out of memory; lower train.batch_size or --batch-size, model.block_size or")
    assert err.count("\n") == 1


def test_bugs_keep_their_traceback_and_lists_their_lines(tmp_path: Path, call: Call) -> None:
    with pytest.raises(RuntimeError):
        run_command(lambda: len(torch.ones(2).reshape(3)))
    with pytest.raises(FileNotFoundError):
        run_command(lambda: len(Path("/nowhere/at all").read_bytes()))
    (tmp_path / "a.yaml").write_text("model: {n_layers: 1, n_heads: 1}\n")
    assert len(call(f"train --config {tmp_path / 'a.yaml'}").err.splitlines()) == 3


def test_number_is_in_its_range() -> None:
    for parse, good, bad in ((number(0, 9), (0, 9), "-1 10"), (number(0, kind=float), (0, 1e9), "-1e-9 nan inf")):
        assert tuple(parse(str(value)) for value in good) == good
        for text in bad.split():
            with pytest.raises(argparse.ArgumentTypeError, match=rf"^{text}, expected (at least|0 to)"):
                parse(text)


@pytest.mark.parametrize("content", ["a\r\nb", "a\rb\n", "\u2028\x0c\x85", "a\ufeffb"])
def test_text_is_read_as_it_is(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for mark in (b"", b"\xef\xbb\xbf"):
        (tmp_path / "text").write_bytes(mark + content.encode())
        assert read_text(tmp_path / "text") == content
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
    assert read_text(STANDARD_INPUT) == content


def test_what_is_no_text_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text").write_bytes(b"ab\xff")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"abc\xff"), encoding="utf-8"))
    for path, name in ((tmp_path / "text", r"text is not UTF-8 text \(byte 2\)"), (STANDARD_INPUT, r"\(byte 3\)")):
        with pytest.raises(GPTError, match=name):
            read_text(path)


def test_view_is_a_table_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_json_option(parser)
    table = Table("Fruit", ("kind", "count"), [("apple", "1"), ("  fig", "1,000")], "<>", "Eat them.")
    text = "A title\n\nFruit\nkind   count\n-----  -----\napple      1\n  fig  1,000\nEat them.\n"
    for form, printed in (([], text), (["--json"], '{"total": 3}\n')):
        print_view(parser.parse_args(form), "A title", [table], {"total": 3})
        assert capsys.readouterr().out == printed


def test_numbers_have_three_digits() -> None:
    counts = {0: "0", 7: "7", 0.5: "0.50", 999: "999", 1000: "1.00 k", 124_439_808: "124 M", 999_999: "1.00 M"}
    assert {number: human_count(number) for number in counts} == counts
    assert [human_count(n, unit) for n, unit in ((312e12, "FLOP"), (5, "B"))] == ["312 TFLOP", "5 B"]
    sizes = {0: "0 B", 5: "5 B", 1023: "1.00 KiB", 1_572_864: "1.50 MiB", 10 << 20: "10.0 MiB", 5 << 50: "5,120 TiB"}
    assert {number: human_bytes(number) for number in sizes} == sizes
