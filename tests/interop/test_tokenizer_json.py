"""tokenizer.json, read by the library that defines it."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer as LibraryTokenizer

from gpt.data.bpe import BPETokenizer
from gpt.data.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer
from gpt.interop.tokenizer_json import from_tokenizer_json, to_tokenizer_json
from gpt.system.errors import DataError

LICENSE = (Path(__file__).resolve().parents[2] / "LICENSE").read_text(encoding="utf-8")
CHARS = CharTokenizer(LICENSE + "\r\té€😀␣Ġ")


def in_library(tokenizer: Tokenizer) -> Any:
    return LibraryTokenizer.from_str(json.dumps(to_tokenizer_json(tokenizer)))


CHARS_THERE, BYTES_THERE = in_library(CHARS), in_library(ByteTokenizer())


@given(st.text(st.sampled_from(CHARS.itos)), st.text(st.characters(exclude_categories=["Cs"])))
@example(LICENSE, LICENSE)
def test_texts_have_the_same_ids(text: str, any_text: str) -> None:
    for there, here, written in ((CHARS_THERE, CHARS, text), (BYTES_THERE, ByteTokenizer(), any_text)):
        ids = there.encode(written).ids
        assert ids == here.encode(written).tolist()
        assert there.decode(ids) == written


def test_an_unknown_character_is_the_replacement() -> None:
    tokenizer = CharTokenizer("ab?")
    assert in_library(tokenizer).encode("aXb").ids == CharTokenizer("ab?", unknown="replace").encode("aXb").tolist()


@pytest.mark.parametrize("tokenizer", [CHARS, ByteTokenizer(), CharTokenizer("x")])
def test_a_tokenizer_comes_back_as_it_was(tokenizer: Tokenizer) -> None:
    content = json.loads(in_library(tokenizer).to_str())  # as the library itself would write it
    assert from_tokenizer_json(content).to_dict() == tokenizer.to_dict()


def test_merged_bytes_are_byte_pair_encoding() -> None:
    content = to_tokenizer_json(ByteTokenizer())
    content["model"]["vocab"]["th"] = 256
    content["model"]["merges"] = [["t", "h"]]
    tokenizer = from_tokenizer_json(content)
    assert isinstance(tokenizer, BPETokenizer)
    assert tokenizer.encode("the").tolist() == [256, ord("e")]
    assert to_tokenizer_json(tokenizer) == content


@pytest.mark.parametrize("content", [None, [], {}, {"model": {}}, {"model": {"vocab": {}}}, {"model": {"vocab": 3}}])
def test_anything_else_is_refused(content: object) -> None:
    with pytest.raises(DataError):
        from_tokenizer_json(content)
