"""Fit a recipe to your text: its length determines size, regularization and steps.

The settings of the model and of the optimizer stand here and not in a YAML file, since `gpt new`,
`gpt train my.txt` and `gpt.train("my.txt")` have no configuration yet. The numbers below were
measured together, see benchmarks/LOG.md.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpt.config import DataConfig
from gpt.data.corpus_text import CorpusText
from gpt.data.dataset import Dataset
from gpt.data.items import item_spans
from gpt.data.locating import corpus_files
from gpt.data.pairs import FORMS, JSON_LINES, first_object, looks_like_pairs
from gpt.data.preparation import prepare
from gpt.data.recognition import recognize_items
from gpt.data.tokenizers import CharTokenizer
from gpt.data.tokens import Tokens
from gpt.system.environment import Settings
from gpt.system.errors import ConfigError
from gpt.system.progress import Report

MAX_BYTES_RECOGNIZED = 100_000_000
"""Largest text, in bytes, in which items are looked for, which takes two seconds."""
DESCRIPTIONS = {
    "lines": "a list, each line of which is read as an item",
    "pairs": "questions and answers, of which the answers are learned",
    "paragraphs": "texts of one shape between empty lines, each of which is read as an item",
}
"""The description, in messages, of each value of `data.items` that can be recognized."""
MIN_CHARS = 2_000
"""Characters of the shortest text that is enough to learn from and to validate on."""
MIN_CHARS_FOR_RELIABLE_VAL = 20_000
"""Characters below which a validation loss says little: it depends on which lines were held out."""
MIN_VAL_CHARS = MIN_CHARS // 10
"""Characters of the shortest text of `data.val_path`; by default a tenth of a text validates."""
MIN_VAL_CHARS_FOR_RELIABLE_VAL = MIN_CHARS_FOR_RELIABLE_VAL // 10
"""Characters of a text of `data.val_path` below which its loss says little."""
MAX_EVAL_TOKENS = 300_000
"""Most tokens of the validation split that an evaluation reads.

Reading more would take longer than the steps between two evaluations.
"""
MAX_CHARS_READ_IN_EPOCHS = 300_000
"""Longest text, in characters, whose number of epochs limits the steps."""
EPOCH_FACTOR = 119.0
EPOCH_POWER = 0.783
"""After `EPOCH_FACTOR * characters**EPOCH_POWER` tokens, more steps only memorize a text.

Both were fitted to texts of several sizes: a text of 4,000 characters is read about 22 times, one
of 30,000 about 14 times, and one of 300,000 about 8 times. Longer texts take the steps of a tier.
"""
MIN_MEAN_COUNT_OF_CHAR = 20
"""Mean count of a character below which the characters of a text are called rare.

A Chinese text has thousands of distinct characters, most of which occur a few times only.
"""
RARE_CHARS_STEP_DIVISOR = 3
"""A text of rare characters has a third of the steps, which are enough to memorize it."""
RARE_CHARS_DROPOUT = 0.5
"""Dropout for a text of rare characters, the largest that a tier has."""
HEAD_DIM = 32
"""Channels of a head: the fewest of the native kernels, so that small models have many heads."""
MLP_WIDTH_OF_HEAD = 88
"""Hidden channels of SwiGLU for each head.

They are about 8/3 of `HEAD_DIM`, so that 4 or 8 heads have a multiple of 16 for the native kernels.
"""
BLOCK_MULTIPLE = 8
"""A block size is a multiple of this, so that kernels mostly compute whole vectors."""
LENGTH_WARMUP_BLOCK = 512
"""Block size whose first steps have shorter sequences, see benchmarks/LOG.md."""
LENGTH_WARMUP = [0.4, 0.4]
"""Shares of the steps with sequences of a quarter and of half a block."""
MTP_WEIGHTS = [0.5, 0.25]
"""Weights of the targets two and three tokens ahead, which help if a text is read repeatedly."""
MAX_WARMUP_STEPS = 40
DECAY_SHARE = 0.56
"""Share of the steps, at the end, in which the learning rate falls to zero."""
SAMPLE_TOKENS = 200
SAMPLE_TEMPERATURE = 0.8
"""Temperature of samples where the temperature of training is 1.

