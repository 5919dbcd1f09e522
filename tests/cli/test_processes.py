"""Scripts and commands as a person starts, pastes, interrupts and serves them: other processes, in
other folders.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from cli.conftest import Call
from gpt.checkpoint import verify_checkpoint
from gpt.cli.commands import COMMANDS
from patience import PATIENCE
from server_process import serve_process
from tiny import CORPUS

ROOT = Path(__file__).resolve().parents[2]


def start(*words: str, cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE, check=False, **options
    )


def shell(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return start("bash", "-c", command, cwd=cwd)


def script(name: str) -> str:
    return shlex.join([sys.executable, str(ROOT / "scripts" / f"{name}.py")])


def test_help_and_mistakes_import_neither_torch_nor_matplotlib(tmp_path: Path) -> None:
    """Its OpenMP library reads the environment when it is loaded, which the command sets first."""
    views = ("shapes", "attention", "lens", "params", "flops", "memory")
    configs = shlex.quote(str(ROOT / "configs"))
    commands = [
        *(f"gpt.cli.{command.file} --help" for command in COMMANDS.values()),
        *(f"gpt.cli.explain {view} --help" for view in views),
        f"gpt.cli.train --config {configs}/quickstart.yaml --print-config",
        "gpt.cli.explain attention --prompt It --head 1",
        "gpt.cli.explain lens --prompt It --top 0",
        "gpt.cli.explain shapes --batch 0",
        *(
            f"gpt.cli.explain {view} --published gpt2 --config a.yaml"
            for view in ("params", "flops", "memory")
        ),
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
    result = start(sys.executable, "-c", code, *commands, cwd=tmp_path)
    assert result.returncode == 0, result.stderr


def test_closed_pipe_ends_quietly(trained: Path) -> None:
    result = shell(
        f"set -o pipefail; {script('sample')} --max-new-tokens 400 --prompt It | head -c 5", trained
    )
    assert result.returncode == 0, result.stderr
    assert len(result.stdout) == 5
    assert "Traceback" not in result.stderr
    assert "BrokenPipe" not in result.stderr


@pytest.mark.parametrize("streams", ["2>&1 | head -n 1", "<&- >&- 2>&-"])
def test_training_goes_on_without_a_reader_or_any_stream(
    streams: str, trained: Path, workplace: Path
) -> None:
    result = shell(f"{script('train')} --config tiny.yaml {streams}", workplace)
    assert result.returncode == 0
    verify_checkpoint(workplace / "runs/tiny/checkpoints/step-000006")
    assert (workplace / "runs/tiny/config.yaml").read_bytes() == (
        trained / "runs/tiny/config.yaml"
    ).read_bytes()


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("sample --backend quantum", 2, "error: argument --backend: "),
        (
            (
                "sample --prompt It --seed 1 --checkpoint "
                "runs/tiny/checkpoints/step-000006 > /dev/full"
            ),
            2,
            "error: cannot write the output: No space",
        ),
        ("sample --prompt - <&-", 2, "error: standard input is closed; there is nothing to read\n"),
        (
            "train --config tiny.yaml --print-config >&-",
            0,
            "warning: standard output is closed; the output is lost\n",
        ),
        ("train --config gone.yaml 2>/dev/full", 2, ""),
        ("train --config gone.yaml 2>&-", 2, ""),
    ],
)
def test_lost_streams_and_mistakes_are_one_line(
    command: str, code: int, said: str, trained: Path
) -> None:
    name, _, options = command.partition(" ")
    result = shell(f"{script(name)} {options}", trained)
    assert (result.returncode, result.stdout) == (code, "")
    # A busy machine also says that it is loading torch.
    told = re.sub(r"^loading torch.*\n", "", result.stderr, flags=re.MULTILINE)
    assert told.startswith(said)
    assert told.count("\n") == bool(said)


SMALLER = "train.max_steps=2 train.batch_size=2 train.teacher=null model.n_layer=1 run.device=cpu"


class Terminal:
    """In a folder with a difficult name, where the package is installed."""

    def __init__(self, folder: Path) -> None:
        program = folder / "bin" / "gpt"
        program.parent.mkdir(parents=True)
        program.write_text(
            f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m gpt "$@"\n', encoding="utf-8"
        )
        program.chmod(0o755)
        (folder / "my text.txt").write_text(CORPUS * 30, encoding="utf-8")
        path = os.pathsep.join([str(folder / "bin"), os.environ["PATH"]])
        self.place: dict[str, Any] = {
            "cwd": folder,
            "env": {**os.environ, "PYTHONPATH": str(ROOT), "PATH": path},
        }

    def paste(self, line: str, code: int = 0) -> str:
        """Run a line and return what it prints."""
        done = start("bash", "-c", line, **self.place)
        assert done.returncode == code, f"{line}\n{done.stderr}"
        return done.stdout + done.stderr


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    return Terminal(tmp_path / "été 1")


def after(words: str, printed: str) -> str:
    """Return the command that is printed after some words, up to the end of its line."""
    found = re.search(rf"{words}\s*(.*)$", printed, re.MULTILINE)
    assert found is not None, printed
    return found[1]


def test_printed_commands_lead_from_a_text_to_a_sample(terminal: Terminal) -> None:
    sample = after(
        "sample with:",
        terminal.paste(terminal.paste(f"gpt new 'my text.txt' {SMALLER}").splitlines()[0]),
    )
    assert "\n" in terminal.paste(sample)
    without = "import sys; sys.modules['gguf'] = None; from gpt.__main__ import main; main()"
    said = terminal.paste(
        f"{shlex.quote(sys.executable)} -c {shlex.quote(without)} export --to gguf --output x", 2
    )
    install = said.partition("package: ")[2].rstrip()
    # Pip itself reaches for the network.
    assert "Install Options" in terminal.paste(f"{install} --help")


def test_interrupted_training_goes_on_with_the_printed_command(terminal: Terminal) -> None:
    terminal.paste(f"gpt new 'my text.txt' --output 'long one.yaml' {SMALLER} train.log_interval=1")
    line = "exec gpt train --config 'long one.yaml' train.max_steps=100000"
    with subprocess.Popen(
        ["bash", "-c", line], stderr=subprocess.PIPE, text=True, **terminal.place
    ) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if "step" in line and "loss" in line)
        process.send_signal(signal.SIGINT)
        again = after("continue with:", process.stderr.read())
    assert again.endswith("--resume auto")
    assert "max_steps: 100000" in terminal.paste(f"{again} --print-config")


@contextmanager
def streaming(
    folder: Path, length: int, *options: str
) -> Iterator[tuple[subprocess.Popen[str], httpx2.Client, Iterator[str]]]:
    """Start a server of the runs in a folder.

    Yield its process, a client, and the lines of a text that has begun.
    """
    body = {"prompt": "It", "max_tokens": length, "stream": True}
    with (
        serve_process(folder, "--backend", "eager", *options) as (process, url),
        httpx2.Client(base_url=url, timeout=PATIENCE) as client,
        client.stream("POST", "/v1/completions", json=body) as stream,
    ):
        lines = stream.iter_lines()  # kept, since a generator that is dropped closes the connection
        next(lines)
        yield process, client, lines


def test_server_answers_as_sample_and_sigterm_ends_streams_whole(here: Path, run: Call) -> None:
    with streaming(here, 1000, "--drain-seconds", "600") as (process, client, lines):
        body = {"prompt": "It was", "max_tokens": 20, "seed": 3}
        text = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
        assert (
            run("sample --prompt 'It was' --max-new-tokens 20 --seed 3 --json").json["text"] == text
        )
        assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["tiny"]
        process.send_signal(signal.SIGTERM)
        *_, last, done = (line.removeprefix("data: ") for line in lines if line)
        assert done == "[DONE]"
        assert json.loads(last)["choices"][0]["finish_reason"] == "length"
        assert process.wait(PATIENCE) == 143


def test_access_log_has_a_line_for_each_request(trained: Path) -> None:
    with serve_process(trained, "--access-log", stdout=subprocess.PIPE) as (process, url):
        assert httpx2.get(f"{url}/version").status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 143
        assert process.stdout is not None
        line = r'[-0-9]+ [0-9:,]+ 127.0.0.1:[0-9]+ "GET /version HTTP/1.1" 200 OK\n'
        assert re.fullmatch(line, process.stdout.read())


@pytest.mark.parametrize(("seconds", "interrupts"), [("0.1", 1), ("600", 2)])
def test_deadline_or_a_second_ctrl_c_ends_the_server_silently(
    seconds: str, interrupts: int, trained: Path
) -> None:
    endless = 4_000_000
    with streaming(trained, endless, "--max-tokens", str(endless), "--drain-seconds", seconds) as (
        process,
        _,
        _,
    ):
        for _ in range(interrupts):
            process.send_signal(signal.SIGINT)
            time.sleep(0.2)
        assert process.wait(PATIENCE) == 130
        assert process.stderr is not None
        said = process.stderr.read()
        assert "Traceback" not in said
        assert "ERROR" not in said


HANGS = """
import time

