"""Short texts of the validation split: whole sentences, whole items, questions."""

from pathlib import Path

import pytest

from gpt.checkpoint import Loaded
from gpt.data.dataset import Dataset
from gpt.data.items import item_ids
from gpt.data.pairs import ANSWER, END_OF_TEXT, SIGNS, TURN
from gpt.data.tokenizers import CharTokenizer
from gpt.extras.inspection import validation_examples as module
from gpt.extras.inspection.validation_examples import (
    MAX_CHARACTERS,
    beginnings_of_paragraphs,
    validation_examples,
)
from gpt.system.errors import ConfigError
from http_server import make_loaded
from tiny import sharp_model

SPEECHES = (
    "cut off.\n\n"
    "ADA:\nWho keeps the keys of 3.14 rooms? Nobody does.\n\n"
    "TOM:\nAy. The keeper keeps them all, and sleeps.\n\n"
    "ADA:\nThen wake him before the clock strikes seven!\n\n"
)


def examples_of(
    text: str, monkeypatch: pytest.MonkeyPatch, items: str = "none", block_size: int = 128
) -> list[str]:
    """Return the examples of a model whose validation split is this text."""
    tokenizer = CharTokenizer("".join(sorted({*text, END_OF_TEXT, ANSWER, TURN})))
    model = sharp_model(vocab_size=tokenizer.vocab_size, block_size=block_size)
    ids = tokenizer.encode(text)
    marks = None if items == "none" else item_ids(items, tokenizer)
    dataset = Dataset(train=ids, val=ids, tokenizer=tokenizer, fingerprint="", items=marks)
    monkeypatch.setattr(module, "training_dataset", lambda loaded: dataset)
    return validation_examples(make_loaded(model, tokenizer)(Path("run")))


def test_examples_are_whole_sentences_from_all_over_the_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    filler = "word " * 100 + ".\n\n"
    first, second, third = (part + "\n\n" for part in SPEECHES.split("\n\n")[1:4])
    text = "cut off.\n\n" + first + filler + second + filler + third + filler
    assert examples_of(text, monkeypatch) == [
        "ADA:\nWho keeps the keys of 3.14 rooms?",
        "TOM:\nAy. The keeper keeps them all, and sleeps.",
        "ADA:\nThen wake him before the clock strikes seven!",
    ]


def test_beginning_is_one_sentence_or_more_where_it_is_short() -> None:
    found = list(beginnings_of_paragraphs(SPEECHES))
    assert found[:2] == [
        "ADA:\nWho keeps the keys of 3.14 rooms?",
        "TOM:\nAy. The keeper keeps them all, and sleeps.",
    ]
    endless = "and then " * MAX_CHARACTERS
    assert list(beginnings_of_paragraphs(f"x\n\n{endless}.\n\nA heading\n\n")) == []
    assert list(beginnings_of_paragraphs("a line\nanother line\nthe last\n")) == [
        "another line",
        "the last",
    ]
    assert list(beginnings_of_paragraphs("no paragraph ever begins here")) == []


def test_examples_of_a_list_are_items_and_those_of_pairs_questions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ["ada", "tom", "tom", "bea", "kim", "lea"]
    lines = "".join(f"{name}\n" for name in names)
    assert examples_of(lines, monkeypatch, items="lines") == ["ada", "tom", "kim"]
    pairs = "".join(
        f"{question}{ANSWER}yes{END_OF_TEXT}" for question in ("is it", "is he", f"a{TURN}b")
    )
    assert examples_of(pairs, monkeypatch, items="pairs") == [
        "is it",
        "is he",
        f"a{SIGNS[TURN]}b",
    ]


def test_examples_fit_the_window_and_are_left_out_without_a_corpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert examples_of(SPEECHES, monkeypatch, block_size=16) == []

    def gone(loaded: Loaded) -> Dataset:
        raise ConfigError("the tokens are gone")

    tokenizer = CharTokenizer("ab")
    monkeypatch.setattr(module, "training_dataset", gone)
    loaded = make_loaded(sharp_model(vocab_size=2), tokenizer)(Path("run"))
    assert validation_examples(loaded) == []
