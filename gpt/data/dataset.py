"""A corpus as a token file: memory-mapped and verified."""

import errno
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt.data.items import ItemIds, item_ids, item_spans
from gpt.data.saved_tokenizer import tokenizer_from_dict
from gpt.data.tokenizers import Tokenizer
from gpt.data.tokens import Tokens, in_pieces
from gpt.system.errors import DataError, explained, quoted
from gpt.system.files import MAX_JSON_BYTES, open_file, parse_json, read_file, sha256_of

META = "dataset.json"
"""File of the length, hash, type, splits and tokenizer."""
NUM_QUOTED_TOKENS = 40
"""Tokens of an item by which a message names it."""
TOKENS = "tokens.bin"
"""File of the token ids of the text, little-endian."""
DAMAGE_ERRNOS = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.EFBIG})
"""Errors by which a file is gone, or is something else than the file that was written.

`open_file` raises EINVAL for what is not a regular file, and `read_file` raises EFBIG for a file
that is too large. After other errors, such as those of a missing permission or a failing disk, the
file may be whole.
"""
SPLITS_NOT_ADJACENT = "the splits do not follow one another from the first token to the last"


class LongAnswerError(DataError):
    """An answer is too long for a window.

    Attributes:
        text: the text of the pair or the conversation that has the answer.
    """

    def __init__(self, question: str, length: int, block_size: int, text: str) -> None:
        self._problem = (
            f"has {length:,} tokens, and model.block_size is {block_size:,}; shorten it, or take a "
            "larger window"
        )
        self.text = text
        super().__init__(f"the answer of {question} {self._problem}")

    def at(self, place: str) -> DataError:
        """Return this error as one that names the answer by its place, not by its question."""
        return DataError(f"{place}: the answer {self._problem}")


@dataclass(frozen=True)
class Dataset:
    """A tokenized corpus: its splits in the order of the text, memory-mapped where it is one text.

    Attributes:
        tokenizer: built from the whole corpus, or taken from a checkpoint.
        fingerprint: a hash that changes when the text, the tokenizer or a split changes.
        test: the test split, which never selects a model; None where the configuration has none.
        text_ranges: where each of several texts begins and ends in the training split, (S, 2);
            None where the corpus is one text.
        items: ids of the tokens that mark the items; None where the corpus is running text.
        held_out: names of the splits that have files of their own, by `data.val_path` and
            `data.test_path`.
    """

    train: Tokens
    val: Tokens
    tokenizer: Tokenizer
    fingerprint: str
    test: Tokens | None = None
    text_ranges: NDArray[np.int64] | None = None
    items: ItemIds | None = None
    held_out: tuple[str, ...] = ()

    @property
    def splits(self) -> list[Tokens]:
        """The training and the validation split, and the test split if there is one."""
        splits = [self.train, self.val]
        if self.test is not None:
            splits.append(self.test)
        return splits

    @property
    def has_answers(self) -> bool:
        """Whether the items are questions with answers."""
        return self.items is not None and self.items.answer is not None

    def chars_per_token(self, tokens: Tokens) -> float:
        """Return the average characters per token of a split, or a part of one."""
        chars = sum(self.tokenizer.count_chars(piece) for piece in in_pieces(tokens))
        return chars / len(tokens)

    def check_length(self, block_size: int) -> None:
        """Raise DataError unless each training text, and the validation split, fill a window.

        Windows of items are padded, so that an item may be shorter than a window. Only an answer
        must not be longer.
        """
        if self.items is not None:
            self._check_answers(block_size)
            return
        train_name, train_length = self._shortest_training_text()
        # If validation has a fraction of the text, another fraction moves tokens from one split to
        # the other. If it has a text of its own, the split that is too short needs a longer text.
        train_remedy = "another data.val_fraction"
        val_remedy = "another data.val_fraction"
        if "val" in self.held_out:
            train_remedy = "a longer text in data.path"
            val_remedy = "a longer data.val_path"
        for name, length, remedy in (
            (train_name, train_length, train_remedy),
            ("the val split", len(self.val), val_remedy),
        ):
            # A window has `block_size` inputs, and the target of the last one after them.
            if length < block_size + 1:
                raise DataError(
                    f"{name} has {length:,} tokens, fewer than block_size + 1 = "
                    f"{block_size + 1:,}; use more text, a smaller model.block_size or {remedy}"
                )

    def _shortest_training_text(self) -> tuple[str, int]:
        """Return the name, in messages, of the shortest training text, and its number of tokens."""
        if self.text_ranges is None:
            return "the train split", len(self.train)
        # Windows never cross from one text into the next, so that each text has to fill one.
        lengths = np.diff(self.text_ranges, axis=1).squeeze(1)  # (S,)
        index = int(lengths.argmin())
        name = f"the train split of text {index + 1} of the {len(lengths)} in data.path"
        return name, int(lengths[index])

    def _check_answers(self, block_size: int) -> None:
        """Raise LongAnswerError if an answer of any split is too long for a window."""
        assert self.items is not None
        if self.items.answer is None:
            return  # other items may be cut into pieces
        for tokens in self.splits:
            for begin, end in item_spans(tokens, self.items.end):
                item = tokens[begin:end]
                length = self.items.longest_answer(item)
                # The mark before the answer must fit into the window too, so that an answer of
                # `block_size` tokens is too long.
                if length >= block_size:
                    question = quoted(self.tokenizer.decode(item[:NUM_QUOTED_TOKENS]))
                    text = self.tokenizer.decode(item[:-1])  # without the end of the item
                    raise LongAnswerError(question, length, block_size, text)


