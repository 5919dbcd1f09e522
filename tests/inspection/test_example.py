"""The text that views open on: from a run's last sample, or else written by the model."""

from pathlib import Path

import pytest
import torch

from gpt.checkpoint import Loaded
from gpt.config import Config
from gpt.data.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer
from gpt.inspection.example import example_of
from tiny import sharp_model

LETTERS = "abcdefghijklmnopqrstuvwxyz .,\né"
SAMPLE = "\n. . .\n   a line of words, and another one\nthe best of all lines is\nthis one, with the next.\n, , , ,"


def example(folder: Path, tokenizer: Tokenizer, block_size: int, **samples: str) -> str:
    """The example of a model in a run whose samples these are."""
    (folder / "samples").mkdir(parents=True)
    for name, text in samples.items():
        (folder / "samples" / f"{name.replace('_', '-')}.txt").write_text(text + "\n", encoding="utf-8")
    model = sharp_model(vocab_size=tokenizer.vocab_size, block_size=block_size)
    checkpoint = folder / "checkpoints" / "step-000002"
    return example_of(Loaded(model, tokenizer, Config(model=model.config), checkpoint, {}))


@pytest.mark.parametrize(
    ("block_size", "expected"),
    [
        (128, "a line of words, and another one\nthe best of all lines is\nthis one, with the next."),
        (40, "a line of words, and another one"),
        (28, "a line of words, and another"),
        (8, "the best"),
    ],
)
def test_it_begins_with_a_line_and_ends_with_one_or_with_a_word(tmp_path: Path, block_size: int, expected: str) -> None:
    found = example(tmp_path, CharTokenizer(LETTERS), block_size, step_000001="x", step_000010=SAMPLE)
    assert found == expected


def test_it_is_empty_where_the_model_can_write_none(tmp_path: Path) -> None:
    model = sharp_model(vocab_size=len(LETTERS), block_size=12)
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, float("nan"))
    assert example_of(Loaded(model, CharTokenizer(LETTERS), Config(model=model.config), tmp_path, {})) == ""


def test_it_fits_the_window_in_tokens_and_needs_no_spaces(tmp_path: Path) -> None:
    assert example(tmp_path, ByteTokenizer(), 64, step_000001="é" * 300) == "é" * 27


@pytest.mark.parametrize("sample", ["", "a", "\n \n", "ЖЖЖЖ"])
def test_without_a_sample_that_the_model_can_read_it_writes_one(tmp_path: Path, sample: str) -> None:
    """The same every time, whatever else draws random numbers."""
    found = [example(tmp_path / name, CharTokenizer(LETTERS), 16, step_000001=sample) for name in "ab"]
    torch.manual_seed(1)
    assert found[0] == found[1]
    assert 1 < len(found[0]) <= 16
    assert set(found[0]) <= set(LETTERS)
