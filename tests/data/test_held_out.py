"""Texts of your own validate and test; they are read by the tokenizer of the corpus."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gpt.config import DataConfig
from gpt.data import corpus_text, preparation
from gpt.data.dataset import Dataset
from gpt.data.own_text import fit_recipe
from gpt.data.pairs import ANSWER, END_OF_TEXT
from gpt.data.preparation import check_length, prepare
from gpt.data.tokenizers import CharTokenizer
from gpt.system.environment import Settings
from gpt.system.errors import ConfigError, DataError
from gpt.system.progress import silent

OFFLINE = Settings(data_dir=None, cache_dir=Path("unused"), offline=True)
Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_text(name: str, text: str) -> str:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")
        return str(path)

    return write_text


def config_of(path: str, **keys: Any) -> DataConfig:
    folder = str(Path(path).parent / "data")
    return DataConfig.model_validate({"source": "file", "path": path, "dir": folder, **keys})


def prepared(path: str, **keys: Any) -> Dataset:
    return prepare(config_of(path, **keys), OFFLINE, silent)


def texts_of(data: Dataset) -> list[str | None]:
    splits = (data.train, data.val, data.test)
    return [None if split is None else data.tokenizer.decode(split) for split in splits]


@pytest.mark.parametrize("tokenizer", ["char", "byte"])
def test_each_split_is_the_whole_of_its_text(write: Write, tokenizer: str) -> None:
    path = write("a.txt", "abcabc" * 5)
    keys = {"val_path": write("b.txt", "cab"), "test_path": write("c.txt", "bca")}
    data = prepared(path, tokenizer=tokenizer, **keys)
    assert texts_of(data) == ["abcabc" * 5, "cab", "bca"]


def test_test_text_alone_leaves_the_fraction_for_validation(write: Write) -> None:
    data = prepared(write("a.txt", "abcde" * 20), test_path=write("c.txt", "edc"))
    assert texts_of(data) == ["abcde" * 18, "abcde" * 2, "edc"]


def test_folder_and_pattern_name_texts_like_the_path(write: Write) -> None:
    path = write("a.txt", "abc\n" * 9)
    val = write("val/1.txt", "ab")
    write("val/2.txt", "bc")
    folder = str(Path(val).parent)
    for given in (folder, f"{folder}/*.txt"):
        assert texts_of(prepared(path, val_path=given))[1] == "ab\n\nbc"


def test_vocabulary_is_of_the_corpus_alone(write: Write) -> None:
    data = prepared(write("a.txt", "abc" * 9), val_path=write("b.txt", "axa"), unknown="drop")
    assert isinstance(data.tokenizer, CharTokenizer)
    assert data.tokenizer.itos == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("xbc", "line 1, column 1"),
        ("ab\ncabx\nx", "line 2, column 4"),
        ("\ufeffab\r\n\r\nax", "line 3, column 2"),
        ("a" * 90 + "\n" + "b" * 50 + "x", "line 2, column 51"),
        ("a" * 90 + "x", "line 1, column 91"),
    ],
)
def test_unknown_character_is_refused_with_its_place(
    write: Write, monkeypatch: pytest.MonkeyPatch, text: str, place: str
) -> None:
    monkeypatch.setattr(corpus_text, "PIECE", 16)  # a text is read in several pieces
    path = write("a.txt", "abc\n" * 9)
    for key in ("val_path", "test_path"):
        bad = write("b.txt", text)
        with pytest.raises(DataError) as caught:
            prepared(path, **{key: bad})
        assert str(caught.value).startswith(f"{bad}, {place}: 'x' is not in the corpus")
        assert "data.unknown" in str(caught.value)
    assert list(Path(path).parent.glob("data/tokens/*")) == []


@pytest.mark.parametrize(("unknown", "val"), [("drop", "ac"), ("replace", "a?c")])
def test_unknown_characters_are_dropped_or_replaced(write: Write, unknown: str, val: str) -> None:
    data = prepared(write("a.txt", "abc?" * 9), val_path=write("b.txt", "axc"), unknown=unknown)
    assert texts_of(data)[1] == val


def test_line_end_between_files_that_the_corpus_lacks_is_refused(write: Write) -> None:
    path = write("a.txt", "abc" * 9)
    folder = str(Path(write("val/1.txt", "ab")).parent)
    write("val/2.txt", "bc")
    with pytest.raises(DataError, match="an empty line is read between files"):
        prepared(path, val_path=folder)


def test_fingerprint_changes_with_a_held_out_text(write: Write) -> None:
    path = write("a.txt", "abcd" * 9)
    val = write("b.txt", "abcd")
    without = prepared(path).fingerprint
    first = prepared(path, val_path=val).fingerprint
    as_test = prepared(path, test_path=val).fingerprint
    write("b.txt", "dcba")
    changed = prepared(path, val_path=val).fingerprint
    assert len({without, first, as_test, changed}) == 4


def test_fingerprint_changes_with_the_reading_of_a_lone_return(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Format 1 read such a return as a character, so that its token files are not used again."""
    path = write("a.txt", "ab\ncd\n" * 9)
    val = write("b.txt", "ab\rcd")
    data = prepared(path, val_path=val)
    assert texts_of(data)[1] == "ab\ncd"
    monkeypatch.setattr(preparation, "FORMAT_WITH_LONE_RETURNS", preparation.FORMAT)
    assert prepared(path, val_path=val).fingerprint != data.fingerprint


def test_text_that_is_trained_on_cannot_validate(write: Write) -> None:
    path = write("texts/a.txt", "abc" * 9)
    val = write("texts/b.txt", "abc" * 9)
    with pytest.raises(DataError, match=r"b\.txt is in the corpus and in data\.val_path"):
        prepared(str(Path(path).parent), val_path=val)


