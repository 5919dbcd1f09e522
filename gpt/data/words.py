"""Tokenize words, which are separated by white space, with the `tokenizers` library."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from gpt.data.tokenizers import Ids, Tokenizer, require_characters, smallest_dtype
from gpt.data.tokenizers_library import library_errors, require_library
from gpt.system.errors import DataError, first_line

UNKNOWN = "<unk>"
"""The token of every word outside the vocabulary, as the field writes it (Penn Treebank)."""
WHITE_SPACE = r"\s"
"""The pattern of one white space character, as Unicode defines it."""
SPLITTER = {
    "type": "Split",
    "pattern": {"Regex": WHITE_SPACE},
    "behavior": "Isolated",
    "invert": False,
}
"""The pre-tokenizer of tokenizer.json: each white space character is a token, and so is what stands
between two of them, so that the tokens, one after the other, are the text."""
WHITE_SPACE_AND_MARKS = r"[\s\x1d-\x1f]"
"""The pattern of one white space character or one mark of items, which is no white space."""
SPLITTER_AT_MARKS = {**SPLITTER, "pattern": {"Regex": WHITE_SPACE_AND_MARKS}}
"""The pre-tokenizer of a vocabulary with marks: each mark is a token too, as white space is."""
DECODER = {"type": "Fuse"}
"""The decoder of tokenizer.json that puts nothing between two tokens."""


class WordTokenizer(Tokenizer):
    """One id per word of a vocabulary, one per white space character, and `<unk>`.

    White space is kept, so that a text of known words is decoded as it was written. A word outside
    the vocabulary is encoded as the id of `<unk>`, and decoded as `<unk>`.

    Attributes:
        unknown_length: number of characters that `count_chars` counts for an `<unk>`, since its id
            does not tell which word it stands for. It is the mean length of the unknown words in
            the text from which the vocabulary was learned, so that the count is right there.
    """

    def __init__(self, content: dict[str, Any], unknown_length: float | None = None) -> None:
        """Read a tokenizer.json.

        Args:
            unknown_length: None stands for the mean length of the words of the vocabulary.

        Raises:
            DataError: the library is missing, or the content is not a tokenizer of words.
        """
        require_library("a tokenizer of words")
        # Imported here, since the library is optional: characters and bytes do not need it.
        from tokenizers import Tokenizer as Library

        _require_words(content)
        with library_errors("not a tokenizer"):
            self._tokenizer = Library.from_str(json.dumps(content))
            vocabulary: dict[str, int] = self._tokenizer.get_vocab()
        self._content = content
        self._words = sorted(vocabulary, key=lambda word: vocabulary[word])  # by their ids
        # `decode` uses an id as the index of its word in this list.
        if sorted(vocabulary.values()) != list(range(len(vocabulary))):
            raise DataError("the ids of the words are not numbered from 0 without a gap")
        self.unknown_id = vocabulary[UNKNOWN]
        self._lengths = np.array([len(word) for word in self._words], dtype=np.float64)  # (V,)
        if unknown_length is None:
            unknown_length = float(self._lengths.mean())
        self.unknown_length = unknown_length
        self._lengths[self.unknown_id] = unknown_length

    @property
    def vocab_size(self) -> int:
        return len(self._words)

    def encode_narrow(self, text: str) -> Ids:
        require_characters(text)
        with library_errors("the tokenizer fails"):
            # Unlike `encode`, this method does not compute where each token lies in the text, which
            # would double the time.
            (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        return np.array(encoding.ids, dtype=smallest_dtype(self.vocab_size))

    def unknown_words(self, text: str) -> list[str]:
        """Return the distinct words of a text that are outside the vocabulary, in order."""
        known = set(self._words)
        distinct_parts = dict.fromkeys(self.split(text))  # unlike a set, it keeps their order
        return [part for part in distinct_parts if part not in known]

    def split(self, text: str) -> list[str]:
        """Return the words and white space characters of a text, one for each of its ids."""
        return [part for part, _ in self._tokenizer.pre_tokenizer.pre_tokenize_str(text)]

    def decode(self, ids: Sequence[int] | Ids) -> str:
        return "".join([self._words[int(index)] for index in ids])

    def token_bytes(self, index: int) -> bytes:
        return self._words[index].encode()

    def count_chars(self, ids: Ids) -> int:
        """Count the characters of the ids; an `<unk>` has `unknown_length`, on average."""
        return round(float(self._lengths[ids].sum()))

    def to_dict(self) -> dict[str, Any]:
        return {
            "type": "word",
            "tokenizer": self._content,
            "unknown_length": self.unknown_length,
        }


def whole_words(pieces: Iterable[str]) -> Iterator[str]:
    """Yield the text of some pieces in new pieces, which end after a space or a line end.

    A piece without a space or a line end is yielded as it is, though its last word may be cut: a
    text without spaces would otherwise be collected in memory as a whole.
    """
    unfinished_word = ""
    for piece in pieces:
        text = unfinished_word + piece
        end = max(text.rfind(" "), text.rfind("\n")) + 1
        if end == 0:  # `rfind` has found neither
            end = len(text)
        yield text[:end]
        unfinished_word = text[end:]
    if unfinished_word:
        yield unfinished_word


def learn_words(
    read: Callable[[], Iterable[str]], vocab_size: int, marks: Sequence[str] = ()
) -> WordTokenizer:
    """Return the tokenizer of the most frequent words and white space characters of a text.

    Args:
        read: returns the text in pieces. It is called twice, the second time to measure the words
            that are encoded as `<unk>`.
        vocab_size: largest number of ids, one of which is `<unk>`; a short text may give fewer.
        marks: control characters between the items of the text, each of which gets an id.
    """
    require_library("a tokenizer of words")
    # Imported here, since the library is optional: characters and bytes do not need it.
    from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
    from tokenizers import Tokenizer as Library

    library = Library(models.WordLevel(unk_token=UNKNOWN))
    pattern = WHITE_SPACE_AND_MARKS if marks else WHITE_SPACE
    library.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    library.decoder = decoders.Fuse()
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocab_size, special_tokens=[UNKNOWN, *marks], show_progress=False
    )
    library.train_from_iterator(whole_words(read()), trainer)
    content = json.loads(library.to_str())
    # The library would cut added tokens, such as "<unk>", out of longer words, such as "<unk>,".
    content["added_tokens"] = []
    id_of = library.get_vocab()
    by_id = sorted(id_of, key=lambda word: id_of[word])  # the most frequent words come first
    # Words are numbered anew: if the text itself has the word "<unk>", the ids have a gap.
    words = [UNKNOWN, *(word for word in by_id if word != UNKNOWN)]
    content["model"]["vocab"] = {word: index for index, word in enumerate(words)}
    # A first tokenizer finds the unknown words of the text, whose mean length the second one gets.
    unmeasured = WordTokenizer(content)
    unknown_length = _mean_unknown_length(unmeasured, whole_words(read()))
    return WordTokenizer(content, unknown_length)


def _mean_unknown_length(tokenizer: WordTokenizer, pieces: Iterable[str]) -> float | None:
    """Return the mean length of the words that are encoded as `<unk>`; None if no word is."""
    num_unknown = 0
    num_chars = 0
    for piece in pieces:
        ids = tokenizer.encode_narrow(piece)
        is_unknown = ids == tokenizer.unknown_id
        num_unknown += int(is_unknown.sum())
        # The characters of unknown words are those that the other tokens leave over.
        num_chars += len(piece) - len(tokenizer.decode(ids[~is_unknown]))
    return num_chars / num_unknown if num_unknown > 0 else None


def _require_words(content: dict[str, Any]) -> None:
    """Raise DataError unless a tokenizer.json has only the parts that `learn_words` writes.

    Somebody else may have written the file: another part could change the text, or take a time
    that doubles with each character.
    """
    try:
        model = content["model"]
        is_of_words = model["type"] == "WordLevel" and model["unk_token"] == UNKNOWN
        has_unknown = UNKNOWN in model["vocab"]
        is_known_splitter = content["pre_tokenizer"] in (SPLITTER, SPLITTER_AT_MARKS)
        keeps_text = is_known_splitter and content["decoder"] == DECODER
        # `learn_words` leaves these parts empty.
        other_parts = ("normalizer", "post_processor", "truncation", "padding", "added_tokens")
        has_others = any(content.get(part) for part in other_parts)
    except (KeyError, TypeError, AttributeError) as error:
        # Keys may be missing, and values may have any type.
        raise DataError(f"not a tokenizer: {first_line(error)}") from None
    is_supported = is_of_words and has_unknown and keeps_text and not has_others
    if not is_supported:
        raise DataError(
            "of tokenizers of words, only those are supported that keep white space as tokens, as "
            f"data.tokenizer=word learns them, with {UNKNOWN} for other words"
        )
