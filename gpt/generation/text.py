"""Text in and out of a model: the token ids of a prompt, and whole characters from a stream of token ids."""

from collections.abc import Iterable, Sequence

from gpt.config import SamplingParams
from gpt.data.tokenizers import Tokenizer, convert_newlines
from gpt.system.errors import DataError, GenerationError, UnknownCharactersError, outside_vocabulary

FIRST_TEXT = "\n"
"""Where an empty prompt starts: after a line end, or, where the vocabulary has none, after id 0."""
UNKNOWN = "\N{REPLACEMENT CHARACTER}"
"""Shown for an id that the tokenizer does not have; a model's vocabulary may be larger."""


def encode_prompt(tokenizer: Tokenizer, prompt: str, params: SamplingParams, block_size: int) -> list[int]:
    """Return the token ids of a prompt; raise GenerationError if it is no text, else as `encode` and `fit_prompt`.

    Its line ends are read as those of a corpus.
    """
    if not isinstance(prompt, str):
        raise GenerationError(f"the prompt is a {type(prompt).__name__}, expected a text")
    try:
        ids = tokenizer.encode(convert_newlines(prompt))
    except UnknownCharactersError as error:
        remedy = "or pass --unknown drop or replace (unknown= of CharTokenizer)"
        raise UnknownCharactersError(f"the prompt has {error}, {remedy}") from None
    return fit_prompt(ids.tolist(), tokenizer, params, block_size)


def encode_prompts(
    tokenizer: Tokenizer, prompts: Sequence[str], params: SamplingParams, block_size: int
) -> list[list[int]]:
    """Return the token ids of each prompt; an error says which of several it is about."""
    encoded = []
    for number, prompt in enumerate(prompts, start=1):
        try:
            encoded.append(encode_prompt(tokenizer, prompt, params, block_size))
        except (DataError, GenerationError) as error:
            if len(prompts) == 1:
                raise
            raise type(error)(f"prompt {number} of {len(prompts)}: {error}") from None
    return encoded


def fit_prompt(ids: list[int], tokenizer: Tokenizer, params: SamplingParams, block_size: int) -> list[int]:
    """Return the ids of a prompt that a model reads; raise GenerationError if `params` refuses a longer one."""
    if not ids:
        return _first_ids(tokenizer, params)
    if len(ids) > block_size:
        if params.long_prompt == "refuse":
            raise GenerationError(
                f"the prompt has {len(ids)} tokens, more than the window of {block_size}; "
                "shorten it, or continue from its end with --crop-prompt (long_prompt=crop)"
            )
        ids = ids[-block_size:]
    return ids


def check_ids(ids: Iterable[int], vocab_size: int) -> None:
    """Raise InputError unless a model has all ids; the native engine would read past its embedding."""
    for index in ids:
        if not 0 <= index < vocab_size:
            raise outside_vocabulary(index, vocab_size)


def _first_ids(tokenizer: Tokenizer, params: SamplingParams) -> list[int]:
    try:
        ids = tokenizer.encode(FIRST_TEXT)
    except DataError:
        return [0]
    return [int(ids[-1])] if tokenizer.decode(ids) == FIRST_TEXT else [0]  # it may have been dropped or replaced


class TextStream:
    """Detokenizes ids as they come, until a stop string is reached: nothing may be fed once it is `stopped`.

    Text that could be the beginning of a stop string is held back until it is clear that it is not.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._vocab_size = tokenizer.vocab_size
        self._detokenizer = tokenizer.stream()
        self._stop = stop
        self._pending = ""
        self.stopped = False

    def begin(self, ids: Iterable[int]) -> str:
        """Return the text of ids before the stream, of which the first fed one may end a character."""
        return "".join(map(self._decode, ids))

    def feed(self, index: int) -> str:
        """Return the text that may be shown after one more id."""
        assert not self.stopped
        return self._release(self._decode(index))

    def flush(self) -> str:
        if self.stopped:
            return ""
        shown = self._release(self._detokenizer.flush())
        pending, self._pending = self._pending, ""
        return shown if self.stopped else shown + pending

    def _decode(self, index: int) -> str:
        known = index < self._vocab_size
        return self._detokenizer.feed(index) if known else self._detokenizer.flush() + UNKNOWN

    def _release(self, piece: str) -> str:
        text = self._pending + piece
        found = [start for stop in self._stop if (start := text.find(stop)) >= 0]
        if found:
            self.stopped, self._pending = True, ""
            return text[: min(found)]
        keep = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._pending = text[len(text) - keep :]
        return text[: len(text) - keep]


def decode_text(tokenizer: Tokenizer, ids: Iterable[int], stop: Sequence[str] = ()) -> str:
    """Return the text of some ids as `TextStream` shows it, up to the first stop string."""
    stream, text = TextStream(tokenizer, stop), ""
    for index in ids:
        text += stream.feed(index)
        if stream.stopped:
            break
    return text + stream.flush()


def token_name(tokenizer: Tokenizer, index: int) -> str:
    """Return the text of a token; `bytes:` with its bytes where it is no text on its own, `id:` where there is none."""
    if index >= tokenizer.vocab_size:
        return f"id:{index}"
    content = tokenizer.token_bytes(index)
    try:
        return content.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)


def text_at_end(ids: Sequence[int], tokenizer: Tokenizer, params: SamplingParams) -> str | None:
    """Return the text of new ids where sampling would end at the last of them; None: where it would go on."""
    if ids[-1] == params.end_id:
        return decode_text(tokenizer, ids[:-1], params.stop)
    stream, text = TextStream(tokenizer, params.stop), ""
    for index in ids:
        text += stream.feed(index)
        if stream.stopped:
            return text
    return None


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that `stop` begins with."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
