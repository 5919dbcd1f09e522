"""`make cuda`: tests and measurements that need a GPU, in at most 33 minutes on one card.

Each stage is a few commands, the same that measure a CPU, each a process of its own, so that a crash on the device ends
only one. What they print goes into `cuda.md` of a folder, their JSON into `cuda_<stage>_<number>.json`.
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
NEEDED = ("torch", "numpy", "pydantic", "yaml", "safetensors", "requests", "tqdm", "tensorboard")
MINUTES = {"tests": 5, "decoding": 8, "recipes": 8, "race": 9, "step": 3}
"""Every stage in order, and the time limit of all its commands."""
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib", "-o", "timeout=0")
"""Of this project's own options, only what any pytest knows: another interpreter may lack the plugins."""
Commands = Mapping[str, Sequence[Sequence[str]]]


def commands_of(nanogpt: Path | None) -> Commands:
    """Return the arguments of Python for every command, by stage."""

    def bench(kind: str, config: str = "", *options: str) -> list[str]:
        place = ["--config", f"configs/{config}.yaml", "run.device=cuda"] if config else ["--device", "cuda"]
        return ["scripts/bench.py", *kind.split(), *place, *options]

    peer = [] if nanogpt is None else ["--nanogpt", str(nanogpt.resolve())]
    shapes = ("--shapes", "6/6/384", "12/12/768", "--batch", "1", "8", "64", "512", "--rounds", "3")
    hf = ["--hf"] if find_spec("transformers") else []
    baby = "shakespeare_baby_gpt"
    return {
        "tests": [[*PYTEST, "tests/cuda"]],
        "decoding": [bench("decode", "", "--variants", "eager", *shapes, *hf)],
        "recipes": [bench("train recipe", "shakespeare", "--seeds", "1", "2", "3")],
        "race": [bench("train race" if peer else "train recipe", baby, "--seeds", "1", *peer)],
        "step": [bench("train step", baby, *peer)],
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stages; return 0, 1 if one failed, 2 on a user's mistake or without a GPU."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda", description=__doc__)
    parser.add_argument("--stages", default=",".join(MINUTES), metavar="A,B,...", help=f"of {', '.join(MINUTES)}")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="FOLDER")
    parser.add_argument("--nanogpt", type=Path, metavar="PATH", help="a checkout; without it there is no race")
    arguments = parser.parse_args(argv)
    names = arguments.stages.split(",")
    if mistake := _mistake(names, arguments.nanogpt):
        print(f"error: {mistake}", file=sys.stderr)
        return 2
    arguments.output.mkdir(parents=True, exist_ok=True)
    return run_all(commands_of(arguments.nanogpt), names, arguments.output.resolve())


def _mistake(names: Sequence[str], nanogpt: Path | None) -> str:
    """Return what cannot work, before anything is measured; empty if all can."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        return f"{sys.executable} lacks {', '.join(missing)}; install them for it"
    if unknown := [name for name in names if name not in MINUTES]:
        return f"--stages: {unknown[0]!r} is none of {', '.join(MINUTES)}"
    lacking = [] if nanogpt is None else [name for name in NANOGPT_FILES if not (nanogpt / name).is_file()]
    if lacking:
        return f"--nanogpt {nanogpt} is not a checkout of nanoGPT: it has no {lacking[0]}"
    import torch

    if torch.cuda.is_available():
        return ""
    return f"torch {torch.__version__} of {sys.executable} sees no CUDA device, and this needs one"


def run_all(commands: Commands, names: Sequence[str], output: Path) -> int:
    """Run stages, of which those that fail or take too long are noted, and write and print `cuda.md`."""
    parts, good = ["# On a CUDA device"], True
    for name in MINUTES:
        parts.append(f"## {name}")
        if name not in names:
            parts.append("Not run.")
            continue
        for number, command in enumerate(commands[name], 1):
            print(f"{name}: {' '.join(command)}", file=sys.stderr, flush=True)
            json = ["--json", str(output / f"cuda_{name}_{number}.json")] if "bench.py" in command[0] else []
            printed, problem = run_command([*command, *json], 60 * MINUTES[name] / len(commands[name]))
            parts += [f"`{' '.join(command)}`", f"```\n{printed.strip()}\n```"]
            parts += [f"**Failed:** {problem}"] if problem else []
            good &= not problem
    text = "\n\n".join(parts) + "\n"
    (output / "cuda.md").write_text(text, encoding="utf-8")
    print(text)
    return 0 if good else 1


def run_command(command: Sequence[str], limit: float) -> tuple[str, str]:
    """Run Python with some arguments; return what it printed but for JSON, and why it failed in one line, if it did."""
    line = [sys.executable, *command]
    try:
        done = subprocess.run(line, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired as error:
        return (error.output or b"").decode(errors="replace"), f"it took more than {limit / 60:.1f} minutes"
    sys.stderr.write(done.stderr)
    printed = "\n".join(line for line in done.stdout.splitlines() if not line.startswith("{"))
    return printed, "" if done.returncode == 0 else failure(line, done.returncode, done.stderr)


if __name__ == "__main__":
    sys.exit(main())
