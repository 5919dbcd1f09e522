"""Text in and out of a model: ids of a prompt, and whole characters from a stream of ids."""

from collections.abc import Iterable, Sequence

from gpt.config import SampleConfig, SamplingParams
from gpt.data.items import encode_marked
from gpt.data.pairs import with_marks
from gpt.data.tokenizers import Tokenizer, convert_newlines
from gpt.system.errors import (
    DataError,
    GenerationError,
    UnknownCharactersError,
    outside_vocabulary,
)

FIRST_TEXT = "\n"
"""Where an empty prompt starts: after a line end, or, if the vocabulary has none, after id 0."""
UNKNOWN = "\N{REPLACEMENT CHARACTER}"
"""Shown for an id that the tokenizer does not have; a model's vocabulary may be larger."""


def encode_text(tokenizer: Tokenizer, text: str, params: SampleConfig) -> list[int]:
    """Return the ids of a text as a model reads it, with each line end converted to LF.

    A model of items reads a text after the token `params.begin_id`, as in its training.

    Raises:
        UnknownCharactersError: the text has characters outside the vocabulary.
    """
    text = convert_newlines(text)
    if params.begin_id is None:
        return tokenizer.encode(text).tolist()
    # The text may have marks, control characters such as the one before an answer. In training each
    # mark was a token by itself, and byte pairs must not merge it with the characters beside it.
    return [params.begin_id, *encode_marked(tokenizer, text)]


def encode_typed_text(tokenizer: Tokenizer, text: str, params: SampleConfig) -> list[int]:
    """Return the ids of a text that a person has typed to look at, as `encode_text` does.

    Tables and pages show the marks of items as signs, such as ␟. A model of items reads such a sign
    as the mark, so that a text can be typed as it is shown.
    """
    if params.begin_id is not None:
        text = with_marks(text)
    return encode_text(tokenizer, text, params)


def encode_prompt(
    tokenizer: Tokenizer, prompt: str, params: SamplingParams, block_size: int
) -> list[int]:
    """Return the token ids of a prompt, with each line end converted to LF as in a corpus.

    Raises:
        GenerationError: the prompt is no text, or it is too long and `params.long_prompt` is
            refuse.
        UnknownCharactersError: the prompt has characters outside the vocabulary.
    """
    if not isinstance(prompt, str):
        raise GenerationError(f"the prompt is a {type(prompt).__name__}, expected a text")
    try:
        ids = encode_text(tokenizer, prompt, params)
    except UnknownCharactersError as error:
        remedy = "or pass --unknown drop or replace (unknown= of CharTokenizer)"
        raise UnknownCharactersError(f"the prompt has {error}, {remedy}") from None
    return fit_prompt(ids, tokenizer, params, block_size)


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
            # The error keeps its class, by which callers tell the causes apart.
            raise type(error)(f"prompt {number} of {len(prompts)}: {error}") from None
    return encoded


def fit_prompt(
    ids: list[int], tokenizer: Tokenizer, params: SamplingParams, block_size: int
) -> list[int]:
    """Return the ids of a prompt that a model reads: at least one, at most `block_size`.

    Raises:
        GenerationError: the prompt is longer, and `params.long_prompt` is refuse.
    """
    if not ids:
        # A model predicts only after at least one token. A model of items begins with `begin_id`.
        if params.begin_id is not None:
            return [params.begin_id]
        return _first_ids(tokenizer)
    if len(ids) <= block_size:
        return ids
    if params.long_prompt == "refuse":
        raise GenerationError(
            f"the prompt has {len(ids)} tokens, more than the window of {block_size}; "
            "shorten it, or continue from its end with --crop-prompt (long_prompt=crop)"
        )
    return ids[-block_size:]  # the text continues from its end


def check_ids(ids: Iterable[int], vocab_size: int) -> None:
    """Raise InputError unless a model has all ids.

    The native engine does not check them, and would read past its embedding.
    """
    for index in ids:
        if not 0 <= index < vocab_size:
            raise outside_vocabulary(index, vocab_size)


