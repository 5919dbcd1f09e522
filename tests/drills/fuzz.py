"""Input that nobody expects, everywhere it can be given: an error in one line, and never a traceback or a hang."""

import contextlib
import random
import signal
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from drills.frame import Drill, Tally, repeats
from drills.fuzz_commands import (
    COMMANDS,
    attack_command,
    attack_import,
    attack_prompt,
    attack_session,
    nothing_slow,
    write_inputs,
)
from drills.fuzz_files import attack_tokenizer, spoil_checkpoint
from drills.fuzz_server import ask_server
from drills.nasty import mutate_bytes, written_value
from drills.tiny_run import train_tiny
from gpt.config import Config
from gpt.config.loading import dump_config, parse_config
from gpt.errors import GPTError
from tiny import TINY

FIGURES = ("configurations", "command lines", "prompts", "sessions", "tokenizers", "imports")
FIGURES += ("checkpoints", "requests", "tracebacks", "hangs")
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

    def try_one(self, tally: Tally, number: int) -> None:
        tally.count(self.name)
        try:
            with watchdog(self.may_go_on):
                self.attack(random.Random(f"{self.name} {number}"))
        except HangError:
            tally.count("hangs")
            tally.check(False, f"{self.name}: hangs: {traceback.format_exc()[-1500:]}")
        except BaseException:
            tally.count("tracebacks")
            tally.check(False, f"{self.name}: {traceback.format_exc()[-1500:]}")


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


def attack_configuration(chance: random.Random) -> None:
    """Parse a damaged file and an override; what can be read can be read again as it is written."""
    content = chance.choice((dump_config(Config()), TINY)).encode()
    if chance.random() < 0.5:
        content = mutate_bytes(content, chance)
    keys = chance.sample(list(Config().leaves()), chance.randrange(2))
    overrides = [f"{key}={written_value(chance)}" for key in keys]
    with contextlib.suppress(GPTError):
        config = parse_config(content.decode("utf-8", errors="replace"), "fuzz", overrides)
        assert parse_config(dump_config(config), "written") == config


def targets(folder: Path) -> list[Target]:
    spoil = partial(spoil_checkpoint, folder / "runs" / "tiny", folder / "spoiled")
    return [
        Target("configurations", (200, 6000), attack_configuration),
        *(Target("command lines", (4, 30), partial(attack_command, command), True) for command in COMMANDS),
        Target("prompts", (10, 300), attack_prompt, True),
        Target("sessions", (5, 100), attack_session, True),
        Target("tokenizers", (40, 3000), attack_tokenizer),
        Target("imports", (10, 100), attack_import),
        Target("checkpoints", (25, 500), spoil),
    ]


def attack_all(folder: Path, tally: Tally, full: bool, names: tuple[str, ...] = FIGURES) -> None:
    with contextlib.chdir(folder), nothing_slow():
        train_tiny(folder, "run.threads=1")
        write_inputs()
        for target in targets(folder):
            for number in range(repeats(full, *reversed(target.counts)) if target.name in names else 0):
                target.try_one(tally, number)


def run(folder: Path, full: bool) -> Tally:
    tally = Tally(*FIGURES)
    attack_all(folder, tally, full)
    ask_server(folder, tally, repeats(full, 1500, 40))
    return tally


PROMISE = (
    "Input to the package that nobody expects is refused in one line, or works; there is no traceback and no hang."
)
DRILL = Drill(PROMISE, run)
