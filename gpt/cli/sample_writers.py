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
_STEERING = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that steer a terminal, or turn the direction of what follows."""


class TextWriter:
    """Writes prompts and their texts in order: the first unfinished one as it is generated, later ones after it.

    `first`: whether nothing has been written yet.
    """

    def __init__(self, prompts: Sequence[str], first: bool = True) -> None:
        self._prompts, self._first, self._is_terminal = prompts, first, sys.stdout.isatty()
        self._waiting = ["" for _ in prompts]
        self._finished = [False for _ in prompts]
        self._row = 0
        self._begin()

    def take(self, piece: TextChunk) -> None:
        """Write or keep one more piece of a sequence."""
        self._waiting[piece.row] += piece.text
        self._finished[piece.row] = piece.finish is not None
        while self._row < len(self._prompts):
            self._write(self._waiting[self._row])
            self._waiting[self._row] = ""
            if not self._finished[self._row]:
                break
            sys.stdout.write("\n")
            self._row += 1
            self._begin()
        sys.stdout.flush()

    def _begin(self) -> None:
        if self._row == len(self._prompts):
            return
        if not self._first:
            sys.stdout.write(SEPARATOR)
        self._first = False
        prompt = self._prompts[self._row]
        bold, regular = ("\033[1m", "\033[0m") if prompt and self._is_terminal else ("", "")
        sys.stdout.write(bold)
        try:
            self._write(prompt)
        finally:  # a signal may interrupt it while a terminal is stopped
            sys.stdout.write(regular)

    def _write(self, text: str) -> None:
        shown = _STEERING.sub(lambda found: repr(found[0])[1:-1], text) if self._is_terminal else text
        sys.stdout.write(shown)


class JSONWriter:
    """Writes one JSON object per sequence when it is finished; `tokenizer` names tokens with log-probabilities."""

    def __init__(self, prompts: Sequence[str], seeds: Sequence[int], tokenizer: Tokenizer) -> None:
        self._prompts, self._seeds, self._tokenizer = prompts, seeds, tokenizer
        self._texts = ["" for _ in prompts]
        self._sampled: list[list[SampledToken]] = [[] for _ in prompts]

    def take(self, piece: TextChunk) -> None:
        """Write or keep one more piece of a sequence."""
        self._texts[piece.row] += piece.text
        if piece.token is not None:
            self._sampled[piece.row].append(piece.token)
        if piece.finish is None:
            return
        sampled = self._sampled[piece.row]
        summary: dict[str, Any] = {
            "prompt": self._prompts[piece.row],
            "text": self._texts[piece.row],
            "seed": self._seeds[piece.row],
            "finish": piece.finish,
            "tokens": len(sampled),
        }
        if any(token.logprob is not None for token in sampled):
            summary["logprobs"] = [
                {
                    "id": token.id,
                    "token": token_name(self._tokenizer, token.id),
                    "logprob": token.logprob,
                    "top": [[token_name(self._tokenizer, index), logprob] for index, logprob in token.top],
                }
                for token in sampled
            ]
        print(json.dumps(summary, ensure_ascii=False), flush=True)
