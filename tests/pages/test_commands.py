"""Every block of commands of a page is executed as printed, in a copy of the checkout.

A shell takes each block as it is, with its comments, quotes and loops, and calls programs that note
their words. These words are then given to the commands themselves: to those that train, with
`--print-config`, which checks all options and the configuration; to the server, the benchmarks and
torchrun, until their options are parsed; to all others, to the end. `make` says what it would do.
Programs of others are not called: they need a network, a GPU or another installation.
"""

import argparse
import io
import json
import shlex
import shutil
import string
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch.distributed.run

import gpt
from benchmarks.training_runs import NANOGPT_FILES
from changing_page import PLUGIN
from checkouts import copy_tracked
from gpt.cli.commands import COMMANDS
from pages.markdown import blocks, guides, spans, text_of
from pages.shells import FOREIGN, Called, execute, install
from plugin_files import unload
from tiny import CORPUS

pytestmark = pytest.mark.slow
PAGES = [*guides(), "CONTRIBUTING.md", "SECURITY.md"]
PARSED_ONLY = ("serve", "bench")
"""Commands that run for long, of which only the options are checked."""
SHELL_STARTS = (".venv/", "gpt ", "make ", "pip ", "curl ", "python")
"""How a line of a shell begins."""
PRINTABLE = string.printable.translate(str.maketrans("", "", "\r\x0b\x0c"))
TEXT = PRINTABLE + CORPUS * 40
SECTIONS: dict[str, dict[str, Any]] = {
    "run": {"device": "cpu", "dtype": "float32"},
    "model": {
        "n_layer": 1,
        "n_head": 2,
        "n_embd": 32,
        "block_size": 64,
        "norm": "rmsnorm",
        "position": "rope",
        "mlp": "swiglu",  # every export has these
    },
    "train": {"batch_size": 4, "max_steps": 2, "eval_interval": 2, "sample_tokens": 4},
}
OWN_YAML = """
run: {name: mine}
data: {source: file, path: my.txt}
model: {block_size: 512, position: rope}
"""


class ParsedError(BaseException):
    """The options of a command have been parsed, and it goes no further."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, with the texts and runs that the pages speak of."""
    above = tmp_path_factory.mktemp("pages")
    place = above / "gpt"
    copy_tracked(place)
    install(place)
    for name in ("my.txt", "other.txt", "third.txt", "poem.txt", "corpus/a/one.txt"):
        write(place / name, TEXT)
    shutil.copy(place / "my.txt", place / "data" / "tinyshakespeare.txt")
    pairs = [json.dumps({"prompt": f"{n}+{n}", "answer": str(2 * n)}) for n in range(300)]
    write(place / "pairs.jsonl", "\n".join(pairs))
    write(place / "names.txt", "\n".join(f"Name{n}" for n in range(300)))
    write(place / "mine.yaml", OWN_YAML)
    write(place / "my_parts.py", PLUGIN)
    for name in NANOGPT_FILES:
        write(above / "nanoGPT" / name, "")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        train_runs()
    return place


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def train_runs() -> None:
    """Train the runs that the pages name, each for two steps, in the current folder."""
    for name, path, data in (
        ("names", "names.txt", {"items": "lines"}),
        ("pairs", "pairs.jsonl", {"items": "pairs"}),
        ("bpe", "my.txt", {"tokenizer": "bpe", "bpe_vocab_size": 300}),
        ("teacher", "my.txt", {}),
        ("mine", "my.txt", {}),
        ("small", "my.txt", {}),
        ("large", "my.txt", {}),
        ("quickstart", "my.txt", {}),
        ("shakespeare", "my.txt", {}),
    ):
        gpt.train(path, config={**SECTIONS, "data": data}, name=name, report=None)
    export = import_module("gpt.cli.export").main
    assert export(["--to", "hf", "--checkpoint", "bpe", "--output", "gpt2"]) == 0


