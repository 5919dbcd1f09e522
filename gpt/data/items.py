"""Corpora of items: lists of lines, texts between empty lines, questions with answers.

An item is a text by itself, such as a name, a poem or a question with its answer. Splitting,
shuffling and sampling keep items whole. In a token file a single token marks the end of each item.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpt.config import DataConfig
from gpt.data.corpus_text import CorpusText
from gpt.data.pairs import ANSWER, END_OF_TEXT, MARKS, TURN, read_pairs
from gpt.data.tokenizers import Ids, Tokenizer
from gpt.data.tokens import Tokens
from gpt.system.errors import DataError

END_OF_LINE = "\n"
"""Ends each item of `data.items: lines`, as in the file."""
EMPTY_LINES = re.compile(r"\n(?:[ \t]*\n)+")
PARTS_AND_MARKS = re.compile(f"([{''.join(MARKS)}])")
"""Splits a text into parts without marks, and the marks between them."""
HASH_BYTES = 8
"""Bytes of the hash by which items are ordered: with 64 bits, different texts seldom share one."""


@dataclass(frozen=True)
class ItemIds:
    """The ids of the tokens that mark the items of a token file.

    Attributes:
        end: id of the mark at the end of each item; windows and prompts begin with it too.
        answer: id of the mark before an answer. The loss counts only answers with their ends, or
            all tokens if this is None.
        turn: id of the mark between an answer and the next question of an item, or None where
            `answer` is None.
    """

    end: int
    answer: int | None = None
    turn: int | None = None

    def counted(self, ids: Ids) -> NDArray[np.bool_]:
        """Return which tokens of an item count as targets, (T,).

        If items have answers, those are the tokens of the answers and of the marks at their ends.
        """
        if self.answer is None:
            return np.ones(len(ids), dtype=bool)
        begins = ids == self.answer
        ends = (ids == self.end) | (ids == self.turn)
        # A token is a part of an answer if a beginning is the last mark before it. The end of an
        # answer counts as a part of it, so that a token is compared only with ends before itself.
        # Tokens before the first beginning do not count: if they belong to an answer, its question
        # was cut off.
        positions = np.arange(len(ids))
        last_begin = np.maximum.accumulate(np.where(begins, positions, -1))
        last_end = np.maximum.accumulate(np.where(ends, positions, -1))
        end_before = np.append(-1, last_end[:-1])
        is_in_answer = last_begin > end_before
        return is_in_answer & ~begins

    def longest_answer(self, ids: Ids) -> int:
        """Return the number of tokens of the longest answer of an item, including its end."""
        # Questions stand between answers, so that an answer is a run of tokens that count.
        others = np.flatnonzero(~self.counted(ids))
        borders = np.concatenate([[-1], others, [len(ids)]])
        # Between two borders there is one token less than their difference.
        return int(np.diff(borders).max()) - 1


def end_of_items(kind: str) -> str:
    """Return the character that ends each item, for a value of `data.items` other than none."""
    return END_OF_LINE if kind == "lines" else END_OF_TEXT


def item_ids(kind: str, tokenizer: Tokenizer) -> ItemIds:
    """Return the ids of the marks of a token file of `data.items: kind`."""
    end = _id_of(end_of_items(kind), tokenizer)
    if kind != "pairs":
        return ItemIds(end)
    return ItemIds(end, _id_of(ANSWER, tokenizer), _id_of(TURN, tokenizer))


def _id_of(mark: str, tokenizer: Tokenizer) -> int:
    """Return the id of a mark, which is a single token in every vocabulary of items."""
    # It is the last id, since a tokenizer of sentencepiece encodes a space before the text.
    return int(tokenizer.encode(mark)[-1])


def encode_marked(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the ids of a text in which each mark is encoded separately.

    Byte pairs would otherwise merge a mark with the characters beside it.
    """
    ids: list[int] = []
    for part in PARTS_AND_MARKS.split(text):
        ids += tokenizer.encode(part).tolist()
    return ids


def item_spans(tokens: Tokens, end: int) -> NDArray[np.int64]:
    """Return where each item of a split begins and ends, (N, 2), including the mark of its end."""
    ends = np.flatnonzero(tokens == end) + 1
    begins = np.append(0, ends[:-1])
    return np.stack([begins, ends], axis=1)


class Question(NamedTuple):
    """The last question of a conversation and its answer.

    Attributes:
        ids: the id of an end of items, and those of the conversation up to its last answer.
        answer: the ids of the last answer, without its end.
    """

    ids: list[int]
    answer: list[int]


def questions_of(tokens: Tokens, ids: ItemIds, block_size: int) -> Iterator[Question]:
    """Yield the last question of each conversation of a split.

    A long question is cropped at its beginning, so that a window holds its answer too.
    """
    for begin, end in item_spans(tokens, ids.end):
        item = tokens[begin:end]
        answer_begin = int(np.flatnonzero(item == ids.answer)[-1]) + 1
        answer = item[answer_begin:-1].tolist()
        question = [ids.end, *item[:answer_begin].tolist()]  # as a window begins in training
        max_question_length = block_size - len(answer)
        yield Question(question[-max_question_length:], answer)


