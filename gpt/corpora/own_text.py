"""Fit a recipe to one's own text: size, regularization and steps from its amount."""

from dataclasses import dataclass
from typing import Any

from gpt.config import DataConfig
from gpt.corpora.preparation import prepare
from gpt.data.dataset import Dataset
from gpt.data.tokenizers import CharTokenizer
from gpt.environment import Settings
from gpt.errors import ConfigError
from gpt.progress import Report

TOKENS = 3_072
"""Of a step."""
LEAST = 2_000
"""Characters below which there is nothing to learn from, or to validate on."""
ARCHITECTURE = {
    "norm": "rmsnorm",
    "position": "rope",
    "mlp": "gelu",
    "mlp_conv": 4,
    "qk_norm": True,
    "logit_softcap": 15.0,
    "tie_weights": False,
    "init": "zero_projections",
}
OPTIMIZER = {
    "name": "muon",
    "learning_rate": 0.015,
    "min_lr": 0.0,
    "schedule": "wsd",
    "warmup_steps": 40,
    "betas": [0.9, 0.99],
    "weight_decay": 0.1,
    "muon_rate": 0.02,
}


@dataclass(frozen=True)
class Tier:
    """A recipe for texts of at most `characters`.

    Attributes:
        n_head: heads, of 32 channels each.
        dropout: on embeddings and sublayer outputs.
        steps: of the run itself.
        teacher_share: length of its teacher's training, as a share of that; 0: no teacher.
        muon_weight_decay: of the matrices.
        block_size: most tokens of a sequence; those of 512 are cut into shorter ones at first.
        temperature: of training; below 1, targets further ahead help too.
    """

    characters: float
    n_layer: int
    n_head: int
    dropout: float
    steps: int
    teacher_share: float
    muon_weight_decay: float
    block_size: int
    temperature: float


TIERS = (
    Tier(180_000, 4, 4, 0.2, 500, 0.5, 0.3, 256, 0.8),
    Tier(300_000, 4, 4, 0.2, 760, 0.0, 0.3, 512, 0.8),
    Tier(600_000, 4, 4, 0.1, 1240, 0.0, 0.3, 512, 0.85),
    Tier(3_000_000, 4, 4, 0.0, 1720, 0.0, 0.2, 512, 0.9),
    Tier(float("inf"), 6, 8, 0.0, 2000, 0.0, 0.1, 256, 1.0),
)
"""By the amount of text: the less there is, the more often it is read, and the more regularization pays.

A teacher pays where a text is read more than some 14 times; below, its arithmetic is better spent on the model itself.
"""


def recipe_for(characters: int, shorter_split: int) -> dict[str, dict[str, Any]]:
    """Return the sections of a configuration, without the path in `data`, for a text of so many characters.

    All of them are meant for one to three minutes on two CPU cores with AMX.

    Args:
        shorter_split: characters of its training or validation split, whichever has less, which has to fill a block.
    """
    tier = next(tier for tier in TIERS if characters <= tier.characters)
    block = max(8, min(tier.block_size, shorter_split // 8 * 8 - 8))
    regularized = {"dropout": tier.dropout, "attention_dropout": 0.0} if tier.dropout else {}
    taught = {"teacher_share": tier.teacher_share, "teacher_weight": 0.4} if tier.teacher_share else {}
    lengthened = {"length_warmup": [0.4, 0.4]} if block == 512 else {}
    repeated = {"ahead_weights": [0.5, 0.25], "temperature": tier.temperature} if tier.temperature < 1 else {}
    size = {"n_layer": tier.n_layer, "n_head": tier.n_head, "n_embd": 32 * tier.n_head, "block_size": block}
    return {
        "data": {"order": "shuffled"},
        "model": {**size, **regularized, **ARCHITECTURE},
        "optim": {**OPTIMIZER, "decay_steps": round(0.56 * tier.steps), "muon_weight_decay": tier.muon_weight_decay},
        "train": {
            "batch_size": TOKENS // block,
            "max_steps": tier.steps,
            **taught,
            **lengthened,
            **repeated,
            "eval_interval": tier.steps // 2,
            "eval_first": False,
            "sample_tokens": 200,
        },
        # what was trained to be less certain is sampled at a lower temperature
        "sample": {"temperature": round(0.8 * tier.temperature, 2)},
    }


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
    return "characters" if isinstance(dataset.tokenizer, CharTokenizer) else "tokens"
