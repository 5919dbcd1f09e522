"""From a stream of token ids to text that may be shown: whole characters, and never a part of a stop string."""

from collections.abc import Iterable, Sequence

from gpt.data.tokenizers import Tokenizer

UNKNOWN = "\N{REPLACEMENT CHARACTER}"
"""Shown for an id that the tokenizer does not have; a model's vocabulary may be larger."""


class TextStream:
    """Detokenizes ids as they come and watches for stop strings.

    Text that could be the beginning of a stop string is held back until it is clear that it is not.

    Attributes:
        stopped: a stop string was reached; nothing more may be fed.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._vocab_size = tokenizer.vocab_size
        self._detokenizer = tokenizer.stream()
        self._stop = stop
        self._held = ""
        self.stopped = False

    def feed(self, index: int) -> str:
        """Return the text that may be shown after one more id."""
        assert not self.stopped
        known = index < self._vocab_size
        return self._release(self._detokenizer.feed(index) if known else self._detokenizer.flush() + UNKNOWN)

    def flush(self) -> str:
        """Return the rest of the text, at the end."""
        if self.stopped:
            return ""
        shown = self._release(self._detokenizer.flush())
        held, self._held = self._held, ""
        return shown if self.stopped else shown + held

    def _release(self, piece: str) -> str:
        text = self._held + piece
        found = [place for stop in self._stop if (place := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def decode_text(tokenizer: Tokenizer, ids: Iterable[int], stop: Sequence[str] = ()) -> str:
    """Return the text of some ids as `TextStream` shows it, up to the first stop string."""
    stream, text = TextStream(tokenizer, stop), ""
    for index in ids:
        text += stream.feed(index)
        if stream.stopped:
            break
    return text + stream.flush()


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that `stop` begins with."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