class ItemCorpus(CorpusText):
    """The items of some files, in the order of their token file, each followed by its end.

    The items are ordered by a hash of their text, so that the splits do not depend on the order of
    the file: a sorted list is split like a shuffled one. Equal items are always in the same split.

    Attributes:
        items: the texts, without their ends; those of the training split come first.
        split_sizes: the number of items of the training, validation and test split.

    Args:
        held_out: see `CorpusText`.
        is_held_out: whether this is a held-out text itself, all of which is one split.
    """

    def __init__(
        self,
        files: Sequence[Path],
        config: DataConfig,
        held_out: Mapping[str, CorpusText] | None = None,
        is_held_out: bool = False,
    ) -> None:
        super().__init__(files, held_out)
        self.kind = config.items
        self.end = end_of_items(config.items)
        # The items of `lines` have no marks, since a line end is an ordinary character of a text.
        if config.items == "pairs":
            self.marks = (END_OF_TEXT, ANSWER, TURN)
        elif config.items == "paragraphs":
            self.marks = (END_OF_TEXT,)
        items = _read_items(CorpusText(files), config.items)
        # Neither a held-out text nor a corpus that has one for validation is divided.
        is_split = not is_held_out and "val" not in self.held_out
        if is_split and len(items) < 2:
            raise DataError(
                f"{self.name} has {len(items)} items with data.items: {config.items}; at least 2 "
                "are needed, one of which validates"
            )
        hashes = [_hash_of(item) for item in items]
        # The indices are sorted by the hashes, so that both lists can be put into this order.
        order = sorted(range(len(items)), key=hashes.__getitem__)
        self.items = [items[index] for index in order]
        if is_split:
            self.split_sizes = _split_sizes([hashes[index] for index in order], config)
        else:
            self.split_sizes = (len(items), 0, 0)

    def pieces(self, advance: Callable[[int], object] = lambda count: None) -> Iterator[str]:
        """Yield each item with its end; `advance` is called once, with the bytes on disk."""
        for item in self.items:
            yield item + self.end
        advance(self.size)

    def characters(self) -> list[str]:
        """Return the distinct characters, sorted, and all marks that such items can have."""
        return sorted({*super().characters(), self.end, *self.marks})

    def sample(self) -> Iterator[str]:
        """Yield the text from which byte pairs are learned, with each mark separate.

        A pair of a mark and a character beside it must not be learned: `encoded` never writes such
        a pair, but another program that does not know the marks would.
        """
        for piece in super().sample():
            yield from PARTS_AND_MARKS.split(piece)

    def encoded(self, tokenizer: Tokenizer) -> Iterator[Ids]:
        """Yield the ids of each item and of its end.

        Each mark is encoded separately, since byte pairs would merge it with characters beside it.
        """
        end = tokenizer.encode_narrow(self.end)
        for item in self.items:
            for part in PARTS_AND_MARKS.split(item):
                yield tokenizer.encode_narrow(part)
            yield end


def _hash_of(item: str) -> bytes:
    return hashlib.blake2b(item.encode(), digest_size=HASH_BYTES).digest()


def _split_sizes(hashes: Sequence[bytes], config: DataConfig) -> tuple[int, int, int]:
    """Return the number of items of each split; only the test split may be empty.

    Args:
        hashes: the sorted hashes of the items, in which those of equal items are neighbors.
    """
    total = len(hashes)
    # Training and validation need at least one item each, even if rounding leaves none.
    num_test = min(round(total * config.test_fraction), total - 2)
    num_val = max(1, round(total * config.val_fraction))
    num_train = max(1, total - num_test - num_val)  # may take one of the validation items
    # Equal items must not be in two splits: a model would be validated on what it was trained on.
    end_of_train = _before_duplicates(hashes, num_train)
    end_of_val = _before_duplicates(hashes, total - num_test)
    if end_of_train == 0 or end_of_val <= end_of_train:
        raise DataError("too many items are the same: no split has items that the others lack")
    return end_of_train, end_of_val - end_of_train, total - end_of_val


def _before_duplicates(hashes: Sequence[bytes], border: int) -> int:
    """Return a border between two splits, moved back so that it does not separate equal items."""
    while 0 < border < len(hashes) and hashes[border - 1] == hashes[border]:
        border -= 1
    return border


def _read_items(corpus: CorpusText, kind: str) -> list[str]:
    """Return the items of a corpus, in the order of its files.

    Raises:
        DataError: an item contains a mark.
    """
    if kind == "pairs":
        return read_pairs(corpus)  # refuses marks itself, and can name the file and the line
    text = "".join(corpus.pieces())
    for mark, name in MARKS.items():
        if mark in text:
            file, line = _find_mark(mark, corpus)
            raise DataError(
                f"{file} has the control character {mark!r} ({name}) in line {line:,}, "
                "which ends items in token files; remove it"
            )
    return lines_of(text) if kind == "lines" else paragraphs_of(text)


def _find_mark(mark: str, corpus: CorpusText) -> tuple[Path, int]:
    """Return the first file of a corpus that has a mark, and the number of its line.

    The files are read again one by one, since the text of a corpus does not show where they begin.
    """
    for file in corpus.files:
        text = "".join(CorpusText([file]).pieces())
        if mark in text:
            return file, text.count("\n", 0, text.index(mark)) + 1
    raise DataError(f"{corpus.name} was changed while it was read; start again")


def lines_of(text: str) -> list[str]:
    """Return the lines that are not blank, without white space at their ends."""
    lines = [line.rstrip() for line in text.split("\n")]
    return [line for line in lines if line]


def paragraphs_of(text: str) -> list[str]:
    """Return the texts between empty lines, which may have several lines each."""
    texts = [part.strip("\n") for part in EMPTY_LINES.split(text)]
    return [part for part in texts if part.strip()]
