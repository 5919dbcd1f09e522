"""`make cuda`: tests and measurements that need a GPU, in at most 8 minutes on one card.

Each stage is a few commands, the same that measure a CPU. Each command is a process of its own, so
that a crash on the device ends only one. Their output is written to `cuda.md` in a folder, their
JSON to `cuda_<stage>_<number>.json`.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from benchmarks.processes import ROOT, environment, failure
from benchmarks.training_runs import NANOGPT_FILES

RESULTS = ROOT / "build" / "cuda"
REQUIREMENTS = (
    "torch",
    "numpy",
    "pydantic",
    "yaml",
    "safetensors",
    "requests",
    "tqdm",
    "tensorboard",
)
MINUTES = {"tests": 1.0, "decoding": 3.3, "race": 2.1, "recipes": 0.7, "commands": 0.9}
"""Every stage in order, and the time limit in minutes of all its commands together."""
ON_SHAKESPEARE = ("race", "recipes")
"""Stages that train on Tiny Shakespeare, which a machine without a network may lack."""
RECIPE = "shakespeare_modern"
SHAPES = ("4/4/128", "6/6/384", "12/12/768")
"""Layers, heads and width of models of 0.8M, 10.65M and 86M parameters."""
NANOGPT_BEST_STEP = 1750
"""The step at which nanoGPT estimated its lowest loss, 1.460, on an H200 (27 November 2026)."""
PYTEST = (
    *("-m", "pytest", "-q", "-p", "no:cacheprovider"),
    *("-o", "addopts=--import-mode=importlib", "-o", "timeout=0"),
)
"""Only options that any pytest has: another interpreter may lack the plugins that this project's
options are for.
"""
Commands = Mapping[str, Sequence[Sequence[str]]]


def commands_of(nanogpt: Path | None, output: Path) -> Commands:
    """Return the arguments of Python for every command, by stage."""
    return {
        "tests": [[*PYTEST, "tests/cuda"]],
        "decoding": [_decoding(shape) for shape in SHAPES],
        "race": [_race(nanogpt)],
        "recipes": [[*_train("recipe"), "--seeds", "2", "3"]],
        "commands": _user_commands(output),
    }


def _decoding(shape: str) -> list[str]:
    """Return the command that decodes by graphs, by plain launches, and in gpt-fast's way."""
    return [
        *("scripts/bench.py", "decode", "--device", "cuda", "--shapes", shape),
        *("--variants", "graph,graph-bf16,eager", "--compiled", "--batch", "1", "32", "64"),
        *("--tokens", "200", "--rounds", "2"),
    ]


def _race(nanogpt: Path | None) -> list[str]:
    """Return the command that trains by one seed, beside nanoGPT if there is a checkout.

    nanoGPT ends after its best step and the evaluation that finds it, since it only gets worse.
    """
    if nanogpt is None:
        return [*_train("recipe"), "--seeds", "1"]
    steps = str(NANOGPT_BEST_STEP + 1)
    peer = ("--nanogpt", str(nanogpt.resolve()), "--peer-steps", steps)
    return [*_train("race"), "--seeds", "1", *peer]


def _train(kind: str) -> list[str]:
    config = f"configs/{RECIPE}.yaml"
    return ["scripts/bench.py", "train", kind, "--config", config, "run.device=cuda"]


def _user_commands(output: Path) -> list[list[str]]:
    """Return commands as a user types them: a short training, texts of it, and a server's load.

    The training reads Python's own documentation, which every machine has.
    """
    runs = str(output / "runs")
    steps = ("train.max_steps=60", "train.eval_interval=60", "optim.decay_steps=30")
    train = ["scripts/train.py", "--config", "configs/quickstart.yaml", "run.device=cuda"]
    text = ("--max-new-tokens", "100", "--seed", "1", "--stats")
    sample = ["scripts/sample.py", "--runs", runs, "--checkpoint", "quickstart", *text]
    load = ("--requests", "50", "--rounds", "1", "--rates", "0")
    return [
        [*train, f"run.dir={runs}", "--resume", "auto", *steps],
        [*sample, "--device", "cuda", "--num-samples", "3"],
        [*sample, "--device", "auto", "--num-samples", "3"],
        ["scripts/bench.py", "serve", "--device", "cuda", *load],
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stages; return 0, 1 if one failed, 2 on a user's mistake or without a GPU."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda", description=__doc__)
    parser.add_argument(
        "--stages",
        default=",".join(MINUTES),
        metavar="A,B,...",
        help=f"of {', '.join(MINUTES)}",
    )
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="FOLDER")
    parser.add_argument(
        "--nanogpt", type=Path, metavar="PATH", help="a checkout; without it there is no race"
    )
    arguments = parser.parse_args(argv)
    names = arguments.stages.split(",")
    mistake = _mistake(names, arguments.nanogpt)
    if mistake:
        print(f"error: {mistake}", file=sys.stderr)
        return 2
    output = arguments.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    skipped = {name: "Not run." for name in MINUTES if name not in names}
    problem = why_no_text()
    if problem:
        skipped = dict.fromkeys(ON_SHAKESPEARE, f"Not run: {problem}") | skipped
    return run_all(commands_of(arguments.nanogpt, output), skipped, output)