def test_held_out_text_needs_files_with_text(write: Write) -> None:
    path = write("a.txt", "abc" * 9)
    with pytest.raises(DataError, match=r"no such file; set data\.val_path to"):
        prepared(path, val_path="none.txt")
    with pytest.raises(DataError, match=r"b\.txt has 0 bytes"):
        prepared(path, test_path=write("b.txt", ""))
    with pytest.raises(DataError, match=r"b\.txt has no text in it"):
        prepared(path, test_path=write("b.txt", "\ufeff"))


def json_lines(answers: Iterable[str]) -> str:
    pairs = ({"prompt": f"what is {n}?", "answer": answer} for n, answer in enumerate(answers))
    return "\n".join(json.dumps(pair) for pair in pairs)


@pytest.mark.parametrize("key", ["val_path", "test_path"])
def test_long_answer_of_a_held_out_text_is_refused_with_its_line(write: Write, key: str) -> None:
    short = json_lines(["yes"] * 40)
    long = json_lines(["yes", "yes" * 10])
    config = config_of(write("a.jsonl", short), items="pairs", **{key: write("b.jsonl", long)})
    data = prepare(config, OFFLINE, silent)
    check_length(data, config, OFFLINE, 32)
    with pytest.raises(DataError, match=r"b\.jsonl, line 2: the answer has 31 tokens"):
        check_length(data, config, OFFLINE, 31)


@pytest.mark.parametrize("content", [None, "no pairs"])
def test_long_answer_is_told_by_its_question_without_its_text(
    write: Write, tmp_path: Path, content: str | None
) -> None:
    path = write("a.jsonl", json_lines(["yes" * 10] * 40))
    config = config_of(path, items="pairs")
    data = prepare(config, OFFLINE, silent)
    if content is None:
        Path(path).unlink()
    else:
        write("a.jsonl", content)
    with pytest.raises(DataError, match=r"^the answer of '?.?what is .* has 31 tokens"):
        check_length(data, config, OFFLINE, 31)


@pytest.mark.parametrize("key", ["val_path", "test_path"])
def test_window_of_a_recipe_for_pairs_holds_the_answers_of_every_text(
    write: Write, key: str
) -> None:
    path = write("a.jsonl", json_lines(["yes"] * 400))
    held_out = json_lines(["yes"] * 40 + ["yes" * 40])
    config = config_of(path, **{key: write("b.jsonl", held_out)})
    sections, dataset = fit_recipe(config, OFFLINE, silent)
    assert sections["data"]["items"] == "pairs"
    dataset.check_length(sections["model"]["block_size"])


def test_short_validation_text_is_told_by_its_own_key(write: Write) -> None:
    data = prepared(write("a.txt", "abc" * 9), val_path=write("b.txt", "abc"))
    with pytest.raises(DataError, match=r"the val split has 3 tokens.*a longer data\.val_path$"):
        data.check_length(8)


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"val_path": "b", "val_fraction": 0.2}, "val_fraction: is not read with val_path"),
        ({"val_path": "b", "test_fraction": 0.2}, "test_fraction: is not read with val_path"),
        ({"test_path": "b", "test_fraction": 0.2}, "test_fraction: is not read with val_path"),
        ({"path": ["a", "c"], "val_path": "b"}, "val_path: is for one path"),
        ({"val_path": ["b", "c"]}, "expected one path; put the files into a folder"),
        ({"unknown": "drop"}, "unknown: is only read with val_path or test_path"),
        ({"val_path": "b", "unknown": "drop", "tokenizer": "byte"}, "is only read with tokenizer"),
    ],
)
def test_contradictions_are_refused(keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError) as caught:
        DataConfig.model_validate({"source": "file", "path": "a", **keys})
    assert problem in str(caught.value)


def test_recipe_counts_the_characters_that_are_trained_on(write: Write) -> None:
    text = "some words of a text.\n" * 2000
    path = write("a.txt", text)
    train = text[: len(text) * 9 // 10]
    val = text[len(text) * 9 // 10 :]
    by_fraction, _ = fit_recipe(config_of(path), OFFLINE, silent)
    split = config_of(write("train.txt", train), val_path=write("val.txt", val))
    assert fit_recipe(split, OFFLINE, silent)[0] == by_fraction


def test_recipe_refuses_a_validation_text_without_a_window(write: Write) -> None:
    path = write("a.txt", "some words of a text.\n" * 2000)
    lines: list[str] = []
    fit_recipe(config_of(path, val_path=write("b.txt", "some words" * 50)), OFFLINE, lines.append)
    assert any("b.txt has 500 characters; below 2,000" in line for line in lines)
    with pytest.raises(ConfigError, match=r"c\.txt has 10 characters; validation needs at least"):
        fit_recipe(config_of(path, val_path=write("c.txt", "some words")), OFFLINE, silent)


def pair(prompt: str, answer: str) -> str:
    return json.dumps({"prompt": prompt, "answer": answer}) + "\n"


def test_pairs_of_your_own_validate_a_training_on_pairs(write: Write) -> None:
    path = write("a.jsonl", pair("a+b", "c") * 9)
    held_out = write("b.jsonl", pair("c", "ab"))  # the corpus has no brackets and quotes
    _, validation, _ = texts_of(prepared(path, items="pairs", val_path=held_out))
    assert validation == f"c{ANSWER}ab{END_OF_TEXT}"


def test_character_of_a_pair_that_the_corpus_lacks_has_its_line(write: Write) -> None:
    path = write("a.jsonl", pair("a+b", "c") * 9)
    held_out = write("b.jsonl", pair("c", "ab") + pair("c", "d"))
    with pytest.raises(DataError, match=r"b\.jsonl, line 2: 'd' is not in the corpus"):
        prepared(path, items="pairs", val_path=held_out)
