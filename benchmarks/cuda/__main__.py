"""`make cuda`: tests and measurements that need a GPU, in at most 40 minutes on one card.

Writes `cuda_<stage>.json` and `cuda.md` into a folder. Stages can be run in several calls: the table shows all results
in the folder.
"""

import argparse
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.cuda.workload import Workload

NEEDED = ("torch", "numpy", "pydantic", "yaml", "safetensors", "requests", "tqdm", "tensorboard")
RESULTS = Path(__file__).resolve().parents[1] / "results"


def main() -> int:
    """Run the stages; return 0, 1 if one failed, 2 on a user's mistake or without a GPU."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        print(f"error: {sys.executable} lacks {', '.join(missing)}; install them for it", file=sys.stderr)
        return 2
    from gpt.cli.command import run_command

    return run_command(lambda: _run(_parse()))


def _parse() -> argparse.Namespace:
    from benchmarks.cuda.runner import MINUTES
    from benchmarks.cuda.workload import WORKLOADS

    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda", description=__doc__)
    parser.add_argument("--stages", default=",".join(MINUTES), metavar="A,B,...", help=f"of {', '.join(MINUTES)}")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="FOLDER")
    parser.add_argument("--nanogpt", type=Path, metavar="PATH", help="a checkout; without it there is no race")
    parser.add_argument("--size", choices=WORKLOADS, default="full", help="tiny: try every stage on the CPU")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)  # this process is the stage's own
    return parser.parse_args()


def _run(arguments: argparse.Namespace) -> int:
    from benchmarks.cuda.runner import MINUTES, run_all, run_stage
    from benchmarks.cuda.stage_result import render
    from benchmarks.cuda.workload import WORKLOADS

    workload = replace(WORKLOADS[arguments.size], nanogpt=arguments.nanogpt)
    names = arguments.stages.split(",")
    if arguments.inside:
        return 0 if run_stage(names[0], workload, arguments.output) else 1
    _check(arguments, names, workload)
    arguments.output.mkdir(parents=True, exist_ok=True)

    def command(name: str) -> list[str]:
        options = ["--size", arguments.size, "--output", str(arguments.output.resolve()), "--inside"]
        peer = ["--nanogpt", str(arguments.nanogpt.resolve())] if arguments.nanogpt else []
        return [sys.executable, "-m", "benchmarks.cuda", "--stages", name, *options, *peer]

    good = run_all(names, command, workload.device, arguments.output)
    table = render(arguments.output, list(MINUTES))
    (arguments.output / "cuda.md").write_text(table, encoding="utf-8")
    print(table)
    return 0 if good else 1


def _check(arguments: argparse.Namespace, names: list[str], workload: "Workload") -> None:
    """Refuse what cannot work before anything is measured.

    Raises:
        GPTError: a stage is unknown, or GPU, checkout or corpus are missing.
    """
    import torch

    from benchmarks.cli_options import checkout
    from benchmarks.cuda.runner import MINUTES
    from benchmarks.cuda.training_runs import open_data
    from benchmarks.training_runs import NANOGPT_FILES
    from gpt.errors import ConfigError, DeviceError

    unknown = [name for name in names if name not in MINUTES]
    if unknown:
        raise ConfigError(f"--stages: {unknown[0]!r} is none of {', '.join(MINUTES)}")
    if workload.device == "cuda" and not torch.cuda.is_available():
        raise DeviceError(f"torch {torch.__version__} of {sys.executable} sees no CUDA device, and this needs one")
    if arguments.nanogpt is not None:
        try:
            checkout(arguments.nanogpt, NANOGPT_FILES)
        except argparse.ArgumentTypeError as error:
            raise ConfigError(f"--nanogpt {error}") from None
    open_data(workload)


if __name__ == "__main__":
    sys.exit(main())