It is multiplied by that temperature: a model that was trained to be less certain is sampled at a
lower temperature.
"""

ARCHITECTURE = {
    "norm": "rmsnorm",
    "position": "rope",
    "mlp": "swiglu",
    "qk_norm": True,
    "tie_weights": False,
    "init": "zero_projections",
}
OPTIMIZER = {
    "name": "muon",
    "learning_rate": 0.015,
    "min_lr": 0.0,
    "schedule": "wsd",
    "betas": [0.9, 0.99],
    "muon_rate": 0.02,
}


@dataclass(frozen=True)
class Tier:
    """A recipe for texts up to a length.

    Attributes:
        max_characters: length of the longest text for this recipe, in characters; other tokens
            count like characters.
        n_head: number of heads, of `HEAD_DIM` channels each.
        dropout: dropout on embeddings and sublayer outputs.
        max_steps: largest number of steps; a short text has fewer, see `EPOCH_FACTOR`.
        tokens_per_step: number of tokens of a step.
        weight_decay: weight decay of matrices and embeddings.
        max_block_size: largest number of tokens of a sequence; a short text has fewer.
        temperature: temperature of the logits in training; below 1, targets further ahead are
            predicted too.
        num_evaluations: evaluations of a run; more of them find a best step that comes early.
    """

    max_characters: float
    n_layer: int
    n_head: int
    dropout: float
    max_steps: int
    tokens_per_step: int
    weight_decay: float
    max_block_size: int
    temperature: float
    num_evaluations: int


TIERS = (
    # characters, layers, heads, dropout, steps, tokens, decay, block, temperature, evaluations
    Tier(8_000, 4, 4, 0.5, 140, 1024, 0.3, 128, 0.8, 8),
    Tier(20_000, 4, 4, 0.35, 190, 1536, 0.3, 256, 0.8, 8),
    Tier(40_000, 4, 4, 0.25, 320, 1536, 0.3, 256, 0.8, 8),
    Tier(100_000, 4, 4, 0.2, 430, 2304, 0.3, 256, 0.8, 8),
    Tier(180_000, 4, 4, 0.2, 510, 3072, 0.3, 256, 0.8, 8),
    Tier(300_000, 4, 4, 0.2, 760, 3072, 0.3, 512, 0.8, 8),
    Tier(600_000, 4, 4, 0.1, 1240, 3072, 0.3, 512, 0.85, 4),
    Tier(3_000_000, 4, 4, 0.0, 1720, 3072, 0.2, 512, 0.9, 4),
    Tier(float("inf"), 6, 8, 0.0, 2000, 3072, 0.1, 256, 1.0, 4),
)
"""The recipes for running text, sorted by the length of the text.

