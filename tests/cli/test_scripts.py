"""The scripts as a person starts them: another process, another folder."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gpt.checkpoint import verify_checkpoint
from gpt.cli.commands import COMMANDS
from patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "scripts").glob("*.py"))


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def shell(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command], cwd=cwd, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def script(name: str) -> str:
    return shlex.join([sys.executable, str(ROOT / "scripts" / f"{name}.py")])


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_help_works_from_any_folder_and_ends_with_an_example(path: Path, tmp_path: Path) -> None:
    result = run("-I", str(path), "--help", cwd=tmp_path)
    assert result.returncode == 0
    assert "example:" in result.stdout


def test_help_and_mistakes_wait_neither_for_torch_nor_for_matplotlib(tmp_path: Path) -> None:
    """Its OpenMP library reads the environment when it is loaded, which the command sets first."""
    views = ("shapes", "attention", "lens", "params", "flops", "memory")
    configs = shlex.quote(str(ROOT / "configs"))
    commands = [
        *(f"gpt.cli.{path.stem} --help" for path in SCRIPTS if path.stem != "bench"),
        *(f"gpt.cli.explain {view} --help" for view in views),
        f"gpt.cli.train --config {configs}/quickstart.yaml --print-config",
        "gpt.cli.explain attention --prompt It --head 1",
        "gpt.cli.explain lens --prompt It --top 0",
        "gpt.cli.explain shapes --batch 0",
        *(f"gpt.cli.explain {view} --published gpt2 --config a.yaml" for view in ("params", "flops", "memory")),
        f"gpt.cli.explain flops --config {configs}/shakespeare.yaml --batch 0",
        f"gpt.cli.explain memory --config {configs}/shakespeare.yaml --seq 0",
    ]
    code = (
        f"import shlex, sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from importlib import import_module\n"
        "for command in sys.argv[1:]:\n"
        "    module, *arguments = shlex.split(command)\n"
        "    try: import_module(module).main(arguments)\n"
        "    except SystemExit: pass\n"
        "    assert not {'torch', 'matplotlib'} & sys.modules.keys(), command\n"
    )
    result = run("-c", code, *commands, cwd=tmp_path)
    assert result.returncode == 0, result.stderr


def test_every_script_but_the_benchmarks_is_a_command_too() -> None:
    scripts = {path.stem for path in SCRIPTS} - {"bench"}
    assert {command.file for command in COMMANDS.values()} == scripts


def test_a_closed_pipe_ends_quietly(trained: Path) -> None:
    command = f"{script('sample')} --max-new-tokens 400 --prompt It | head -c 5"
    result = shell(f"set -o pipefail; {command}", trained)
    assert result.returncode == 0, result.stderr
    assert len(result.stdout) == 5
    assert "Traceback" not in result.stderr
    assert "BrokenPipe" not in result.stderr


def test_a_reader_who_went_away_does_not_end_a_training_run(workplace: Path) -> None:
    command = f"{script('train')} --config tiny.yaml 2>&1 | head -n 1"
    assert shell(command, workplace).returncode == 0
    assert (workplace / "runs/tiny/checkpoints/step-000006").is_dir()


def test_a_wrong_option_is_one_line(tmp_path: Path) -> None:
    result = run(str(ROOT / "scripts/sample.py"), "--backend", "quantum", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


def test_a_full_disk_is_one_line(trained: Path) -> None:
    result = shell(f"{script('sample')} --checkpoint runs/tiny --prompt It --seed 1 > /dev/full", trained)
    assert result.returncode == 2
    said = result.stderr.removeprefix("loading torch\n")  # which a busy machine says
    assert said == "error: cannot write the output: No space left on device\n"


def test_a_run_goes_on_where_every_standard_stream_is_closed(trained: Path, workplace: Path) -> None:
    result = shell(f"{script('train')} --config tiny.yaml <&- >&- 2>&-", workplace)
    assert result.returncode == 0
    verify_checkpoint(workplace / "runs/tiny/checkpoints/step-000006")
    assert (workplace / "runs/tiny/config.yaml").read_bytes() == (trained / "runs/tiny/config.yaml").read_bytes()


def test_a_closed_output_is_said(trained: Path) -> None:
    result = shell(f"{script('train')} --config tiny.yaml --print-config >&-", trained)
    assert (result.returncode, result.stdout) == (0, "")
    assert result.stderr == "warning: standard output is closed; the output is lost\n"


def test_a_closed_input_is_one_line(trained: Path) -> None:
    result = shell(f"{script('sample')} --prompt - <&-", trained)
    assert result.returncode == 2
    assert result.stderr == "error: standard input is closed; there is nothing to read\n"


@pytest.mark.parametrize("stream", ["2>/dev/full", "2>&-"])
def test_a_mistake_that_cannot_be_said_exits_with_2_all_the_same(stream: str, trained: Path) -> None:
    result = shell(f"{script('train')} --config gone.yaml {stream}", trained)
    assert (result.returncode, result.stdout) == (2, "")
