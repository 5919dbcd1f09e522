"""Fit a recipe to one's own text."""

from typing import Any

from gpt.config import DataConfig
from gpt.config.own_text import LEAST, recipe_for
from gpt.corpora.preparation import prepare
from gpt.data.dataset import Dataset
from gpt.data.tokenizers import CharTokenizer
from gpt.environment import Settings
from gpt.errors import ConfigError
from gpt.progress import Report


def fit_recipe(data: DataConfig, settings: Settings, report: Report) -> tuple[dict[str, dict[str, Any]], Dataset]:
    """Return the sections that fit a text, without the path in `data`, and the text as a dataset.

    Raises:
        ConfigError: the text is too short to learn from.
        DataError: see `prepare`.
    """
    dataset = prepare(data, settings, report)
    length = len(dataset.train) + len(dataset.val)
    if length < LEAST:
        raise ConfigError(f"{data.path} has {length:,} {unit_of(dataset)}; a model needs at least {LEAST:,}")
    return recipe_for(length, min(len(dataset.train), len(dataset.val))), dataset


def unit_of(dataset: Dataset) -> str:
    """Return what a token of a dataset is called."""
    return "characters" if isinstance(dataset.tokenizer, CharTokenizer) else "tokens"
