"""JSON that someone has edited: tokenizers."""

import contextlib
import random
from typing import Any

from drills.nasty import mutate_json
from gpt.data.bpe import learn_bpe
from gpt.data.saved_tokenizer import tokenizer_from_dict
from gpt.errors import GPTError
from tiny import CORPUS

TOKENIZERS: list[dict[str, Any]] = [
    learn_bpe([CORPUS], 300).to_dict(),
    {"type": "char", "chars": sorted(set(CORPUS))},
    {"type": "byte"},
]


def attack_tokenizer(chance: random.Random) -> None:
    """Build a tokenizer from a damaged description, and use it."""
    damaged = mutate_json(chance.choice(TOKENIZERS), chance)
    with contextlib.suppress(GPTError):
        tokenizer = tokenizer_from_dict(damaged)
        ids = tokenizer.encode("It was a door.")
        tokenizer.decode(ids)
        tokenizer.count_chars(ids)
