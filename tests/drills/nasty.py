"""Values and texts that nobody expects, and damage to files."""

import copy
import json
import random
from pathlib import Path
from typing import Any

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
    """Return one of the values, or a list nested deeper than anything needs: a copy, to be changed."""
    return copy.deepcopy(NESTED if chance.random() < 0.02 else chance.choice(VALUES))


def text(chance: random.Random) -> str:
    """Return one of the texts, or random characters; none is a path that leads out of the present folder."""
    if chance.random() < 0.8:
        return chance.choice(TEXTS)
    blocks = (0x01, 0x20, 0x61, 0x20AC, 0x1F600, 0xD800)
    return "x" + "".join(chr(chance.choice(blocks) + chance.randrange(30)) for _ in range(6))


def written_value(chance: random.Random) -> str:
    """Return the right side of an override, often one that some key has."""
    if chance.random() < 0.6:
        return chance.choice(PLAUSIBLE)
    return json.dumps(value(chance)) if chance.random() < 0.5 else text(chance)


def mutate_json(tree: Any, chance: random.Random) -> Any:
    """Return a copy of a tree with one to three of its nodes replaced, removed, repeated or renamed."""
    tree = json.loads(json.dumps(tree))
    for _ in range(chance.randint(1, 3)):
        if not isinstance(tree, dict | list) or not tree or chance.random() < 0.03:
            return value(chance)
        _change(_inner(tree, chance), chance)
    return tree


def _inner(tree: Any, chance: random.Random) -> Any:
    items = tree.values() if isinstance(tree, dict) else tree
    below = [item for item in items if isinstance(item, dict | list) and item]
    return tree if not below or chance.random() < 0.3 else _inner(chance.choice(below), chance)


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
