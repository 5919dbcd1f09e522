"""From a stream of token ids to text that may be shown: whole characters, and never a part of a stop text."""

from collections.abc import Iterable, Sequence

from gpt.data.tokenizers import Tokenizer

UNKNOWN = "\N{REPLACEMENT CHARACTER}"
"""What an id shows as that the tokenizer does not have; a model's vocabulary may be larger."""


class TextStream:
    """Decodes ids as they come and watches for stop texts.

    Text that could be the beginning of a stop text is held back until it is clear that it is not.

    Attributes:
        stopped: a stop text was reached; nothing more may be fed.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._vocab_size = tokenizer.vocab_size
        self._decoder = tokenizer.stream()
        self._stop = stop
        self._held = ""
        self.stopped = False

    def feed(self, index: int) -> str:
        """The text that may be shown after one more id."""
        assert not self.stopped
        known = index < self._vocab_size
        return self._release(self._decoder.feed(index) if known else self._decoder.flush() + UNKNOWN)

    def flush(self) -> str:
        """The rest of the text, at the end."""
        if self.stopped:
            return ""
        shown = self._release(self._decoder.flush())
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


def text_of(tokenizer: Tokenizer, ids: Iterable[int], stop: Sequence[str] = ()) -> str:
    """The text of some ids as `TextStream` shows it: up to the first stop text, any id of the model allowed."""
    stream, text = TextStream(tokenizer, stop), ""
    for index in ids:
        text += stream.feed(index)
        if stream.stopped:
            break
    return text + stream.flush()


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that `stop` begins with."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
