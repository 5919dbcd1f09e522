"""What an exporter covers, as lists of what it knows.

Anything newer is refused until it is added to them.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gpt.config import ModelConfig, SampleConfig
from gpt.data.pairs import TURN
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
"""Keys of `ModelConfig` that every exporter covers, whatever their number is."""
WITHOUT_EFFECT = frozenset({"init", "dropout", "attention_dropout", "attention"})
"""Keys of `ModelConfig` that do not change what a trained model computes."""


def changes_for(
    config: ModelConfig, keys: Collection[str], values: Mapping[str, Sequence[Any]]
) -> list[str]:
    """Return the options that a model would need so that an exporter covers it.

    They are written as model.KEY=VALUE. There are none if it covers the model.

    Args:
        keys: keys of `ModelConfig` whose every value the exporter covers, beside `SIZES` and
            `WITHOUT_EFFECT`.
        values: the values that it covers of other keys; the first is the one to change to. Of all
            remaining keys it covers the default alone.
    """
    any_value = {*keys, *SIZES, *WITHOUT_EFFECT}
    changes = []
    for key, field in type(config).model_fields.items():
        if key in any_value:
            continue
        covered = values.get(key, (field.default,))
        if getattr(config, key) not in covered:
            changes.append(f"model.{key}={_as_yaml(covered[0])}")
    return changes


def _as_yaml(value: Any) -> str:
    """Return a value as an option has it: `null`, `true`, `false`, a number or a name."""
    return "null" if value is None else str(value).lower()


def unknown_defaults(params: SampleConfig, known: Collection[str]) -> list[str]:
    """Return the sampling defaults that were set, and that a format has no place for.

    They are written as sample.KEY=VALUE.

    Args:
        known: keys of `SampleConfig` that the format has a place for.
    """
    lost = []
    for key, field in SampleConfig.model_fields.items():
        value = getattr(params, key)
        if key not in known and value != field.default:
            lost.append(f"sample.{key}={json.dumps(value, ensure_ascii=False)}")
    return lost


def without_turn(params: SampleConfig) -> SampleConfig:
    """Return sampling defaults without `TURN` among the texts that end an answer.

    A format that ends answers at the token of this mark loses nothing by that.
    """
    stops = tuple(stop for stop in params.stop if stop != TURN)
    return params.model_copy(update={"stop": stops})


def require_as_configured(model: GPT) -> None:
    """Raise InputError where the modules of a model are not those that its configuration builds.

    The model is on the CPU.
    """
    reason = reason_not_as_configured(model)
    if reason is not None:
        raise InputError(f"the model is not what its configuration builds: {reason}")