A shorter text has fewer tokens in a step, and more regularization.
"""
ITEM_TIERS = (
    Tier(4_000, 4, 2, 0.5, 100, 1024, 0.3, 256, 0.8, 8),
    Tier(12_000, 4, 2, 0.4, 220, 1536, 0.3, 256, 0.8, 8),
    Tier(60_000, 4, 4, 0.4, 500, 1536, 0.3, 256, 0.8, 8),
    Tier(150_000, 4, 4, 0.2, 800, 1536, 0.3, 256, 0.85, 8),
    Tier(500_000, 4, 4, 0.1, 1200, 1536, 0.3, 512, 0.85, 8),
    Tier(float("inf"), 4, 4, 0.0, 1720, 3072, 0.2, 512, 0.9, 4),
)
"""The recipes for lists and other items, in which there is less to learn beyond a few words."""
PAIR_DROPOUT = 0.1
"""Largest dropout of questions and answers: with 0.2, 935 of 1,000 sums are right, with 0.1 all."""
MIN_ITEM_BLOCK = 64
"""Shortest window of items, into which several short items are packed."""


def recipe_for(length: int, shorter_split: int, num_distinct: int) -> dict[str, dict[str, Any]]:
    """Return the sections of a configuration for a running text, without the path in `data`.

    Args:
        length: number of tokens of the text, each of which counts like a character of the tiers.
        shorter_split: tokens of its training or validation split, whichever is shorter.
        num_distinct: number of its distinct characters, or 0 if the tokens are not characters.
    """
    # The last tier has no limit, so that a tier is always found.
    tier = next(tier for tier in TIERS if length <= tier.max_characters)
    steps, dropout = _steps_and_dropout(tier, length, num_distinct)
    block_size = _block_size(tier, shorter_split)
    sections = _build_sections(tier, steps, dropout, block_size)
    # An epoch reads each window once, so that a text that is read a few times is read evenly.
    sections["data"] = {"order": "shuffled"}
    # Shorter sequences in the first steps were measured to help with windows of this size.
    if block_size == LENGTH_WARMUP_BLOCK:
        sections["train"]["length_warmup"] = LENGTH_WARMUP
    if shorter_split > MAX_EVAL_TOKENS:
        sections["train"]["eval_max_tokens"] = MAX_EVAL_TOKENS
    return sections


def for_checkpoint(sections: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return a recipe for a run that begins with the checkpoint of `train.init_from`.

    The checkpoint determines the architecture and the block size, so that both are left out, with
    `length_warmup`, which depends on the block size.
    """
    kept = {name: dict(section) for name, section in sections.items()}
    # Dropout has no weights, and a checkpoint can be trained on with another one.
    kept["model"] = {key: value for key, value in kept["model"].items() if "dropout" in key}
    kept["train"].pop("length_warmup", None)
    return kept


def item_recipe_for(
    length: int, shorter_split: int, longest_item: int
) -> dict[str, dict[str, Any]]:
    """Return the sections of a configuration for a list or other items, without `data`.

    Args:
        length: number of tokens of the text, see `recipe_for`.
        shorter_split: tokens of its training or validation split, whichever is shorter.
        longest_item: number of tokens of the longest item that should fit into a window, including
            its end.
    """
    # The last tier has no limit, so that a tier is always found.
    tier = next(tier for tier in ITEM_TIERS if length <= tier.max_characters)
    # An item that is longer than the largest window is cut into pieces.
    longest = min(longest_item, tier.max_block_size)
    rounded_up = math.ceil(longest / BLOCK_MULTIPLE) * BLOCK_MULTIPLE
    block_size = max(MIN_ITEM_BLOCK, rounded_up)
    sections = _build_sections(tier, tier.max_steps, tier.dropout, block_size)
    if shorter_split > MAX_EVAL_TOKENS:
        sections["train"]["eval_max_tokens"] = MAX_EVAL_TOKENS
    # At temperatures below 1, more samples would be copies of items of the text.
    sections["sample"] = {"temperature": 1.0, "max_new_tokens": block_size}
    return sections


