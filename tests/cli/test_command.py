"""The command `gpt`, and what all commands share: exit codes, messages, texts and tables."""

import ast
import gc
import io
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
import torch

import gpt
from cli.conftest import Call, Refuse
from gpt.cli.command import load, run_command
from gpt.cli.commands import COMMANDS
from gpt.cli.shared_options import STANDARD_INPUT, read_text
from gpt.system.errors import GPTError
from gpt.system.invocation import command_line
from patience import PATIENCE


def test_help_lists_every_command_with_its_own_help(run: Call) -> None:
    listed = run("commands").out
    assert listed == run("commands --help").out
    for name, command in COMMANDS.items():
        assert command.summary in listed
        own = run(f"commands {name} --help").out
        # a long name ends the line
        assert " ".join(own.split()).startswith(f"usage: gpt {name} [-h]")
        assert f"example:\n  gpt {name} " in own


def test_garbage_is_not_collected_during_an_import_and_is_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search for garbage would take half as long as the import of torch itself."""
    (tmp_path / "imported_for_garbage.py").write_text("import gc\ncollects = gc.isenabled()\n")
    monkeypatch.syspath_prepend(tmp_path)
    load("imported_for_garbage")
    imported = sys.modules.pop("imported_for_garbage")
    assert not imported.collects
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0


def test_signal_while_torch_is_imported_is_not_lost() -> None:
    """Its C++ code catches what a handler raises."""
    code = """
        import signal, sys
        from gpt.cli import command

        def swallow(name):
            try:
                signal.raise_signal(signal.SIGINT)
            except BaseException:
                pass

        command.load = swallow
        sys.exit(command.run_command(command.load_torch))
    """
    assert (
        subprocess.run([sys.executable, "-c", dedent(code)], timeout=PATIENCE).returncode
        == -signal.SIGINT
    )


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


ROOT = Path(gpt.__file__).parents[1]
MODULE = str(ROOT / "gpt" / "__main__.py")


@pytest.mark.parametrize(
    ("started", "program", "printed"),
    [
        (["python", "scripts/train.py"], "scripts/train.py", "python scripts/sample.py"),
        (
            [".venv/bin/python", "-X", "dev", "train.py"],
            "train.py",
            ".venv/bin/python -X dev sample.py",
        ),
        (["my python", "-m", "gpt"], MODULE, "'my python' -m gpt sample"),
        (["python", "-m", "gpt.cli.train"], MODULE, "python -m gpt sample"),
        (["/usr/bin/python", ".venv/bin/gpt"], ".venv/bin/gpt", ".venv/bin/gpt sample"),
        (["/usr/bin/python", "{path}/gpt"], "{path}/gpt", "gpt sample"),
        (
            ["python", "-m", "pdb", "scripts/train.py"],
            "scripts/train.py",
            "python -m pdb scripts/sample.py",
        ),
        # What was started is no command of the package, or its words were changed later.
        (["python", "mine/train.py"], "mine/train.py", "gpt sample"),
        (["python", "-m", "pytest"], "/lib/pytest/__main__.py", "gpt sample"),
        (["python", "-c", "code"], "scripts/train.py", "gpt sample"),
        (["python"], "", "gpt sample"),
    ],
)
def test_printed_command_is_in_the_form_of_the_typed_one(
    started: list[str], program: str, printed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = tmp_path / "gpt"
    found.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(ROOT / "scripts" if program == "train.py" else ROOT)
    options = ["--resume", "auto"]
    monkeypatch.setattr(sys, "argv", [program.format(path=tmp_path), *options])
    monkeypatch.setattr(
        sys, "orig_argv", [*(word.format(path=tmp_path) for word in started), *options]
    )
    assert command_line("sample", "--checkpoint", "my run") == f"{printed} --checkpoint 'my run'"


def test_each_command_has_the_script_that_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(ROOT / "scripts" / "train.py")])
    monkeypatch.setattr(sys, "orig_argv", ["python", *sys.argv])
    for name, command in COMMANDS.items():
        script = Path(command_line(name).removeprefix("python "))
        assert script.is_file()
        assert script.stem == command.file


def test_no_message_spells_a_command_by_itself() -> None:
    """`command_line` does."""
    command = re.compile(rf"\bgpt ({'|'.join(COMMANDS)}) ")
    for path in (ROOT / "gpt").rglob("*.py"):
        texts = [
            node.value
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if _is_text(node)
        ]
        assert not [text for text in texts if command.search(re.sub("`[^`]*`", "", text))], path


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def out_of_memory_on_cuda() -> list[object]:
    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 20.00 GiB.\nSee the documentation"
    )


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
def test_failed_allocation_is_one_line(
    allocate: Callable[[], object], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(lambda: len(allocate())) == 2
    err = capsys.readouterr().err
    assert err.startswith(
        "error: out of memory; lower train.batch_size or --batch-size, model.block_size or"
    )
    assert err.count("\n") == 1


def test_bugs_keep_their_traceback_and_lists_their_lines(tmp_path: Path, call: Call) -> None:
    with pytest.raises(RuntimeError):
        run_command(lambda: len(torch.ones(2).reshape(3)))
    with pytest.raises(FileNotFoundError):
        run_command(lambda: len(Path("/nowhere/at all").read_bytes()))
    (tmp_path / "a.yaml").write_text("model: {n_layers: 1, n_heads: 1}\n")
    assert len(call(f"train --config {tmp_path / 'a.yaml'}").err.splitlines()) == 3


def test_python_without_the_packages_is_told_in_one_line(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from gpt.cli.start import start; "
        "start('gpt.cli.train')"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 2
    assert re.fullmatch(
        r"error: \w+ is not installed for .*; in a clone, run make setup and .*\n", done.stderr
    )


def test_words_that_are_not_read_as_utf8_are_refused_in_one_line(
    refuse: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpt", "sample", "--prompt", "caf\udcc3\udca9"])
    assert "unrecognized" in refuse("sample --nonsense")
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "ascii")
    assert refuse("sample --nonsense") == (
        "error: the command line is read as ascii; set PYTHONUTF8=1, so that it is read as UTF-8"
    )


@pytest.mark.parametrize("content", ["a\r\nb", "a\rb\n", "\u2028\x0c\x85", "a\ufeffb"])
def test_text_is_read_as_it_is(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for mark in (b"", b"\xef\xbb\xbf"):
        (tmp_path / "text").write_bytes(mark + content.encode())
        assert read_text(tmp_path / "text") == content
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
    assert read_text(STANDARD_INPUT) == content


def test_what_is_no_text_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text").write_bytes(b"ab\xff")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"abc\xff"), encoding="utf-8"))
    for path, name in (
        (tmp_path / "text", r"text is not UTF-8 text \(byte 2\)"),
        (STANDARD_INPUT, r"\(byte 3\)"),
    ):
        with pytest.raises(GPTError, match=name):
            read_text(path)
