"""One of two processes that train together, of which the second puts a NaN into a step: `FOLDER FULL`."""

import json
import math
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

from drills.numbers_cases import BAD_STEP, Case, Spoiler
from gpt.distributed import World, joined
from gpt.environment import read_launch
from gpt.errors import NonFiniteError
from training.sessions import quick_beginnings, start_session

ALL = tuple(product(("ddp", "fsdp"), ("adamw", "muon"), ("stop", "skip"), ("loss", "gradient")))
FEW = (("ddp", "adamw", "stop", "gradient"), ("ddp", "adamw", "skip", "loss"))


def attack(folder: Path, world: World, method: str, case: Case) -> dict[str, bool]:
    """Train, and return what holds in this process."""
    trainer = start_session(folder, *case.overrides, f"run.parallel={method}", world=world)
    spoiler = Spoiler(trainer, case if world.rank == 1 else replace(case, place="nowhere"))
    stopped = ""
    try:
        trainer.run()
    except NonFiniteError as error:
        stopped = str(error)
    file = trainer.run_folder.incidents
    found = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
    windows = [(incident["step"], len(incident["windows"])) for incident in found]
    sequences = trainer.config.train.batch_size * trainer.config.train.grad_accum_steps
    return {
        "what the step left": spoiler.is_unchanged,
        "how it ended": (f"step {BAD_STEP}" in stopped) == (case.mode == "stop"),
        "the count": trainer.watch.statistics.skipped == 1,
        "the incident": not world.is_main or windows == [(BAD_STEP, sequences)],
    }


def main(folder: Path, full: bool) -> None:
    """Do all pairs, and write what holds."""
    facts = {}
    with quick_beginnings(), joined(read_launch()) as world:
        for method, optimizer, mode, place in ALL if full else FEW:
            if method == "fsdp" and place == "gradient":  # its gradients are of shards, which no hook sees
                continue
            case = Case("torch", "float32", optimizer, 2, False, mode, place, math.nan)
            name = f"{method}-{optimizer}-{mode}-{place}"
            facts[name] = attack(folder / name, world, method, case)
        (folder / f"facts-{world.rank}.json").write_text(json.dumps(facts), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] == "1")