def _first_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the ids that stand for an empty prompt: a line end, after which a text may begin."""
    try:
        ids = tokenizer.encode(FIRST_TEXT)
    except DataError:
        return [0]  # the vocabulary has no line end, and any other id is as good
    if tokenizer.decode(ids) != FIRST_TEXT:  # the tokenizer dropped or replaced the line end
        return [0]
    return [int(ids[-1])]  # a tokenizer may write a space before the line end


class TextStream:
    """Detokenizes ids as they come, until a stop string is reached.

    Text that could begin a stop string is held back until later text shows that it does not.

    Attributes:
        stopped: whether a stop string was reached; nothing may be fed then.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._vocab_size = tokenizer.vocab_size
        self._detokenizer = tokenizer.stream()
        self._stop = stop
        self._held_back = ""
        self.stopped = False

    def begin(self, ids: Iterable[int]) -> str:
        """Return the text of ids before the stream.

        The last of them may begin a character that the first fed id ends.
        """
        return "".join(self._decode(index) for index in ids)

    def feed(self, index: int) -> str:
        """Return the text that may be shown after one more id."""
        assert not self.stopped
        return self._release(self._decode(index))

    def flush(self) -> str:
        """Return the text that was held back, after the last id."""
        if self.stopped:
            return ""
        shown = self._release(self._detokenizer.flush())
        # The last characters may have completed a stop string. If not, what was held back as the
        # beginning of one is shown after all.
        if not self.stopped:
            shown += self._held_back
        self._held_back = ""
        return shown

    def _decode(self, index: int) -> str:
        """Return the text that an id completes; an id that the tokenizer lacks as `UNKNOWN`."""
        if index < self._vocab_size:
            return self._detokenizer.feed(index)
        return self._detokenizer.flush() + UNKNOWN

    def _release(self, piece: str) -> str:
        """Return the text that may be shown when a piece is added to what was held back."""
        text = self._held_back + piece
        starts = [text.find(stop) for stop in self._stop]
        found = [start for start in starts if start >= 0]
        if found:
            self.stopped = True
            self._held_back = ""
            return text[: min(found)]  # up to the stop string that comes first
        # The end of the text may begin a stop string, and is held back until the next piece.
        overlaps = [_overlap(text, stop) for stop in self._stop]
        num_held_back = max(overlaps, default=0)
        num_shown = len(text) - num_held_back
        self._held_back = text[num_shown:]
        return text[:num_shown]


def decode_text(tokenizer: Tokenizer, ids: Iterable[int], stop: Sequence[str] = ()) -> str:
    """Return the text of some ids as `TextStream` shows it, up to the first stop string."""
    stream = TextStream(tokenizer, stop)
    text = ""
    for index in ids:
        text += stream.feed(index)
        if stream.stopped:
            break
    return text + stream.flush()


def text_at_end(ids: Sequence[int], tokenizer: Tokenizer, params: SamplingParams) -> str | None:
    """Return the text of new ids if sampling would end at the last of them, or None if it goes on.

    Beam search asks this of each hypothesis.
    """
    if ids[-1] == params.end_id:
        return decode_text(tokenizer, ids[:-1], params.stop)
    stream = TextStream(tokenizer, params.stop)
    text = ""
    for index in ids:
        text += stream.feed(index)
        if stream.stopped:
            return text
    return None


def token_name(tokenizer: Tokenizer, index: int) -> str:
    """Return the text of a token, for a list of tokens.

    A token that is no text on its own, such as half of a character, is named by its bytes
    (`bytes:\\xc3`), and an id that the tokenizer does not have by its number (`id:300`).
    """
    if index >= tokenizer.vocab_size:
        return f"id:{index}"
    content = tokenizer.token_bytes(index)
    try:
        return content.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that is a beginning of `stop`, but not all."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
