"""What an exporter covers, as lists of what it knows: anything newer is refused until it is added to them."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gpt.config import ModelConfig, SampleConfig
from gpt.model import GPT
from gpt.native.decoding.weights import reason_not_as_configured
from gpt.system.errors import InputError

SIZES = frozenset(
    {
        "n_layer",
        "n_head",
        "n_embd",
        "block_size",
        "vocab_size",
        "mlp_width",
        "norm_eps",
        "rope_theta",
    }
)
WITHOUT_EFFECT = frozenset({"init", "dropout", "attention_dropout", "attention"})
"""Keys of `ModelConfig` that do not change what a trained model computes."""


def changes_for(
    config: ModelConfig, keys: Collection[str], values: Mapping[str, Sequence[Any]]
) -> list[str]:
    """Return the options, as model.KEY=VALUE, that a model would need for an exporter to cover it; none if it does.

    Args:
        keys: keys of `ModelConfig` whose every value it covers, beside sizes and what has no effect.
        values: those that it covers of other keys, the one to change to first; of all the rest it covers the default.
    """
    changes = []
    for key, field in type(config).model_fields.items():
        covered = values.get(key, (field.default,))
        if key not in {*keys, *SIZES, *WITHOUT_EFFECT} and getattr(config, key) not in covered:
            changes.append(
                f"model.{key}={'null' if covered[0] is None else str(covered[0]).lower()}"
            )
    return changes


def unknown_defaults(params: SampleConfig, known: Collection[str]) -> list[str]:
    """Return the sampling defaults, as sample.KEY=VALUE, that were set and that a format has no place for.

    Args:
        known: keys of `SampleConfig` that it has a place for.
    """
    lost = []
    for key, field in SampleConfig.model_fields.items():
        value = getattr(params, key)
        if key not in known and value != field.default:
            lost.append(f"sample.{key}={json.dumps(value, ensure_ascii=False)}")
    return lost


def require_as_configured(model: GPT) -> None:
    """Raise InputError where modules of a model on the CPU are not those that its configuration builds."""
    reason = reason_not_as_configured(model)
    if reason is not None:
        raise InputError(f"the model is not what its configuration builds: {reason}")
