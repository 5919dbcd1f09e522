"""Fit a recipe to your text: size, regularization and steps from its amount."""

from dataclasses import dataclass
from typing import Any

from gpt.config import DataConfig
from gpt.data.dataset import Dataset
from gpt.data.preparation import prepare
from gpt.data.tokenizers import CharTokenizer
from gpt.system.environment import Settings
from gpt.system.errors import ConfigError
from gpt.system.progress import Report

LEAST = 2_000
"""Characters below which there is nothing to learn from, or to validate on."""
CLAIM = 20_000
"""Characters below which a validation split says little: its loss depends on which lines it has."""
LARGE = 300_000
"""Tokens of a validation split of which no more are read at each evaluation."""
READ = 119.0, 0.783
"""Factor and power of a text's characters: the tokens after which more reading only memorizes it.

A text of 4,000 is read some 22 times, one of 30,000 14 times, one of 300,000 8 times; of longer ones the tiers say it.
"""
RARE = 20
"""Occurrences of a character, on average, below which a third of the steps has memorized the text."""
ARCHITECTURE = {"norm": "rmsnorm", "position": "rope", "mlp": "swiglu", "qk_norm": True}
ARCHITECTURE |= {"tie_weights": False, "init": "zero_projections"}
OPTIMIZER = {"name": "muon", "learning_rate": 0.015, "min_lr": 0.0, "schedule": "wsd", "betas": [0.9, 0.99]}
OPTIMIZER["muon_rate"] = 0.02


@dataclass(frozen=True)
class Tier:
    """A recipe for texts of at most `characters`."""

    characters: float
    n_layer: int
    n_head: int  # of 32 channels each
    dropout: float  # on embeddings and sublayer outputs
    steps: int  # at most; see `READ`
    tokens: int  # of a step
    weight_decay: float  # of matrices and embeddings
    block_size: int  # most tokens of a sequence; those of 512 are cut into shorter ones at first
    temperature: float  # of training; below 1, targets further ahead help too
    evaluations: int  # of a run


TIERS = (
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
"""By the amount of text: the less there is, the smaller the steps, and the more regularization pays."""


def recipe_for(characters: int, shorter_split: int, distinct: int) -> dict[str, dict[str, Any]]:
    """Return the sections of a configuration, without the path in `data`, for a text of `characters` characters.

    Args:
        shorter_split: characters of its training or validation split, whichever has less, which has to fill a block.
        distinct: how many of them differ; Chinese has thousands.
    """
    tier = next(tier for tier in TIERS if characters <= tier.characters)
    block = max(8, min(tier.block_size, shorter_split // 8 * 8 - 8))
    read = round(READ[0] * characters ** READ[1] / tier.tokens)
    steps = min(tier.steps, read) if characters <= 300_000 else tier.steps
    steps, dropout = (steps // 3, 0.5) if characters < RARE * distinct else (steps, tier.dropout)
    regularized = {"dropout": dropout, "attention_dropout": 0.0} if dropout else {}
    lengthened = {"length_warmup": [0.4, 0.4]} if block == 512 else {}
    repeated = {"mtp_weights": [0.5, 0.25], "logit_temperature": tier.temperature} if tier.temperature < 1 else {}
    width = 88 * tier.n_head  # SwiGLU's 8/3 of the channels, in multiples of 16 for the native kernels
    size = {
        "n_layer": tier.n_layer,
        "n_head": tier.n_head,
        "n_embd": 32 * tier.n_head,
        "mlp_width": width,
        "block_size": block,
    }
    shape = {"warmup_steps": min(40, steps // 4), "decay_steps": round(0.56 * steps)}
    return {
        "data": {"order": "shuffled"},
        "model": {**size, **regularized, **ARCHITECTURE},
        "optim": {**OPTIMIZER, **shape, "weight_decay": tier.weight_decay},
        "train": {
            "batch_size": tier.tokens // block,
            "max_steps": steps,
            **lengthened,
            **repeated,
            "eval_interval": -(-steps // tier.evaluations),
            **({"eval_max_tokens": LARGE} if shorter_split > LARGE else {}),
            "sample_tokens": 200,
        },
        # what was trained to be less certain is sampled at a lower temperature
        "sample": {"temperature": round(0.8 * tier.temperature, 2)},
    }


def fit_recipe(data: DataConfig, settings: Settings, report: Report) -> tuple[dict[str, dict[str, Any]], Dataset]:
    """Return the sections that fit a text, without the path in `data`, and the text as a dataset."""
    dataset = prepare(data, settings, report)
    length = len(dataset.train) + len(dataset.val)
    several = data.path if isinstance(data.path, tuple) else ()
    name = ", ".join(several) or data.path
    if length < LEAST:
        raise ConfigError(f"{name} has {length:,} {unit_of(dataset)}; a model needs at least {LEAST:,}")
    if length < CLAIM:
        few = f"{name} has {length:,} {unit_of(dataset)}, of which {len(dataset.val):,} validate"
        report(f"warning: {few}; below {CLAIM:,} a loss is no claim about a model, or about other texts like this one")
    distinct = dataset.tokenizer.vocab_size if isinstance(dataset.tokenizer, CharTokenizer) else 0
    sections = recipe_for(length, min(len(dataset.train), len(dataset.val)), distinct)
    if several:
        del sections["data"]["order"]  # which is for one path
    return sections, dataset


def unit_of(dataset: Dataset) -> str:
    return "characters" if isinstance(dataset.tokenizer, CharTokenizer) else "tokens"
