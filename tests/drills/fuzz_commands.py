"""Command lines that nobody expects, of every command, and lines typed into the interactive prompt."""

import contextlib
import io
import os
import random
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from unittest.mock import patch

from drills.nasty import edit, text, written_value
from gpt.config import Config, SamplingParams
from training.sessions import quick_beginnings

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
    "--to": ("html", "hf", "gguf"),
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
    "--random": ("1", "3"),
    "--devices": ("cpu", "cpu,cpu"),
    "--published": ("gpt2", "llama-2-7b"),
    "--edit": ("blocks.0.attn.hook_z:1=0", "blocks.0.hook_resid_pre=1e400", "=", ":=1"),
    "--batch": ("1", "2"),
    "--json": ("made.json",),
}
RUN, OUTPUT = ("--checkpoint", "runs/tiny"), ("--output", "made")
TRAIN = ("--config", "tiny.yaml", "run.name=fuzz", "train.max_steps=2", "train.sample_tokens=2")
TEXT_VIEW = (*RUN, "--prompt", "It was")
EXPLAIN = "gpt.cli.explain"
KEPT_AS_THEY_ARE = {"run.dir", "data.dir", "run.name", "run.compile", "run.device", "data.source", "data.url"}
"""Keys whose values would write elsewhere, compile for half a minute, or need a network."""


@dataclass(frozen=True)
class Command:
    """A command, or one of its subcommands.

    Attributes:
        module: which has its `main`.
        words: of the subcommand.
        usual: with which it does something.
        overrides: whether it takes section.key=value.
        codes: exit codes besides those of all commands.
    """

    module: str
    words: tuple[str, ...] = ()
    usual: tuple[str, ...] = ()
    overrides: bool = False
    codes: tuple[int, ...] = ()

    @cached_property
    def options(self) -> list[str]:
        code, shown, error = call(self.module, [*self.words, "--help"])
        assert code == 0, (self, error)
        return sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", shown)) - {"--help"})

    def draw_options(self, chance: random.Random) -> list[str]:
        """Return options with right values, wrong values and none."""
        line: list[str] = []
        for option in chance.sample(self.options, chance.randint(0, min(4, len(self.options)))):
            line.append(option)
            if chance.random() < 0.9:
                right = GOOD.get(option, ())
                line.append(chance.choice(right) if right and chance.random() < 0.7 else text(chance))
        return line


def call(module: str, line: list[str], typed: bytes = b"") -> tuple[int, str, str]:
    """Return the exit code of a command that is given an input, and what it printed on both streams."""
    output, error = io.StringIO(), io.StringIO()
    with (
        patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed), encoding="utf-8")),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(error),
    ):
        try:
            code = import_module(module).main(line)
        except SystemExit as exit_:
            code = exit_.code if isinstance(exit_.code, int) else 1
    return code, output.getvalue(), error.getvalue()


COMMANDS = (
    Command("gpt.cli.sample", (), RUN),
    Command("gpt.cli.evaluate", (), RUN),
    Command("gpt.cli.serve", (), RUN),
    Command("gpt.cli.train", (), TRAIN, overrides=True),
    Command("gpt.cli.prepare_data", (), TRAIN, overrides=True),
    Command("gpt.cli.plot", (), ("runs/tiny", "--output", "made.svg")),
    Command("gpt.cli.quantize", (), (*RUN, *OUTPUT)),
    Command("gpt.cli.export", (), (*RUN, "--to", "html", *OUTPUT)),
    Command("gpt.cli.import_model", (), ("--from", "hf", "--input", "folder", *OUTPUT)),
    *(Command(EXPLAIN, (view,), RUN, overrides=True) for view in ("shapes", "params", "flops", "memory")),
    *(Command(EXPLAIN, (view,), TEXT_VIEW) for view in ("attention", "lens", "surprisal")),
)


async def _no_server(*_: object) -> int:
    return 0


@contextlib.contextmanager
def nothing_slow() -> Iterator[None]:
    """No server or network."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(quick_beginnings())
        stack.enter_context(patch.dict(os.environ, {"GPT_OFFLINE": "1"}))
        stack.enter_context(patch("gpt.cli.serve._serve", _no_server))
        yield


def write_inputs() -> None:
    """Write what the command lines name into the present folder, beside a run."""
    Path("prompt.txt").write_text("It was\n", encoding="utf-8")
    code, _, error = call("gpt.cli.export", [*RUN, "--to", "hf", "--output", "folder"])
    assert code == 0, error


def attack_command(command: Command, chance: random.Random) -> None:
    line = [*command.words, *(command.usual if chance.random() < 0.8 else ())]
    line += command.draw_options(chance)
    if command.overrides:
        keys = [key for key in Config().leaves() if key not in KEPT_AS_THEY_ARE]
        line += [f"{chance.choice(keys)}={written_value(chance)}" for _ in range(chance.randrange(3))]
    for made in (*Path("runs").glob("fuzz*"), *Path().glob("made*")):
        shutil.rmtree(made) if made.is_dir() else made.unlink(missing_ok=True)
    code, _, error = call(command.module, line, b"It was\n")
    assert code in (0, 2, 3, 130, *command.codes), (code, line, error)
    lines = [shown for shown in error.splitlines() if shown.startswith("error:")]
    assert code != 2 or len(lines) == 1, (line, error)


def attack_prompt(chance: random.Random) -> None:
    prompt = "".join(text(chance) for _ in range(chance.randint(0, 3)))
    line = [*RUN, "--prompt", prompt, "--max-new-tokens", str(chance.randint(0, 30))]
    ways = ([], ["--unknown", "replace"], ["--unknown", "drop"], ["--crop-prompt"], ["--stop", text(chance)])
    line += chance.choice(ways)
    code, _, error = call("gpt.cli.sample", line)
    assert code in (0, 2), (line, error)


def attack_session(chance: random.Random) -> None:
    """Type prompts and settings; a mistake is reported, and the session goes on to its end."""
    names = [name for name in SamplingParams.model_fields if name != "max_new_tokens"]
    lines = [
        f"/{chance.choice(names)} {written_value(chance)}" if chance.random() < 0.5 else text(chance) for _ in range(4)
    ]
    typed = "\n".join(lines).encode("utf-8", errors="surrogatepass")
    line = [*RUN, "--interactive", "--max-new-tokens", "3", *chance.choice(([], ["--unknown", "drop"]))]
    code, _, error = call("gpt.cli.sample", line, typed)
    assert code == 0, (lines, error)


def attack_import(chance: random.Random) -> None:
    spoiled = Path("spoiled_folder")
    shutil.rmtree(spoiled, ignore_errors=True)
    shutil.copytree("folder", spoiled)
    edit(chance.choice(sorted(spoiled.glob("*.json"))), chance)
    shutil.rmtree("made", ignore_errors=True)
    code, _, error = call("gpt.cli.import_model", ["--from", "hf", "--input", str(spoiled), *OUTPUT])
    assert code in (0, 2), error
