"""Input that nobody expects, everywhere it can be given: an error in one line, and never a traceback or a hang."""

import contextlib
import json
import random
import signal
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from drills.frame import Drill, Tally
from drills.fuzz_commands import (
    COMMANDS,
    attack_command,
    attack_import,
    attack_prompt,
    attack_session,
    nothing_slow,
    write_inputs,
)
from drills.fuzz_files import Shards, attack_outcomes, attack_space, attack_tokenizer, spoil_checkpoint
from drills.fuzz_guided import guide
from drills.fuzz_properties import PROPERTIES
from drills.fuzz_server import ask_server
from drills.nasty import mutate_bytes, text, value
from drills.tiny_run import train_tiny
from gpt.config import Config, dump_config, parse_config
from gpt.errors import GPTError
from tiny import TINY

FIGURES = ("configurations", "values", "command lines", "prompts", "sessions", "tokenizers", "imports")
FIGURES += ("shards", "sweeps", "checkpoints", "requests")
FIGURES += ("texts through tokenizers, YAML and stop strings", "guided by coverage", "kinds of them not possible here")
FIGURES += ("tracebacks", "hangs")
PATIENCE, HANG = 3.0, 20.0
"""Seconds after which Ctrl-C comes, as from somebody who has waited enough; and after which something hangs."""


@dataclass(frozen=True)
class Target:
    """Something that takes input.

    Attributes:
        name: its figure.
        counts: executions at the small and at full scale.
        attack: gives it one input, made by chance.
        may_go_on: it may do what was asked of it until Ctrl-C, as a training does.
    """

    name: str
    counts: tuple[int, int]
    attack: Callable[[random.Random], None]
    may_go_on: bool = False


class HangError(Exception):
    """Something did not end, not even by Ctrl-C."""


@contextlib.contextmanager
def watchdog(may_go_on: bool) -> Iterator[None]:
    """Fail when something takes long: at once, or, if it may go on until Ctrl-C, when that does not help."""
    alarms = iter((KeyboardInterrupt, HangError) if may_go_on else (HangError,))

    def ring(number: int, frame: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, HANG)
        raise next(alarms, HangError)("it hangs")

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, PATIENCE if may_go_on else HANG)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def attack_yaml(chance: random.Random) -> None:
    """Parse a damaged configuration, and read what can be read again as it is written."""
    content = dump_config(Config()) if chance.random() < 0.5 else TINY
    damaged = mutate_bytes(content.encode(), chance).decode("utf-8", errors="replace")
    with contextlib.suppress(GPTError):
        config = parse_config(damaged, "fuzz", [text(chance)] if chance.random() < 0.3 else [])
        assert parse_config(dump_config(config), "written") == config


def attack_values(chance: random.Random) -> None:
    """Parse a configuration with a value where another belongs."""
    key = chance.choice(list(Config().leaves()))
    written = json.dumps(value(chance)) if chance.random() < 0.5 else text(chance)
    with contextlib.suppress(GPTError):
        parse_config("", "fuzz", [f"{key}={written}"])


def targets(folder: Path) -> list[Target]:
    """Return everything that is attacked; the folder has a trained run."""
    shards = Shards(folder / "sharded")
    run, spoiled = folder / "runs" / "tiny", folder / "spoiled"
    return [
        Target("configurations", (150, 3000), attack_yaml),
        Target("values", (100, 3000), attack_values),
        *(Target("command lines", (4, 30), partial(attack_command, command), True) for command in COMMANDS),
        Target("prompts", (10, 300), attack_prompt, True),
        Target("sessions", (5, 100), attack_session, True),
        Target("tokenizers", (40, 3000), attack_tokenizer),
        Target("imports", (10, 100), attack_import),
        Target("shards", (20, 300), shards.attack_index),
        Target("shards", (40, 150), shards.attack_journal),
        Target("sweeps", (30, 1500), attack_space),
        Target("sweeps", (10, 500), attack_outcomes),
        Target("checkpoints", (25, 500), partial(spoil_checkpoint, run, spoiled)),
    ]


def run(folder: Path, full: bool) -> Tally:
    """Attack every target a fixed number of times, then a server."""
    tally = Tally(*FIGURES)
    attack_all(folder, tally, full, FIGURES)
    guide(folder, tally, 20_000 if full else 2000)
    tally.count("requests", ask_server(folder, tally, 1500 if full else 40))
    return tally


def attack_all(folder: Path, tally: Tally, full: bool, names: tuple[str, ...]) -> None:
    """Attack the targets of some names, and everything that holds for every text."""
    with contextlib.chdir(folder), nothing_slow():
        train_tiny(folder, "run.threads=1")
        write_inputs()
        for target in targets(folder):
            for number in range(target.counts[full] if target.name in names else 0):
                _attack(tally, target, random.Random(f"{target.name} {number}"))
    for check in PROPERTIES:
        tally.count("texts through tokenizers, YAML and stop strings", check(tally, 1500 if full else 60))


def _attack(tally: Tally, target: Target, chance: random.Random) -> None:
    tally.count(target.name)
    try:
        with watchdog(target.may_go_on):
            target.attack(chance)
    except HangError:
        tally.count("hangs")
        tally.check(False, f"{target.name}: hangs: {traceback.format_exc()[-1500:]}")
    except BaseException:
        tally.count("tracebacks")
        tally.check(False, f"{target.name}: {traceback.format_exc()[-1500:]}")


PROMISE = "Input that nobody expects is refused in one line, or works; there is no traceback and no hang."
DRILL = Drill(PROMISE, run)
