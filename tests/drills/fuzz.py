"""Input that nobody expects, everywhere it can be given: an error in one line, and never a traceback or a hang."""

import contextlib
import io
import json
import random
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from unittest.mock import patch

from drills.frame import Break, Drill, Tally
from drills.fuzz_checkpoints import spoil_checkpoint
from drills.fuzz_files import attack_tokenizer
from drills.fuzz_guided import guide
from drills.fuzz_properties import PROPERTIES
from drills.fuzz_server import ask_server
from drills.nasty import command_line, mutate_bytes, options_of, text, value
from drills.offline import call
from drills.tiny_run import train_tiny
from gpt.config import Config, dump_config, parse_config
from gpt.errors import GPTError
from tiny import TINY
from training.sessions import quick_beginnings

FIGURES = ("configurations", "values", "command lines", "prompts", "tokenizers", "checkpoints", "requests")
FIGURES += ("texts through tokenizers, YAML and stop strings", "guided by coverage", "kinds of them not possible here")
FIGURES += ("tracebacks", "hangs")
PATIENCE = 3.0
"""Seconds after which Ctrl-C comes, as from somebody who has waited enough; three times as much is a hang."""
GOOD = {
    "--checkpoint": ("runs/tiny",),
    "--config": ("tiny.yaml",),
    "--text-file": ("corpus.txt",),
    "--prompt": ("It was", "-"),
    "--prompt-file": ("prompt.txt",),
    "--prompts-file": ("prompt.txt",),
    "--output": ("made", "made.html", "made.md", "made.svg"),
    "--input": ("runs/tiny", "folder"),
    "--from": ("hf", "nanogpt"),
    "--to": ("html", "hf", "gguf", "onnx"),
    "--device": ("cpu",),
    "--backend": ("eager", "native", "compiled"),
    "--weights": ("int8", "float32"),
    "--max-new-tokens": ("0", "3", "40"),
    "--num-samples": ("1", "3"),
    "--beam": ("1", "3"),
    "--layer": ("0", "1"),
    "--resume": ("auto", "runs/tiny"),
    "--split": ("train", "val"),
    "--host": ("127.0.0.1", "::1", "", "no host", "x" * 300),
    "--port": ("0",),
}
TRAINING = (
    "run.name=",
    "optim.learning_rate=",
    "model.n_layer=",
    "model.n_embd=",
    "model.block_size=",
    "train.batch_size=",
)
TRAINING += ("data.val_fraction=", "optim.betas=", "model.dropout=", "train.init_from=", "data.tokenizer=", "run.seed=")
RUN, OUTPUT = ("--checkpoint", "runs/tiny"), ("--output", "made")
USUAL: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("sample", "evaluate", "serve"), RUN),
    **dict.fromkeys(("shapes", "params", "flops", "memory"), RUN),
    **dict.fromkeys(("attention", "lens", "surprisal", "walk"), (*RUN, "--prompt", "It was")),
    **dict.fromkeys(("train", "prepare_data"), ("--config", "tiny.yaml", "run.name=fuzz", "train.max_steps=2")),
    "quantize": (*RUN, *OUTPUT),
    "export": (*RUN, "--to", "html", *OUTPUT),
    "import_model": ("--from", "hf", "--input", "folder", *OUTPUT),
    "plot": ("runs/tiny", "--output", "made.svg"),
    "mathematics": OUTPUT,
}
"""With which a command does something."""
VIEWS = ("shapes", "attention", "lens", "surprisal", "params", "flops", "memory", "walk", "mathematics")
COMMANDS = ("sample", "evaluate", "prepare_data", "plot", "quantize", "export", "import_model", "serve", "train")

YAML = "gpt/config/strict_yaml.py"
BREAKS = (
    Break("a wrong number is a traceback", YAML, "(yaml.YAMLError, ValueError, ", "(yaml.YAMLError, "),
    Break(
        "foreign JSON is a traceback",
        "gpt/checkpoint/folder.py",
        "except Exception as error:  # foreign bytes make an unpickler raise anything",
        "except OSError as error:",
    ),
    Break("half a stop string is shown", "gpt/generation/text.py", "range(min(len(text), len(stop) - 1), 0, -1)", "()"),
    Break(
        "half a character is lost",
        "gpt/data/tokenizers.py",
        'codecs.getincrementaldecoder("utf-8")(errors="replace")',
        'codecs.getincrementaldecoder("utf-8")(errors="ignore")',
    ),
    Break("a tag builds objects, or is a traceback", YAML, " or event.tag is not None", "", needs="atheris"),
)


@dataclass(frozen=True)
class Target:
    """Something that takes input.

    Attributes:
        name: its figure.
        counts: executions at the small and at full scale.
        attack: gives it one input, made by chance.
    """

    name: str
    counts: tuple[int, int]
    attack: Callable[[random.Random], None]