def join_texts(datasets: Sequence[Dataset]) -> Dataset:
    """Join the datasets of several texts, which share a tokenizer, in memory.

    A single dataset is returned as it is, still memory-mapped. Otherwise each split of the
    result is the concatenation of that split of the datasets, in their order.
    """
    first = datasets[0]
    if len(datasets) == 1:
        return first
    # Where each text ends and begins in the joined training split, (S,) each.
    ends = np.cumsum([len(each.train) for each in datasets])
    begins = np.append(0, ends[:-1])
    tests = [each.test for each in datasets if each.test is not None]
    return Dataset(
        train=np.concatenate([each.train for each in datasets]),
        val=np.concatenate([each.val for each in datasets]),
        tokenizer=first.tokenizer,
        fingerprint="+".join(each.fingerprint for each in datasets),
        test=np.concatenate(tests) if tests else None,
        text_ranges=np.stack([begins, ends], axis=1),
    )


def token_folders(folder: Path, fingerprint: str) -> list[Path]:
    """Return the folders below `folder` with the token files of a dataset of this fingerprint.

    The fingerprint of several texts joins one for each text with a plus sign, see `join_texts`.
    """
    return [folder / name for name in fingerprint.split("+")]


def seal(meta: dict[str, Any]) -> dict[str, Any]:
    """Return the content of `META` with its hash added.

    The hash detects damage on disk: a damaged vocabulary would decode to other text silently.
    """
    return {**meta, "seal": _hash(meta)}


def unseal(sealed: dict[str, Any]) -> dict[str, Any]:
    """Return the content without its hash; raise ValueError if the hash does not match it."""
    meta = dict(sealed)
    if meta.pop("seal", None) != _hash(meta):
        raise ValueError(f"{META} has other content than was written")
    return meta


def _hash(meta: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()


def open_dataset(folder: Path) -> Dataset:
    """Memory-map the token file that `prepare` wrote, after comparing it with its hash.

    Raises:
        DataError: the files are missing or damaged, or cannot be read.
    """
    try:
        return _open(folder)
    except OSError as error:
        reason = explained(error)
        if error.filename:
            reason = f"{Path(error.filename).name}: {reason}"
        if error.errno in DAMAGE_ERRNOS:
            raise _damaged(folder, reason) from None
        raise DataError(f"cannot read the token files in {folder}: {reason}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, DataError) as error:
        # A file with another hash than was written raises ValueError. Values of the wrong type in
        # the JSON can raise any of these errors.
        raise _damaged(folder, explained(error)) from None


def _damaged(folder: Path, reason: str) -> DataError:
    return DataError(
        f"the token files in {folder} are damaged ({reason}); delete that folder and start again"
    )


def _open(folder: Path) -> Dataset:
    """Open a dataset, and let any error about its files through to `open_dataset`."""
    content = read_file(folder / META, MAX_JSON_BYTES)
    meta = unseal(parse_json(content))
    tokenizer = tokenizer_from_dict(meta["tokenizer"])
    tokens = _map(folder / TOKENS, meta["dtype"], meta["length"], meta["sha256"])
    splits: dict[str, Tokens] = {}
    end_before = 0
    for name, (begin, end) in meta["splits"].items():
        if begin != end_before or end < begin:
            raise ValueError(SPLITS_NOT_ADJACENT)
        splits[name] = tokens[begin:end]
        end_before = end
    if end_before != len(tokens):
        raise ValueError(SPLITS_NOT_ADJACENT)
    kind = meta.get("items", "none")  # token files of running text have no such key
    return Dataset(
        train=splits["train"],
        val=splits["val"],
        tokenizer=tokenizer,
        fingerprint=folder.name,
        test=splits.get("test"),
        items=None if kind == "none" else item_ids(kind, tokenizer),
        held_out=tuple(meta.get("held_out", ())),
    )


def _map(path: Path, dtype: str, length: int, sha256: str) -> Tokens:
    """Memory-map a token file after checking its size and its hash."""
    # The size is checked first, since hashing a file takes much longer.
    if path.stat().st_size != length * np.dtype(dtype).itemsize:
        raise ValueError(f"{path.name} has the wrong size")
    if sha256_of(path) != sha256:
        raise ValueError(f"{path.name} has another sha256 than was written")
    with open_file(path) as file:
        return np.memmap(file, dtype=dtype, mode="r", shape=(length,))