def _build_sections(
    tier: Tier, steps: int, dropout: float, block_size: int
) -> dict[str, dict[str, Any]]:
    """Return the sections that recipes for running text and for items have in common."""
    model: dict[str, Any] = {
        "n_layer": tier.n_layer,
        "n_head": tier.n_head,
        "n_embd": HEAD_DIM * tier.n_head,
        "mlp_width": MLP_WIDTH_OF_HEAD * tier.n_head,
        "block_size": block_size,
    }
    if dropout > 0:
        # The tiers were measured with dropout on embeddings and sublayer outputs only.
        model |= {"dropout": dropout, "attention_dropout": 0.0}
    optim = {
        **OPTIMIZER,
        # A short run warms up for a quarter of its steps at most.
        "warmup_steps": min(MAX_WARMUP_STEPS, steps // 4),
        "decay_steps": round(DECAY_SHARE * steps),
        "weight_decay": tier.weight_decay,
    }
    train: dict[str, Any] = {"batch_size": tier.tokens_per_step // block_size, "max_steps": steps}
    if tier.temperature < 1:
        # The tiers of texts that are read repeatedly also predict tokens further ahead
        # (multi-token prediction).
        train |= {"mtp_weights": MTP_WEIGHTS, "logit_temperature": tier.temperature}
    # The interval is rounded up, since a shorter one could add an evaluation to those of the tier.
    train["eval_interval"] = math.ceil(steps / tier.num_evaluations)
    train["sample_tokens"] = SAMPLE_TOKENS
    return {
        "model": {**model, **ARCHITECTURE},
        "optim": optim,
        "train": train,
        "sample": {"temperature": round(SAMPLE_TEMPERATURE * tier.temperature, 2)},
    }


def _steps_and_dropout(tier: Tier, length: int, num_distinct: int) -> tuple[int, float]:
    """Return the number of steps for a text of `length` tokens, and its dropout."""
    steps = tier.max_steps
    if length <= MAX_CHARS_READ_IN_EPOCHS:
        # The power is less than 1, since a longer text is memorized after fewer epochs.
        tokens_to_read = EPOCH_FACTOR * length**EPOCH_POWER
        steps = min(steps, round(tokens_to_read / tier.tokens_per_step))
    has_rare_chars = length < MIN_MEAN_COUNT_OF_CHAR * num_distinct
    if has_rare_chars:
        return steps // RARE_CHARS_STEP_DIVISOR, RARE_CHARS_DROPOUT
    return steps, tier.dropout


def _block_size(tier: Tier, shorter_split: int) -> int:
    """Return the number of tokens of a sequence, for which the shorter split is long enough."""
    # One multiple less, since a window has one token more than a sequence.
    largest_fitting = shorter_split // BLOCK_MULTIPLE * BLOCK_MULTIPLE - BLOCK_MULTIPLE
    return max(BLOCK_MULTIPLE, min(tier.max_block_size, largest_fitting))


def fit_recipe(
    data: DataConfig, settings: Settings, report: Report
) -> tuple[dict[str, dict[str, Any]], Dataset]:
    """Return the sections of a configuration that fit a text, and the text as a dataset.

    The sections leave out the path in `data`.

    Raises:
        ConfigError: the text is too short to learn from.
    """
    # If the user has set `data.items`, nothing else is looked for in the text.
    if "items" not in data.model_fields_set:
        data = _with_items(data, settings, report)
    dataset = prepare(data, settings, report)
    _check_amount(data, dataset, report)
    if dataset.items is not None:
        return _sections_for_items(data, dataset), dataset
    length = _num_tokens(data, dataset)
    if data.val_path is not None:
        # The lengths of the tiers include a validation split. This text has none, and is counted as
        # if one had been taken from it.
        length = round(length / (1 - data.val_fraction))
    shorter_split = min(len(dataset.train), len(dataset.val))
    num_distinct = 0
    if isinstance(dataset.tokenizer, CharTokenizer):
        num_distinct = dataset.tokenizer.vocab_size
    sections = recipe_for(length, shorter_split, num_distinct)
    if isinstance(data.path, tuple):
        del sections["data"]["order"]  # several texts are always read in random order
    return sections, dataset


def _num_tokens(data: DataConfig, dataset: Dataset) -> int:
    """Return the number of tokens of a text, including a validation split that is a part of it."""
    if data.val_path is not None:
        return len(dataset.train)
    return len(dataset.train) + len(dataset.val)


def _check_amount(data: DataConfig, dataset: Dataset, report: Report) -> None:
    """Raise ConfigError if a text is too short to learn from; warn if its loss says little."""
    length = _num_tokens(data, dataset)
    unit = unit_of(dataset)
    name = ", ".join(data.path) if isinstance(data.path, tuple) else data.path
    if data.val_path is not None:
        _check_validation_text(data.val_path, dataset, report)
    if length < MIN_CHARS:
        raise ConfigError(f"{name} has {length:,} {unit}; a model needs at least {MIN_CHARS:,}")
    if data.val_path is None and length < MIN_CHARS_FOR_RELIABLE_VAL:
        report(
            f"warning: {name} has {length:,} {unit}, {len(dataset.val):,} of them for validation; "
            f"below {MIN_CHARS_FOR_RELIABLE_VAL:,} the validation loss is not statistically "
            "meaningful"
        )


def _sections_for_items(data: DataConfig, dataset: Dataset) -> dict[str, dict[str, Any]]:
    """Return the sections that fit a list or other items, such as questions and answers."""
    assert dataset.items is not None
    # A window should hold the longest item that is trained on. Longer items of the other splits are
    # cut into pieces, except for answers, which must not be cut: for these, every split counts.
    splits = dataset.splits if dataset.has_answers else [dataset.train]
    longest_item = max(_longest_item(split, dataset.items.end) for split in splits)
    shorter_split = min(len(dataset.train), len(dataset.val))
    sections = item_recipe_for(_num_tokens(data, dataset), shorter_split, longest_item)
    sections["data"] = {"items": data.items}
    if data.items == "pairs":
        sections["sample"]["temperature"] = 0.0  # the most likely answer is wanted
        # The tiers have a dropout of up to 0.5 for lists, which a model soon knows by heart. But an
        # answer has to be right to the last character, and fewer answers are right with more
        # dropout; `PAIR_DROPOUT` has the numbers.
        dropout_of_tier = sections["model"].get("dropout", 0.0)
        sections["model"]["dropout"] = min(PAIR_DROPOUT, dropout_of_tier)
    return sections


def _longest_item(split: Tokens, end: int) -> int:
    """Return the number of tokens of the longest item of a split, including its end."""
    spans = item_spans(split, end)  # (N, 2)
    return int(np.diff(spans, axis=1).max())


def _check_validation_text(name: str, dataset: Dataset, report: Report) -> None:
    """Raise ConfigError if the text of `data.val_path` is too short; warn if it is short."""
    length = len(dataset.val)
    unit = unit_of(dataset)
    if length < MIN_VAL_CHARS:
        # `block_size` is chosen so that a window fits into this text, and would be tiny.
        raise ConfigError(
            f"{name} has {length:,} {unit}; validation needs at least {MIN_VAL_CHARS:,}"
        )
    if length < MIN_VAL_CHARS_FOR_RELIABLE_VAL:
        report(
            f"warning: {name} has {length:,} {unit}; below {MIN_VAL_CHARS_FOR_RELIABLE_VAL:,} the "
            "validation loss is not statistically meaningful"
        )


def _with_items(data: DataConfig, settings: Settings, report: Report) -> DataConfig:
    """Return `data` with `items` set to the kind of items that the text seems to have, if any."""
    if isinstance(data.path, tuple):
        return data  # several texts are always read as running text
    corpus = CorpusText(corpus_files(data, settings, report))
    kind = "none"
    if looks_like_pairs(corpus):
        kind = "pairs"
    elif corpus.size <= MAX_BYTES_RECOGNIZED:  # the whole text is read for this
        kind = recognize_items("".join(corpus.pieces()))
    is_json = corpus.files[0].suffix in JSON_LINES and first_object(corpus) is not None
    if kind != "pairs" and is_json:
        report(
            f"warning: {corpus.name} is read as it stands, with its keys and quotes; a line with a "
            f"question and its answer has the form {FORMS}"
        )
    if kind == "none":
        return data
    report(f"{corpus.name}: {DESCRIPTIONS[kind]} (data.items={kind}; none: running text)")
    return data.model_copy(update={"items": kind})


def unit_of(dataset: Dataset) -> str:
    """Return the name of the tokens of a dataset in messages."""
    return "characters" if isinstance(dataset.tokenizer, CharTokenizer) else "tokens"
