"""Words between white space as tokens: as written, the most frequent, and `<unk>` for others."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gpt.config import DataConfig
from gpt.data import corpus_text
from gpt.data.items import end_of_items, item_ids
from gpt.data.pairs import MARKS
from gpt.data.preparation import prepare
from gpt.data.saved_tokenizer import tokenizer_from_dict
from gpt.data.words import WordTokenizer, learn_words, whole_words
from gpt.system.environment import Settings
from gpt.system.errors import DataError
from gpt.system.progress import silent
from tiny import CORPUS

OFFLINE = Settings(data_dir=None, cache_dir=Path("unused"), offline=True)
CHORDS = "Am F C G\nAm F C G\nAm  F C E7\n"
WORDS = st.text(st.sampled_from("ab<unk>é \n\t\x85\u3000.,"), min_size=1)


def words_of(tokenizer: WordTokenizer) -> list[str]:
    return [tokenizer.decode([index]) for index in range(tokenizer.vocab_size)]


@given(text=WORDS)
def test_known_words_and_white_space_are_decoded_as_written(text: str) -> None:
    tokenizer = learn_words(lambda: [text], 1000)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == tokenizer.decode(ids.tolist()) == text
    stream = tokenizer.stream()
    assert "".join(stream.feed(index) for index in ids.tolist()) + stream.flush() == text


def test_most_frequent_words_have_the_first_ids_after_unk() -> None:
    tokenizer = learn_words(lambda: [CHORDS], 6)
    assert words_of(tokenizer) == ["<unk>", " ", "\n", "Am", "C", "F"]
    ids = tokenizer.encode("Am G\nC")
    assert ids.tolist() == [3, 1, 0, 2, 4]
    assert tokenizer.decode(ids) == "Am <unk>\nC"


def test_word_written_like_unk_is_one_and_part_of_others() -> None:
    tokenizer = learn_words(lambda: ["<unk> <unk> a a <unk>, b"], 4)
    assert words_of(tokenizer) == ["<unk>", " ", "a"]
    assert tokenizer.encode("<unk> <unk>, a").tolist() == [0, 1, 0, 1, 2]


@given(text=WORDS, vocab_size=st.integers(2, 6))
def test_text_it_was_learned_from_has_as_many_characters_as_it_is_long(
    text: str, vocab_size: int
) -> None:
    tokenizer = learn_words(lambda: [text], vocab_size)
    ids = tokenizer.encode_narrow(text)
    assert tokenizer.count_chars(ids) == len(text)


def test_unk_counts_the_average_of_the_words_that_it_stood_for() -> None:
    tokenizer = learn_words(lambda: ["a a a a bb cccc"], 3)
    assert tokenizer.unknown_length == 3
    assert tokenizer.count_chars(tokenizer.encode("a zzzzzzz")) == 1 + 1 + 3


def test_it_comes_back_from_its_json() -> None:
    tokenizer = learn_words(lambda: [CORPUS], 40)
    again = tokenizer_from_dict(json.loads(json.dumps(tokenizer.to_dict())))
    assert again.to_dict() == tokenizer.to_dict()
    assert again.encode(CORPUS).tolist() == tokenizer.encode(CORPUS).tolist()
    assert again.count_chars(again.encode_narrow(CORPUS)) == len(CORPUS)


@pytest.mark.parametrize(
    "changes",
    [
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+b"}}},
        {"decoder": None},
        {"normalizer": {"type": "Lowercase"}},
        {"added_tokens": [{"id": 9, "content": "x", "special": True}]},
        {"model": {"type": "WordLevel", "unk_token": "<unk>", "vocab": {"a": 0}}},
        {"model": {"type": "WordLevel", "unk_token": "<unk>", "vocab": {"<unk>": 0, "a": 2}}},
        {"model": {"type": "WordLevel", "unk_token": "<unk>", "vocab": {"<unk>": 0, "a": 0}}},
        {"model": {"type": "BPE", "unk_token": "<unk>", "vocab": {"<unk>": 0}}},
        {"model": 3},
    ],
)
def test_other_tokenizers_of_words_are_refused_in_one_line(changes: dict[str, Any]) -> None:
    content = learn_words(lambda: ["a b"], 10).to_dict()["tokenizer"] | changes
    with pytest.raises(DataError) as caught:
        WordTokenizer(content)
    assert "\n" not in str(caught.value)


def test_unknown_words_are_listed_once_in_order() -> None:
    tokenizer = learn_words(lambda: ["a b"], 10)
    assert tokenizer.unknown_words("c a d\nc \t b") == ["c", "d", "\n", "\t"]


def config_of(path: Path, **keys: Any) -> DataConfig:
    given = {"source": "file", "path": str(path), "dir": str(path.parent / "data")}
    return DataConfig.model_validate(given | keys)


def test_splits_have_the_same_characters_as_those_of_characters(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a b\n" * 200 + "abcdefg hijklmn\n" * 50, encoding="utf-8")
    by_char = prepare(config_of(path), OFFLINE, silent)
    by_word = prepare(config_of(path, tokenizer="word"), OFFLINE, silent)
    val = by_char.tokenizer.decode(by_char.val)
    assert by_word.tokenizer.decode(by_word.val) == val


def test_words_are_whole_however_the_text_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_text, "PIECE", 16)
    monkeypatch.setattr(corpus_text, "BLOCK", 16)
    path = tmp_path / "a.txt"
    text = "one two\tthree\nfour five six\n" * 20
    path.write_text(text, encoding="utf-8")
    data = prepare(config_of(path, tokenizer="word"), OFFLINE, silent)
    assert data.tokenizer.vocab_size == 1 + 3 + 6  # <unk>, white space and words
    tokens = np.concatenate([data.train, data.val])
    assert data.tokenizer.decode(tokens) == text
    assert len(tokens) == 2 * 6 * 20


def test_word_longer_than_a_piece_is_cut() -> None:
    pieces = list(whole_words(["a b", "cc", "dddd", "d e", "f"]))
    assert pieces == ["a ", "bcc", "dddd", "d ", "ef"]


def test_characters_of_a_split_are_counted_with_those_of_unk(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("ab cd ef\n" * 100, encoding="utf-8")
    data = prepare(config_of(path, tokenizer="word", word_vocab_size=4), OFFLINE, silent)
    assert data.chars_per_token(data.train) == pytest.approx(9 / 6, rel=0.01)


def test_fingerprint_changes_with_the_size_of_the_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("ab cd ef\n" * 100, encoding="utf-8")
    sizes = (3, 4)
    prints = [
        prepare(config_of(path, tokenizer="word", word_vocab_size=size), OFFLINE, silent)
        for size in sizes
    ]
    assert [each.tokenizer.vocab_size for each in prints] == [3, 4]
    assert prints[0].fingerprint != prints[1].fingerprint


def test_words_of_a_validation_text_that_the_corpus_lacks_are_unk(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    val = tmp_path / "b.txt"
    path.write_text("ab cd ef\n" * 100, encoding="utf-8")
    val.write_text("ab xyz ef", encoding="utf-8")
    data = prepare(config_of(path, tokenizer="word", val_path=str(val)), OFFLINE, silent)
    assert data.tokenizer.decode(np.asarray(data.val)) == "ab <unk> ef"


def test_size_of_another_tokenizer_is_refused() -> None:
    with pytest.raises(ValidationError, match="is only read with tokenizer: word"):
        DataConfig.model_validate({"word_vocab_size": 100})


@pytest.mark.parametrize(
    ("items", "text", "num_marks"),
    [
        ("lines", "red blue\nblue\nred\n", 0),
        ("paragraphs", "red\nblue\n\nblue blue\n\nred\n", 1),
        ("pairs", "red\tblue\nblue\tred\n", 3),
    ],
)
def test_marks_of_items_are_words_of_their_own(
    items: str, text: str, num_marks: int, tmp_path: Path
) -> None:
    path = tmp_path / "a.tsv"
    path.write_text(text, encoding="utf-8")
    data = prepare(config_of(path, tokenizer="word", items=items), OFFLINE, silent)
    assert isinstance(data.tokenizer, WordTokenizer)
    words = words_of(data.tokenizer)
    assert set(words[1 : 1 + num_marks]) == set(list(MARKS)[:num_marks])
    assert {"red", "blue"} < set(words)
    assert data.tokenizer.unknown_id not in np.concatenate([data.train, data.val])
    assert data.items == item_ids(items, data.tokenizer)
    again = tokenizer_from_dict(data.tokenizer.to_dict())
    marked = again.encode("red" + end_of_items(items)).tolist()
    assert marked == [*again.encode("red").tolist(), data.items.end]