from gpt.extras.serving.http import models
from gpt.model.layers import ACTIVATIONS

find, read = models.find_checkpoint, models.Models._read


def find_slowly(path, runs):
    if path is not None and path.name == "hangs":
        time.sleep(600)
    return find(path, runs)


def read_slowly(served, name):
    if name == "loads":
        time.sleep(600)
    return read(served, name)


models.find_checkpoint, models.Models._read = find_slowly, read_slowly
ACTIVATIONS["same"] = lambda x: x  # a plugin has to add something
"""
"""A plugin that makes of the disk one that hangs, where a run is looked for or loaded."""


@pytest.mark.parametrize("name", ["hangs", "loads"])
def test_server_ends_whatever_hangs(name: str, trained: Path, tmp_path: Path) -> None:
    for each in (name, "tiny"):
        shutil.copytree(trained / "runs" / "tiny", tmp_path / "runs" / each)
    (tmp_path / "runs" / "tiny" / "last.json").touch()
    (tmp_path / "hangs.py").write_text(HANGS, encoding="utf-8")
    with serve_process(tmp_path, "--plugin", "hangs.py", "--drain-seconds", "0.1") as (
        process,
        url,
    ):
        with suppress(httpx2.ReadTimeout):
            httpx2.post(f"{url}/v1/completions", json={"model": name, "prompt": "It"}, timeout=1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 143