def parse_only(main: Callable[[Sequence[str]], object], words: Sequence[str]) -> None:
    """Call a program until its options have been parsed; they are right."""

    def then_stop(method: Callable[..., object]) -> Callable[..., NoReturn]:
        def parse(parser: argparse.ArgumentParser, *arguments: object) -> NoReturn:
            method(parser, *arguments)
            raise ParsedError

        return parse

    with pytest.MonkeyPatch.context() as patch:
        for name in ("parse_args", "parse_intermixed_args"):
            method = getattr(argparse.ArgumentParser, name)
            patch.setattr(argparse.ArgumentParser, name, then_stop(method))
        with pytest.raises(ParsedError):
            main(words)


def check(called: Called) -> None:
    """Give the words of a call to the program itself, as far as it can go here."""
    program = called.program
    words = list(called.words)
    match program:
        case "make":  # -n: it prints the commands of its targets instead of executing them
            subprocess.run(["make", "-n", *words], check=True, capture_output=True)
        case "srun":  # it starts the program that its words name
            check(Called(Path(words[0]).name, called.words[1:]))
        case "torchrun":
            parse_only(torch.distributed.run.main, words)
            first = next(index for index, word in enumerate(words) if word.endswith(".py"))
            check(Called("python", called.words[first:]))
        case "gpt":
            call(COMMANDS[words[0]].file, words[1:])
        case "python" if words[0] == "-m":
            package = words[1].partition(".")[0]
            is_installed = find_spec(package) is not None  # sglang, which needs a GPU, is not
            assert not is_installed or find_spec(words[1]) is not None, called
        case "python":
            script = Path(words[0])
            assert script.is_file(), called
            call(script.stem, words[1:])
        case _:
            assert program in FOREIGN, f"{called}: no program that the pages call"


def call(command: str, words: list[str]) -> None:
    """Call a command in this process with its words; it succeeds."""
    module = "benchmarks.cli" if command == "bench" else f"gpt.cli.{command}"
    main = import_module(module).main
    reads_files_of_nanogpt = words[:2] == ["--from", "nanogpt"]
    if command in PARSED_ONLY or reads_files_of_nanogpt:
        parse_only(main, words)
        recipes = [word for word in words if word.startswith("configs/")]
        assert [recipe for recipe in recipes if not Path(recipe).is_file()] == []
        return
    if command == "train":
        words = [*words, "--print-config"]
    assert main(words) == 0, (command, words)
    unload()  # the plugins of this command


@pytest.fixture
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The copy of the checkout as the current folder, and nobody at the keyboard."""
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    return place


@pytest.mark.parametrize("page", PAGES)
def test_blocks_are_executed_as_printed(page: str, here: Path) -> None:
    for block in blocks(text_of(page)):
        if block.language == "sh":
            for called in execute(block.text, here):
                check(called)


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.usefixtures("here")
def test_commands_in_sentences_are_there(page: str) -> None:
    """Targets of make, and commands of gpt, of which the views of `explain` are executed."""
    for span in spans(text_of(page)):
        if not span.startswith(("gpt ", "make ")):
            continue
        program, *words = shlex.split(span)
        if program == "make":
            check(Called(program, tuple(words)))
        elif not words[0].startswith("-"):
            assert words[0] in COMMANDS, span
            shows_view = words[0] == "explain" and len(words) > 1
            if shows_view and "FILE" not in words:
                check(Called(program, tuple(words)))


def test_blocks_with_commands_say_that_they_are_for_a_shell() -> None:
    for page in PAGES:
        for block in blocks(text_of(page)):
            is_shell = any(line.startswith(SHELL_STARTS) for line in block.text.splitlines())
            if is_shell:
                assert block.language != "", f"{page}: {block.text}"


@pytest.mark.parametrize(
    "line",
    [
        "gpt train --config nothing.yaml",
        "gpt sample --promt x",
        "gpt make-config my.txt",
        ".venv/bin/python scripts/nothing.py",
        ".venv/bin/python scripts/serve.py --prt 1",
        ".venv/bin/torchrun --nprocs 2 scripts/train.py --config quickstart",
        "make nothing",
        "nothing --help",
    ],
)
def test_a_wrong_command_is_found(line: str, here: Path) -> None:
    with pytest.raises((AssertionError, KeyError, SystemExit, subprocess.CalledProcessError)):
        check(*execute(line, here))
