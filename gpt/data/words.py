"""Words as tokens: what stands between white space, by the `tokenizers` library."""

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
"""The same, or one of the marks of items, which Unicode does not count as white space."""
SPLITTER_AT_MARKS = {**SPLITTER, "pattern": {"Regex": WHITE_SPACE_AND_MARKS}}
"""The pre-tokenizer of a vocabulary with marks: each mark is a token too, as white space is."""
DECODER = {"type": "Fuse"}
"""The decoder of tokenizer.json that puts nothing between two tokens."""


class WordTokenizer(Tokenizer):
    """One id per word of a vocabulary, one per white space character, and `<unk>`.

    White space is kept, so that a text of known words is decoded as it was written. A word outside
    the vocabulary is read as `<unk>`, and written so.

    Attributes:
        unknown_length: the characters that an `<unk>` counts, since its id does not tell which word
            it stood for: the average of the unknown words of the text that the vocabulary was
            learned from, so that this text has as many characters as it is long.
    """

    def __init__(self, content: dict[str, Any], unknown_length: float | None = None) -> None:
        """Read a tokenizer.json.

        Args:
            unknown_length: None: it is not known, and the average of the vocabulary is taken.

        Raises:
            DataError: the library is missing, or the content is of another kind.
        """
        require_library("a tokenizer of words")
        # Here and not above, since a vocabulary of characters or bytes does without the library.
        from tokenizers import Tokenizer as Library

        _require_words(content)
        with library_errors("not a tokenizer"):
            self._tokenizer = Library.from_str(json.dumps(content))
            vocabulary: dict[str, int] = self._tokenizer.get_vocab()
        self._content = content
        self._words = sorted(vocabulary, key=lambda word: vocabulary[word])  # by their ids
        # `decode` takes an id for the place of its word in this list.
        if sorted(vocabulary.values()) != list(range(len(vocabulary))):
            raise DataError("the ids of the words are not numbered from 0 without a gap")
        self.unknown_id = vocabulary[UNKNOWN]
        self._lengths = np.array([len(word) for word in self._words], dtype=np.float64)  # (V,)
        self.unknown_length = (
            float(self._lengths.mean()) if unknown_length is None else unknown_length
        )
        self._lengths[self.unknown_id] = self.unknown_length

    @property
    def vocab_size(self) -> int:
        return len(self._words)

    def encode_narrow(self, text: str) -> Ids:
        require_characters(text)
        with library_errors("the tokenizer fails"):
            # Unlike `encode`, it finds no places in the text, which take as long again.
            (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        return np.array(encoding.ids, dtype=smallest_dtype(self.vocab_size))

    def unknown_words(self, text: str) -> list[str]:
        """Return the distinct words of a text that are outside the vocabulary, in order."""
        known = set(self._words)
        return [part for part in dict.fromkeys(self.split(text)) if part not in known]

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
    """Yield a text that comes in pieces in other pieces, whose ends cut no word in two.

    A word that is longer than a piece is cut all the same, since it may be as long as the text.
    """
    held = ""
    for piece in pieces:
        text = held + piece
        end = max(text.rfind(" "), text.rfind("\n")) + 1
        if end == 0:
            end = len(text)
        yield text[:end]
        held = text[end:]
    if held:
        yield held


def learn_words(
    read: Callable[[], Iterable[str]], vocab_size: int, marks: Sequence[str] = ()
) -> WordTokenizer:
    """Return the tokenizer of the most frequent words and white space characters of a text.

    Args:
        read: returns the text in pieces; it is called twice, the second time to measure the words
            that became `<unk>`.
        vocab_size: ids, of which one is `<unk>`; a short text may give fewer.
        marks: control characters between the items of the text, each of which gets an id.
    """
    require_library("a tokenizer of words")
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
    # As an added token it would be cut out of longer words, such as "<unk>,".
    content["added_tokens"] = []
    id_of = library.get_vocab()
    by_id = sorted(id_of, key=lambda word: id_of[word])  # the most frequent first
    # The library leaves a gap in the ids where the text itself has the word "<unk>".
    words = [UNKNOWN, *(word for word in by_id if word != UNKNOWN)]
    content["model"]["vocab"] = {word: index for index, word in enumerate(words)}
    # How long unknown words are on average tells how many characters a text of ids stands for. A
    # tokenizer is needed to find them in the text.
    unmeasured = WordTokenizer(content)
    return WordTokenizer(content, _mean_unknown_length(unmeasured, whole_words(read())))


def _mean_unknown_length(tokenizer: WordTokenizer, pieces: Iterable[str]) -> float | None:
    """Return the average characters of the words that are read as `<unk>`; None: there are none."""
    num_unknown = 0
    num_chars = 0
    for piece in pieces:
        ids = tokenizer.encode_narrow(piece)
        is_unknown = ids == tokenizer.unknown_id
        num_unknown += int(is_unknown.sum())
        num_chars += len(piece) - len(tokenizer.decode(ids[~is_unknown]))
    return num_chars / num_unknown if num_unknown > 0 else None


def _require_words(content: dict[str, Any]) -> None:
    """Raise DataError unless a tokenizer.json is of words as `learn_words` reads them.

    Somebody else may have written it: another part could change the text, or take a time that
    doubles with each character.
    """
    try:
        model = content["model"]
        is_of_words = model["type"] == "WordLevel" and model["unk_token"] == UNKNOWN
        has_unknown = UNKNOWN in model["vocab"]
        is_known_splitter = content["pre_tokenizer"] in (SPLITTER, SPLITTER_AT_MARKS)
        splits = is_known_splitter and content["decoder"] == DECODER
        others = ("normalizer", "post_processor", "truncation", "padding", "added_tokens")
        has_others = any(content.get(part) for part in others)
    except (KeyError, TypeError, AttributeError) as error:  # the content may be anything
        raise DataError(f"not a tokenizer: {first_line(error)}") from None
    is_supported = is_of_words and has_unknown and splits and not has_others
    if not is_supported:
        raise DataError(
            "of tokenizers of words, only those are supported that keep white space as tokens, as "
            f"data.tokenizer=word learns them, with {UNKNOWN} for other words"
        )
