"""The command `gpt`: its help, its mistakes, recipes, and completion in a shell."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import gpt
from cli.conftest import Call, Result
from gpt.cli import commands
from gpt.config.loading import load_config
from gpt.config.recipes import RECIPES, recipe_names
from patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def asked(tmp_path: Path) -> Callable[[str], list[str]]:
    """How a shell is told to complete a line of `gpt`, in a folder with a run and a file; nothing may import torch."""
    for name in ("runs/one/last.json", "runs/half/log", "texts/a.txt", "mine.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    code = (
        "import os, sys; from gpt.__main__ import main\n"
        "os._exit = sys.exit\n"
        "try: main()\n"
        "finally: assert not {'torch', 'matplotlib'} & sys.modules.keys()"
    )

    def ask(line: str) -> list[str]:
        protocol = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_STDOUT_FILENAME": "answer"}
        protocol |= {"COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_SUPPRESS_SPACE": "1"}
        environment = {**os.environ, **protocol, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", code]
        subprocess.run(command, env=environment, cwd=tmp_path, check=True, capture_output=True, timeout=PATIENCE)
        return (tmp_path / "answer").read_text(encoding="utf-8").split("\n")

    return ask


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("gpt imp", {"import-model"}),
        ("gpt train --res", {"--resume"}),
        ("gpt train --config sh", {name for name in recipe_names() if name.startswith("sh")}),
        ("gpt train --config ./mi", {"./mine.yaml"}),
        ("gpt train --config quickstart model.n_", {f"model.n_{key}=" for key in ("layer", "head", "kv_head", "embd")}),
        ("gpt explain flops --config quickstart model.norm=", {"model.norm=layernorm", "model.norm=rmsnorm"}),
        ("gpt explain su", {"surprisal"}),
        ("gpt sample --checkpoint runs/o", {"runs/one", "runs/one/"}),
        ("gpt train tex", {"texts/"}),
    ],
)
def test_a_shell_completes(asked: Callable[[str], list[str]], line: str, expected: set[str]) -> None:
    assert set(asked(line)) == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_printed_with_how_to_load_it(run: Call, shell: str) -> None:
    out = run(f"completion {shell}").out
    assert f"gpt completion {shell}" in out.splitlines()[0]
    assert "_ARGCOMPLETE" in out


def call(capsys: pytest.CaptureFixture[str], *words: str) -> Result:
    try:
        code = commands.main(words)
    except SystemExit as stop:
        code = int(str(stop.code or 0))
    return Result(code, *capsys.readouterr())


def test_help_lists_every_command_and_each_has_help_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    listed = call(capsys).out
    assert listed == call(capsys, "--help").out
    for name, command in commands.COMMANDS.items():
        assert command.summary in listed
        own = call(capsys, name, "--help").out
        assert " ".join(own.split()).startswith(f"usage: gpt {name} [-h]")  # a long name ends the line
        assert f"example:\n  gpt {name} " in own


def test_a_command_runs_with_its_own_options(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "train", "--config", "quickstart", "run.name=x", "--print-config")
    assert (code, out.splitlines()[:2]) == (0, ["run:", "  name: x"])
    assert call(capsys, "sample", "--seed", "a")[0] == 2


def test_the_version_is_told_with_what_matters_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "--version").out.startswith(f"gpt {gpt.__version__}, torch ")


@pytest.mark.parametrize(
    ("word", "told"), [("trian", "no command 'trian'; did you mean train?"), ("--nonsense", "unrecognized arguments")]
)
def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str], word: str, told: str) -> None:
    code, out, error = call(capsys, word)
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert told in error


def test_recipes_are_listed_with_what_they_cost_and_printed(run: Call, refuse: Callable[..., str]) -> None:
    rows = {row["name"]: row for row in run("recipes --json").json["recipes"]}
    assert list(rows) == recipe_names()
    baby = rows["shakespeare_baby_gpt"]
    tokens = 5000 * 64 * 256
    assert baby["flops"] == pytest.approx(6 * 10.6e6 * tokens * 1.15, rel=0.05)  # 6 N D, and attention
    assert baby["about"].startswith("nanoGPT's baby GPT")
    out = run("recipes").out
    assert "10.7 M parameters, 5.81 PFLOP in all" in out
    assert out.splitlines()[-1].endswith("gpt new my.txt")
    assert run("recipes text8").out == (RECIPES / "text8.yaml").read_text(encoding="utf-8")
    assert "did you mean text8?" in refuse("recipes text9")


def test_a_recipe_is_found_by_its_name_but_a_file_of_that_name_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuse: Callable[..., str]
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
