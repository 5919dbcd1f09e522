"""Byte pair encoding, compared with what the library itself makes of ids."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from gpt.data.bpe import BPETokenizer
from gpt.data.saved_tokenizer import tokenizer_from_dict
from gpt.errors import DataError
from tiny import CORPUS

END = "<|endoftext|>"


def trained() -> Any:
    """The library's own tokenizer: 300 tokens of a small corpus, and one that is added."""
    library = LibraryTokenizer(BPE())
    library.pre_tokenizer = ByteLevel(add_prefix_space=False)
    library.decoder = ByteLevelDecoder()
    alphabet = ByteLevel.alphabet()
    library.train_from_iterator([CORPUS], BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False))
    library.add_special_tokens([AddedToken(END)])
    return library


LIBRARY = trained()
OURS = BPETokenizer(json.loads(LIBRARY.to_str()))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
IDS = st.lists(st.integers(0, LIBRARY.get_vocab_size() - 1))


@given(TEXTS)
def test_a_text_comes_back(text: str) -> None:
    ids = OURS.encode(text)
    assert ids.tolist() == LIBRARY.encode(text).ids
    assert OURS.decode(ids) == text
    assert OURS.count_chars(ids) == len(text)


@given(IDS)
def test_any_ids_decode_as_in_the_library(ids: list[int]) -> None:
    assert OURS.decode(ids) == LIBRARY.decode(ids, skip_special_tokens=False)


@given(IDS)
def test_streamed_ids_give_the_same_text(ids: list[int]) -> None:
    stream = OURS.stream()
    assert "".join([*map(stream.feed, ids), stream.flush()]) == OURS.decode(ids)


def test_tokens_are_longer_than_characters() -> None:
    ids = OURS.encode(CORPUS)
    assert len(ids) < 0.8 * len(CORPUS)
    assert OURS.vocab_size == LIBRARY.get_vocab_size()
    assert ids.max() < OURS.vocab_size


def test_an_added_token_is_its_own_text() -> None:
    ids = OURS.encode(f"a{END}b")
    assert len(ids) == 3
    assert OURS.decode(ids) == f"a{END}b"


def test_it_survives_json() -> None:
    again = tokenizer_from_dict(json.loads(json.dumps(OURS.to_dict())))
    assert again.encode(CORPUS).tolist() == OURS.encode(CORPUS).tolist()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decoder": {"type": "Metaspace"}}, "only byte pair encoding with byte-level tokens"),
        ({"decoder": None}, "not a tokenizer"),
        ({"decoder": "x"}, "not a tokenizer"),
        ({"decoder": [1]}, "not a tokenizer"),
        ({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}, "254 of the 256 bytes have no token"),
        ({"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}, "only byte pair encoding"),
        ({"model": {"type": "BPE", "vocab": {"a": 300_000_000}, "merges": []}}, "10,000,000 ids are supported"),
    ],
)
def test_other_tokenizers_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        BPETokenizer(OURS.to_dict()["tokenizer"] | changes)


def test_half_a_surrogate_pair_is_named() -> None:
    with pytest.raises(DataError, match=r"'\\udcff' at 1 is not a character"):
        OURS.encode("a\udcff")


def test_a_token_of_something_else_than_bytes_is_refused() -> None:
    content = OURS.to_dict()["tokenizer"]
    vocabulary = content["model"]["vocab"] | {"☃": len(content["model"]["vocab"]) + 1}
    with pytest.raises(DataError, match="'☃' is not made of bytes"):
        BPETokenizer(content | {"model": content["model"] | {"vocab": vocabulary}})


def test_texts_are_neither_cut_nor_padded() -> None:
    cut = {"max_length": 3, "stride": 0, "strategy": "LongestFirst", "direction": "Right"}
    assert (
        BPETokenizer(OURS.to_dict()["tokenizer"] | {"truncation": cut}).encode(CORPUS).tolist()
        == OURS.encode(CORPUS).tolist()
    )
