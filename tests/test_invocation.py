"""The spelling of commands, by how the process was called."""

import os
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpt import invocation

PYTHON = sys.executable
ROOT = Path(invocation.__file__).parents[1]


def called(monkeypatch: pytest.MonkeyPatch, argv: str, *typed: str) -> None:
    monkeypatch.setattr(sys, "argv", [argv, "--seed", "1"])
    monkeypatch.setattr(sys, "orig_argv", [*typed, "--seed", "1"])


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs with `python` and `gpt`, which PATH finds."""
    for name in ("python", "gpt"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def test_by_a_script(monkeypatch: pytest.MonkeyPatch, installed: Path) -> None:
    monkeypatch.chdir(ROOT)
    called(monkeypatch, "scripts/train.py", "python", "scripts/train.py")
    assert invocation.command("sample", "--prompt", "It is") == "python scripts/sample.py --prompt 'It is'"
    assert invocation.command("import-model", Path("ä b")) == "python scripts/import_model.py 'ä b'"
    assert invocation.command("new") == "python scripts/make_config.py"
    assert invocation.command("recipes") == "gpt recipes"  # has no script
    monkeypatch.chdir(installed)
    called(monkeypatch, f"{ROOT}/scripts/train.py", "./python", f"{ROOT}/scripts/train.py")
    assert invocation.command("sample") == f"./python {shlex.quote(f'{ROOT}/scripts/sample.py')}"


def test_by_the_installed_command(monkeypatch: pytest.MonkeyPatch, installed: Path) -> None:
    called(monkeypatch, f"{installed}/gpt", f"{installed}/python", f"{installed}/gpt")
    assert invocation.command("sample") == "gpt sample"
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert invocation.command("sample") == f"{installed}/gpt sample"


def test_by_the_module(monkeypatch: pytest.MonkeyPatch, installed: Path) -> None:
    called(monkeypatch, f"{ROOT}/gpt/__main__.py", "python", "-m", "gpt")
    assert invocation.command("sample") == "python -m gpt sample"


@pytest.mark.parametrize("argv", ["/site-packages/ipykernel_launcher.py", ""])  # a notebook; a prompt
def test_in_another_program(monkeypatch: pytest.MonkeyPatch, installed: Path, argv: str) -> None:
    called(monkeypatch, argv, "/usr/bin/other", "-m", "ipykernel_launcher")
    assert invocation.command("sample") == "gpt sample"
    (installed / "gpt").unlink()
    assert invocation.command("sample") == f"{installed}/python -m gpt sample"


def test_extras_are_installed_for_the_python_that_runs(monkeypatch: pytest.MonkeyPatch, installed: Path) -> None:
    source = shlex.quote(f"{ROOT}[gguf]")
    recorded, left_over = SimpleNamespace(read_text=str), SimpleNamespace(read_text=lambda file: None)
    monkeypatch.setattr("importlib.metadata.Distribution.discover", lambda name: [left_over, recorded])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    called(monkeypatch, f"{installed}/gpt", f"{installed}/gpt")
    assert invocation.extra("gguf") == f"{installed}/python -m pip install 'glassgpt[gguf]'"
    called(monkeypatch, "scripts/train.py", "python", "scripts/train.py")
    assert invocation.extra("gguf") == "python -m pip install 'glassgpt[gguf]'"
    monkeypatch.setattr("importlib.metadata.Distribution.discover", lambda name: [left_over])
    assert invocation.extra("gguf") == f"python -m pip install -e {source}"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # an environment that uv has made
    assert invocation.extra("gguf") == f"uv pip install --python python -e {source}"


def test_without_the_program_and_in_a_folder_that_is_deleted(
    monkeypatch: pytest.MonkeyPatch, installed: Path, tmp_path: Path
) -> None:
    (installed / "gpt").unlink()
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    called(monkeypatch, "-c", "python")
    monkeypatch.chdir("/")
    assert invocation.command("sample") == f"{installed}/python -m gpt sample"
    (tmp_path / "deleted").mkdir()
    monkeypatch.chdir(tmp_path / "deleted")
    (tmp_path / "deleted").rmdir()
    assert invocation.command("sample") == f"{installed}/python -m gpt sample"


def test_on_windows_words_are_quoted_as_both_shells_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invocation, "_IS_WINDOWS", True)
    called(monkeypatch, "other", "other")
    monkeypatch.setattr(sys, "executable", "C:\\Program Files\\python.exe")
    assert invocation.command("train", "a&b.yaml", "c d", "e").endswith(' train "a&b.yaml" "c d" e')
    assert invocation.command("train").startswith("py -m gpt ")