class HangError(Exception):
    """Something did not end, not even by Ctrl-C."""


@contextlib.contextmanager
def watchdog() -> Iterator[None]:
    """Send Ctrl-C when something takes long, and fail when that does not help."""
    alarms = iter((KeyboardInterrupt, HangError))

    def ring(number: int, frame: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 3 * PATIENCE)
        raise next(alarms, HangError)("it hangs")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


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


def attack_command(name: str, options: list[str], view: tuple[str, ...], chance: random.Random) -> None:
    """Run a command line, most often one with what the command needs."""
    line = [*view, *(USUAL[view[0] if view else name] if chance.random() < 0.8 else ())]
    line += command_line(options, GOOD, chance)
    for made in (Path("runs/fuzz"), *Path().glob("made*")):
        shutil.rmtree(made) if made.is_dir() else made.unlink(missing_ok=True)
    if name in ("train", "prepare_data"):
        line += [chance.choice(TRAINING) + text(chance) for _ in range(chance.randrange(3))]
    stdin = io.TextIOWrapper(io.BytesIO(b"It was\n"))
    with patch.object(sys, "stdin", stdin):
        code, _, error = call(import_module(f"gpt.cli.{name}").main, line)
    assert code in (0, 2, 3, 130), (code, line, error)
    lines = [shown for shown in error.splitlines() if shown.startswith("error:")]
    assert code != 2 or len(lines) == 1, (line, error)


def attack_prompt(chance: random.Random) -> None:
    """Continue a prompt by any means."""
    prompt = "".join(text(chance) for _ in range(chance.randint(0, 3)))
    line = ["--checkpoint", "runs/tiny", "--prompt", prompt, "--max-new-tokens", str(chance.randint(0, 30))]
    line += chance.choice(
        ([], ["--unknown", "replace"], ["--unknown", "drop"], ["--crop-prompt"], ["--stop", text(chance)])
    )
    code, _, error = call(import_module("gpt.cli.sample").main, line)
    assert code in (0, 2), (line, error)


def targets(folder: Path) -> list[Target]:
    """Return everything that is attacked; the folder has a trained run."""
    found = [Target("configurations", (150, 5000), attack_yaml), Target("values", (100, 4000), attack_values)]
    for name in COMMANDS:
        main = import_module(f"gpt.cli.{name}").main
        found.append(Target("command lines", (6, 250), partial(attack_command, name, options_of(main), ())))
    explain = import_module("gpt.cli.explain").main
    for view in VIEWS:
        options = options_of(explain, view)
        found.append(Target("command lines", (2, 80), partial(attack_command, "explain", options, (view,))))
    found.append(Target("prompts", (10, 600), attack_prompt))
    found.append(Target("tokenizers", (40, 3000), attack_tokenizer))
    found.append(
        Target("checkpoints", (25, 1500), partial(spoil_checkpoint, folder / "runs" / "tiny", folder / "spoiled"))
    )
    return found


async def _no_server(*_: object) -> int:
    return 0


def run(folder: Path, full: bool) -> Tally:
    """Attack every target a fixed number of times, then a server."""
    tally = Tally(*FIGURES)
    attack_all(folder, tally, full, FIGURES)
    guide(folder, tally, 30_000 if full else 2000)
    tally.count("requests", ask_server(folder, tally, 1500 if full else 40))
    return tally


def attack_all(folder: Path, tally: Tally, full: bool, names: tuple[str, ...]) -> None:
    """Attack the targets of some names, and everything that holds for every text."""
    with contextlib.chdir(folder), quick_beginnings(), patch("gpt.cli.serve._serve", _no_server):
        train_tiny(folder, "run.threads=1")
        Path("prompt.txt").write_text("It was\n", encoding="utf-8")
        for target in targets(folder):
            for number in range(target.counts[full] if target.name in names else 0):
                _attack(tally, target, random.Random(f"{target.name} {number}"))
    for check in PROPERTIES:
        tally.count("texts through tokenizers, YAML and stop strings", check(tally, 3000 if full else 60))


def _attack(tally: Tally, target: Target, chance: random.Random) -> None:
    tally.count(target.name)
    try:
        with watchdog():
            target.attack(chance)
    except HangError:
        tally.count("hangs")
        tally.check(False, f"{target.name}: hangs: {traceback.format_exc()[-1500:]}")
    except BaseException:
        tally.count("tracebacks")
        tally.check(False, f"{target.name}: {traceback.format_exc()[-1500:]}")


PROMISE = "Input that nobody expects is refused in one line, or works; there is no traceback and no hang."
DRILL = Drill(PROMISE, run, BREAKS, minutes=8)
