"""The text that views open on."""

from pathlib import Path

import pytest
import torch

from gpt.checkpoint import Loaded
from gpt.config import Config
from gpt.data.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer
from gpt.inspection import example
from gpt.inspection.example import example_of
from gpt.model import GPT
from tiny import sharp_model

LETTERS = "abcdefghijklmnopqrstuvwxyz .,\né"


def loaded(model: GPT, tokenizer: Tokenizer) -> Loaded:
    return Loaded(model, tokenizer, Config(model=model.config), Path("nowhere"), {})


@pytest.mark.parametrize(
    ("tokenizer", "block_size", "written", "expected"),
    [
        (CharTokenizer(LETTERS), 128, "\n a line,\nand another \n", "a line,\nand another"),
        (CharTokenizer(LETTERS), 128, "word " * 30, ("word " * 20).strip()),
        (CharTokenizer(LETTERS), 12, "the best of all", "the best of"),
        (CharTokenizer(LETTERS), 12, "a" * 99, "a" * 12),
        (ByteTokenizer(), 64, "é" * 300, "é" * 27),
    ],
)
def test_it_fits_the_window_and_ends_with_a_word(
    monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer, block_size: int, written: str, expected: str
) -> None:
    monkeypatch.setattr(example, "generate", lambda *_, **__: written)
    assert example_of(loaded(sharp_model(vocab_size=256, block_size=block_size), tokenizer)) == expected


def test_it_is_empty_where_the_model_can_write_none() -> None:
    model = sharp_model(vocab_size=len(LETTERS), block_size=12)
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, float("nan"))
    assert example_of(loaded(model, CharTokenizer(LETTERS))) == ""


def test_it_is_the_same_whatever_else_draws_random_numbers() -> None:
    given = loaded(sharp_model(vocab_size=len(LETTERS), block_size=16), CharTokenizer(LETTERS))
    found = example_of(given)
    torch.manual_seed(1)
    assert found == example_of(given)
    assert 1 < len(found) <= 16
    assert set(found) <= set(LETTERS)
