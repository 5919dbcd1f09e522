"""Execute the blocks of a page in a real shell whose programs only note how they are called."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FOREIGN = ("curl", "lm_eval", "pip", "python", "python3", "scontrol", "srun", "vllm")
"""Programs of others, which need what a test has not: a network, a GPU, another installation."""
ON_PATH = "path"
"""The folder that the shell looks into first."""
INSTALLED = {
    ".venv/bin": ("python", "gpt", "torchrun"),
    "gpt-venv/bin": ("pip", "gpt"),
    ON_PATH: (*FOREIGN, "gpt", "make"),
}
"""Programs that the pages call, by the folder in which they expect them."""
NOTED = "called.jsonl"
"""The file with a line for each call."""
SLURM = {"SLURM_NNODES": "2", "SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "node[0-1]"}
"""Variables that SLURM sets for a job."""
_NOTE = """#!{python}
import json, sys
with open({notes!r}, "a") as file:
    file.write(json.dumps([{name!r}, *sys.argv[1:]]) + "\\n")
"""


@dataclass(frozen=True)
class Called:
    """A program as a shell called it."""

    program: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join((self.program, *self.words))


def install(place: Path) -> None:
    """Put programs that note their calls where the pages expect real ones."""
    for folder, names in INSTALLED.items():
        (place / folder).mkdir(parents=True)
        for name in names:
            text = _NOTE.format(python=sys.executable, notes=str(place / NOTED), name=name)
            program = place / folder / name
            program.write_text(text, encoding="utf-8")
            program.chmod(0o755)


def execute(block: str, place: Path) -> Sequence[Called]:
    """Execute a block as it is printed, and return the programs that it called."""
    notes = place / NOTED
    notes.unlink(missing_ok=True)
    path = os.pathsep.join([str(place / ON_PATH), os.environ["PATH"]])
    environment = {**os.environ, **SLURM, "PATH": path}
    # It stops at the first command that fails, in a pipe too, and at an unset variable.
    shell = ["bash", "-euo", "pipefail", "-c", block]
    done = subprocess.run(shell, cwd=place, env=environment, check=False)
    assert done.returncode == 0, block
    lines = notes.read_text(encoding="utf-8").splitlines() if notes.exists() else []
    calls = [json.loads(line) for line in lines]
    return [Called(program, tuple(words)) for program, *words in calls]
