"""Write samples as they are generated: as text, or as one JSON object each."""

import json
import re
import sys
from collections.abc import Sequence
from typing import Any

from gpt.data import Tokenizer
from gpt.generation.sequence import TextChunk
from gpt.generation.text import token_name
from gpt.generation.tokens import SampledToken

SEPARATOR = "\n" + "-" * 20 + "\n"
BOLD = "\033[1m"
REGULAR = "\033[0m"
CONTROL_CHARACTERS = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that control a terminal, or turn the direction of what follows."""


class TextWriter:
    """Writes prompts and their texts in order.

    The text of the first unfinished prompt is written as it is generated, those after it later.

    Args:
        is_first: whether nothing has been written yet.
    """

    def __init__(self, prompts: Sequence[str], is_first: bool = True) -> None:
        self._prompts = prompts
        self._is_first = is_first
        self._is_terminal = sys.stdout.isatty()
        self._waiting = ["" for _ in prompts]  # text that is not written yet
        self._is_finished = [False for _ in prompts]
        self._row = 0  # of the prompt that is being written
        self._begin()

    def take(self, chunk: TextChunk) -> None:
        """Write or keep one more chunk of a text."""
        self._waiting[chunk.row] += chunk.text
        self._is_finished[chunk.row] = chunk.finish is not None
        while self._row < len(self._prompts):
            self._write(self._waiting[self._row])
            self._waiting[self._row] = ""
            if not self._is_finished[self._row]:
                break
            sys.stdout.write("\n")
            self._row += 1
            self._begin()
        sys.stdout.flush()

    def _begin(self) -> None:
        """Write the next prompt, if there is one."""
        if self._row == len(self._prompts):
            return
        if not self._is_first:
            sys.stdout.write(SEPARATOR)
        self._is_first = False
        prompt = self._prompts[self._row]
        if not prompt or not self._is_terminal:
            self._write(prompt)
            return
        sys.stdout.write(BOLD)
        try:
            self._write(prompt)
        finally:  # a signal may interrupt it, and the terminal must not stay bold
            sys.stdout.write(REGULAR)

    def _write(self, text: str) -> None:
        """Write a text; a terminal gets control characters, which a model may write, as escapes."""
        if self._is_terminal:
            text = escape_controls(text)
        sys.stdout.write(text)


def escape_controls(text: str) -> str:
    """Return a text for a terminal, with what would control it as escapes."""
    return CONTROL_CHARACTERS.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return repr(found[0])[1:-1]  # without the quotes


class JSONWriter:
    """Writes one JSON object per text when it is finished.

    Args:
        tokenizer: names the tokens that have log-probabilities.
    """

    def __init__(self, prompts: Sequence[str], seeds: Sequence[int], tokenizer: Tokenizer) -> None:
        self._prompts = prompts
        self._seeds = seeds
        self._tokenizer = tokenizer
        self._texts = ["" for _ in prompts]
        self._sampled: list[list[SampledToken]] = [[] for _ in prompts]

    def take(self, chunk: TextChunk) -> None:
        """Keep one more chunk of a text, and write the text if it is finished."""
        self._texts[chunk.row] += chunk.text
        if chunk.token is not None:
            self._sampled[chunk.row].append(chunk.token)
        if chunk.finish is None:
            return
        sampled = self._sampled[chunk.row]
        row: dict[str, Any] = {
            "prompt": self._prompts[chunk.row],
            "text": self._texts[chunk.row],
            "seed": self._seeds[chunk.row],
            "finish": chunk.finish,
            "tokens": len(sampled),
        }
        if any(token.logprob is not None for token in sampled):
            row["logprobs"] = [self._described(token) for token in sampled]
        print(json.dumps(row, ensure_ascii=False), flush=True)

    def _described(self, token: SampledToken) -> dict[str, Any]:
        """Return a token with its log-probability and those of the alternatives."""
        top = [[token_name(self._tokenizer, index), logprob] for index, logprob in token.top]
        return {
            "id": token.id,
            "token": token_name(self._tokenizer, token.id),
            "logprob": token.logprob,
            "top": top,
        }
