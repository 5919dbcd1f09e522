"""Values, texts and command lines that nobody expects."""

import contextlib
import copy
import io
import json
import random
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 7, 1.5, -0.0, 1e-308, 1e308, float("nan"), float("inf"), -float("inf")),
    *(2**31, 2**32, 2**63 - 1, 2**63, 2**64, 10**30, 10**400, -(2**63), "", "x", "0", "nan", "null", "true", "\0"),
    *("a\nb", "\ud800", "\N{GRINNING FACE}", "../../x", "x" * 300, "y" * 5000, [], {}, [[]], {"": None}, [0] * 40),
    {"a": {}},
)
TEXTS = (
    *("", " ", "0", "-1", "1", "2", "3", "0.5", "1e400", "nan", "inf", "-inf", "1e-400", "1_000", "0x10", "9" * 30),
    *("9" * 5000, "auto", "cpu", "cuda", "cuda:99", "none", "null", "true", "[]", "{}", "[1, 2", "a=b", "=", "*", "-"),
    *("--", "x" * 300, "y" * 5000, "\N{GRINNING FACE}", "é", "\ud800", "a\nb", "\t", "..", "./", "missing", "runs"),
)
PLAUSIBLE = (
    *("null", "true", "false", "0", "1", "2", "3", "8", "300", "0.5", "1e-3", "auto", "torch", "native", "float32"),
    *("bfloat16", "float16", "ddp", "fsdp", "byte", "bpe", "shuffled", "random", "keep", "lf", "muon", "wsd", "rope"),
    *("sinusoidal", "swiglu", "rmsnorm", "zero_projections", "sdpa", "skip", "[0.9, 0.99]", "runs/tiny", "corpus.txt"),
)
NESTED = json.loads("[" * 60 + "]" * 60)


def value(chance: random.Random) -> Any:
    """Return one of the values, or a list or mapping nested deeper than anything needs: a copy, to be changed."""
    return copy.deepcopy(NESTED if chance.random() < 0.02 else chance.choice(VALUES))


def mutate_json(tree: Any, chance: random.Random) -> Any:
    """Return a copy of a tree with one to three of its nodes replaced, removed, repeated or renamed."""
    tree = json.loads(json.dumps(tree))
    for _ in range(chance.randint(1, 3)):
        if not isinstance(tree, dict | list) or not tree or chance.random() < 0.03:
            return value(chance)
        _change(_inner(tree, chance), chance)
    return tree


def _inner(tree: Any, chance: random.Random) -> Any:
    """Return a mapping or list somewhere in a tree."""
    while True:
        below = [item for item in (tree.values() if isinstance(tree, dict) else tree) if isinstance(item, dict | list)]
        below = [item for item in below if item]
        if not below or chance.random() < 0.3:
            return tree
        tree = chance.choice(below)


def _change(node: Any, chance: random.Random) -> None:
    key = chance.choice(list(node)) if isinstance(node, dict) else chance.randrange(len(node))
    match chance.randrange(5):
        case 0:
            del node[key]
        case 1 if isinstance(node, dict):
            node[f"{key}x"] = node.pop(key)
        case 2 if isinstance(node, list):
            node.append(node[key])
        case 3 if isinstance(node[key], int):
            node[key] += chance.choice((-1, 1))
        case _:
            node[key] = value(chance)


def mutate_bytes(content: bytes, chance: random.Random) -> bytes:
    """Return a copy with some bytes replaced, inserted or removed, or cut short."""
    changed = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(changed) + 1)
        changed[place : place + chance.choice((0, 1, 1, 3, 50))] = chance.randbytes(chance.choice((0, 1, 1, 3)))
    return bytes(changed[: chance.choice((len(changed), len(changed), chance.randrange(len(changed) + 1)))])


def edit(path: Path, chance: random.Random) -> None:
    """Damage a file: where it is JSON, most often one of its values; sometimes it is nested too deeply to be read."""
    content = path.read_bytes()
    if chance.random() < 0.02:
        content = b"[" * 100_000
    elif path.suffix == ".json" and chance.random() < 0.8:
        content = json.dumps(mutate_json(json.loads(content), chance)).encode("utf-8", errors="surrogatepass")
    else:
        content = mutate_bytes(content, chance)
    path.write_bytes(content)


def call(main: Callable[[list[str]], int], arguments: list[str], typed: bytes = b"") -> tuple[int, str, str]:
    """Return the exit code of a command that is given an input, and what it printed on both streams."""
    output, error = io.StringIO(), io.StringIO()
    with (
        patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed), encoding="utf-8")),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(error),
    ):
        try:
            code = main(arguments)
        except SystemExit as exit_:
            code = exit_.code if isinstance(exit_.code, int) else 1
    return code, output.getvalue(), error.getvalue()


def options_of(main: Callable[[list[str]], int], *view: str) -> list[str]:
    """Return the options in the help of a command."""
    code, shown, error = call(main, [*view, "--help"])
    assert code == 0, (view, error)
    return sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", shown)) - {"--help"})


def command_line(options: Sequence[str], good: dict[str, tuple[str, ...]], chance: random.Random) -> list[str]:
    """Return options with right values, wrong values and none."""
    line: list[str] = []
    for option in chance.sample(options, chance.randint(0, min(4, len(options)))):
        line.append(option)
        if chance.random() < 0.9:
            right = good.get(option, ())
            line.append(chance.choice(right) if right and chance.random() < 0.7 else text(chance))
    return line


def written_value(chance: random.Random) -> str:
    """Return the right side of an override, often one that some key has."""
    if chance.random() < 0.6:
        return chance.choice(PLAUSIBLE)
    return json.dumps(value(chance)) if chance.random() < 0.5 else text(chance)


def text(chance: random.Random) -> str:
    """Return one of the texts, or random characters; none is a path that leads out of the present folder."""
    if chance.random() < 0.8:
        return chance.choice(TEXTS)
    blocks = (0x01, 0x20, 0x61, 0x20AC, 0x1F600, 0xD800)
    return "x" + "".join(chr(chance.choice(blocks) + chance.randrange(30)) for _ in range(6))
