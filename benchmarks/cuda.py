"""`make cuda`: tests and measurements that need a GPU, in at most 33 minutes on one card.

Each stage is a few commands, the same that measure a CPU. Each command is a process of its own, so
that a crash on the device ends only one. Their output is written to `cuda.md` in a folder, their
JSON to `cuda_<stage>_<number>.json`.
"""

import argparse
import subprocess
import sys
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
MINUTES = {"tests": 5, "decoding": 8, "recipes": 8, "race": 9, "step": 3}
"""Every stage in order, and the time limit in minutes of all its commands together."""
PYTEST = (
    *("-m", "pytest", "-q", "-p", "no:cacheprovider"),
    *("-o", "addopts=--import-mode=importlib", "-o", "timeout=0"),
)
"""Only options that any pytest has: another interpreter may lack the plugins that this project's
options are for.
"""
Commands = Mapping[str, Sequence[Sequence[str]]]


def commands_of(nanogpt: Path | None) -> Commands:
    """Return the arguments of Python for every command, by stage."""

    peer = [] if nanogpt is None else ["--nanogpt", str(nanogpt.resolve())]
    hf = ["--hf"] if find_spec("transformers") else []
    sizes = ["--shapes", "6/6/384", "12/12/768", "--batch", "1", "8", "64", "512", "--rounds", "3"]
    decoding = ["scripts/bench.py", "decode", "--device", "cuda", "--variants", "eager"]
    race = "race" if peer else "recipe"
    baby_gpt = "shakespeare_baby_gpt"
    return {
        "tests": [[*PYTEST, "tests/cuda"]],
        "decoding": [[*decoding, *sizes, *hf]],
        "recipes": [[*_bench_train("recipe", "shakespeare_modern"), "--seeds", "1", "2", "3"]],
        "race": [[*_bench_train(race, baby_gpt), "--seeds", "1", *peer]],
        "step": [[*_bench_train("step", baby_gpt), *peer]],
    }


def _bench_train(kind: str, config: str) -> list[str]:
    return [
        *("scripts/bench.py", "train", kind),
        *("--config", f"configs/{config}.yaml", "run.device=cuda"),
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
    arguments.output.mkdir(parents=True, exist_ok=True)
    return run_all(commands_of(arguments.nanogpt), names, arguments.output.resolve())


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


def run_all(commands: Commands, names: Sequence[str], output: Path) -> int:
    """Run stages, and write and print `cuda.md`, in which those that fail or take too long are
    noted.

    Return 0, or 1 if one has failed.
    """
    paragraphs = ["# On a CUDA device"]
    has_failed = False
    for name in MINUTES:
        paragraphs.append(f"## {name}")
        if name not in names:
            paragraphs.append("Not run.")
            continue
        limit = 60 * MINUTES[name] / len(commands[name])
        for number, command in enumerate(commands[name], 1):
            shown = " ".join(command)
            print(f"{name}: {shown}", file=sys.stderr, flush=True)
            options = []
            if "bench.py" in command[0]:
                options = ["--json", str(output / f"cuda_{name}_{number}.json")]
            printed, problem = run_command([*command, *options], limit)
            paragraphs += [f"`{shown}`", f"```\n{printed.strip()}\n```"]
            if problem:
                paragraphs.append(f"**Failed:** {problem}")
                has_failed = True
    text = "\n\n".join(paragraphs) + "\n"
    (output / "cuda.md").write_text(text, encoding="utf-8")
    print(text)
    return 1 if has_failed else 0


def run_command(command: Sequence[str], limit: float) -> tuple[str, str]:
    """Run Python with some arguments for at most `limit` seconds.

    Return its output without lines of JSON, and one line that says why it failed, empty if it did
    not.
    """
    full_command = [sys.executable, *command]
    try:
        done = subprocess.run(
            full_command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=limit
        )
    except subprocess.TimeoutExpired as error:
        output = error.output or b""
        return output.decode(errors="replace"), f"it took more than {limit / 60:.1f} minutes"
    sys.stderr.write(done.stderr)
    printed = "\n".join(line for line in done.stdout.splitlines() if not line.startswith("{"))
    if done.returncode == 0:
        return printed, ""
    return printed, failure(full_command, done.returncode, done.stderr)


if __name__ == "__main__":
    sys.exit(main())