def why_no_text() -> str:
    """Return why Tiny Shakespeare cannot be trained on here; empty if it can.

    It is downloaded now if it can be, so that no stage waits for it.
    """
    from gpt.config.sources import load_config
    from gpt.data.preparation import prepare
    from gpt.system.environment import read_settings
    from gpt.system.errors import DataError
    from gpt.system.progress import silent

    config = load_config(ROOT / "configs" / f"{RECIPE}.yaml", ()).config
    try:
        prepare(config.data, read_settings(), silent)
    except DataError as error:
        return str(error)
    return ""


def _mistake(names: Sequence[str], nanogpt: Path | None) -> str:
    """Return why the stages cannot run, before anything is measured; empty if they can."""
    missing = [name for name in REQUIREMENTS if find_spec(name) is None]
    if missing:
        return f"{sys.executable} lacks {', '.join(missing)}; install them for it"
    for name in names:
        if name not in MINUTES:
            return f"--stages: {name!r} is none of {', '.join(MINUTES)}"
    if nanogpt is not None:
        for file in NANOGPT_FILES:
            if not (nanogpt / file).is_file():
                return f"--nanogpt {nanogpt} is not a checkout of nanoGPT: it has no {file}"
    import torch

    if torch.cuda.is_available():
        return ""
    return f"torch {torch.__version__} of {sys.executable} sees no CUDA device, and this needs one"


def run_all(commands: Commands, skipped: Mapping[str, str], output: Path) -> int:
    """Run stages, and write and print `cuda.md`, in which those that fail or take too long are
    noted.

    Return 0, or 1 if one has failed.

    Args:
        skipped: what is written in place of stages that do not run.
    """
    paragraphs = ["# On a CUDA device"]
    has_failed = False
    for name in MINUTES:
        paragraphs.append(f"## {name}")
        if name in skipped:
            paragraphs.append(skipped[name])
            continue
        deadline = time.monotonic() + 60 * MINUTES[name]
        for number, command in enumerate(commands[name], 1):
            shown = " ".join(command)
            print(f"{name}: {shown}", file=sys.stderr, flush=True)
            options = []
            if "bench.py" in command[0]:
                options = ["--json", str(output / f"cuda_{name}_{number}.json")]
            printed, problem = run_command([*command, *options], deadline - time.monotonic())
            paragraphs += [f"`{shown}`", f"```\n{printed.strip()}\n```"]
            if problem:
                paragraphs.append(f"**Failed:** {problem}")
                has_failed = True
    text = "\n\n".join(paragraphs) + "\n"
    (output / "cuda.md").write_text(text, encoding="utf-8")
    print(text)
    return 1 if has_failed else 0


def run_command(command: Sequence[str], limit: float) -> tuple[str, str]:
    """Run Python with some arguments for at most `limit` seconds, of which none may be left.

    Return its output without lines of JSON, and one line that says why it failed, empty if it did
    not. The output of a command that a user types includes what it reports.
    """
    full_command = [sys.executable, *command]
    process = subprocess.Popen(
        full_command,
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, log = process.communicate(timeout=limit)
        problem = failure(full_command, process.returncode, log) if process.returncode else ""
    except subprocess.TimeoutExpired:
        # The processes that it has started would keep the device.
        os.killpg(process.pid, signal.SIGKILL)
        output, log = process.communicate()
        problem = "the time of its stage is over"
    sys.stderr.write(log)
    printed = "\n".join(line for line in output.splitlines() if not line.startswith("{"))
    is_measurement = "bench.py" in command[0]
    return (printed if is_measurement else f"{printed}\n{log}"), problem


if __name__ == "__main__":
    sys.exit(main())
