"""What an exporter covers, as lists of what it knows: anything newer is refused until it is added to them."""

from collections.abc import Collection, Mapping

from gpt.config import ModelConfig, SamplingParams
from gpt.errors import DeviceError, InputError
from gpt.kernels.decoding.weights import check_native_support
from gpt.model import GPT

SIZES = frozenset({"n_layer", "n_head", "n_embd", "block_size", "vocab_size", "mlp_width", "norm_eps", "rope_theta"})
WITHOUT_EFFECT = frozenset({"init", "dropout", "attention_dropout", "attention"})
"""Keys of `ModelConfig` that do not change what a trained model computes."""


NOT_SAMPLING = frozenset({"seed", "logprobs", "empty_prompt", "long_prompt"})
"""Keys of `SamplingParams` that do not change the distribution of a text."""


def require_covered(
    config: ModelConfig, exporter: str, keys: Collection[str], names: Mapping[str, Collection[str]] | None = None
) -> None:
    """Check that an exporter knows every option of a model; a key that it does not know has to have its default.

    Args:
        keys: keys of `ModelConfig` whose every value it covers, beside sizes and what has no effect.
        names: the values that it covers, of keys that have a list of them.

    Raises:
        InputError: it does not know an option; the message names the key and what it covers.
    """
    for key, field in type(config).model_fields.items():
        value, known = getattr(config, key), (names or {}).get(key)
        if known is not None and value not in known:
            raise InputError(f"{exporter} does not cover model.{key}={value}; train with one of {', '.join(known)}")
        if known is None and key not in {*keys, *SIZES, *WITHOUT_EFFECT} and value != field.default:
            default = "null" if field.default is None else str(field.default).lower()
            raise InputError(f"{exporter} does not cover model.{key}={value}; train with model.{key}={default}")


def require_as_configured(model: GPT) -> None:
    """Raise InputError where modules of a model on the CPU are not those that its configuration builds."""
    try:
        check_native_support(model)
    except DeviceError as error:
        raise InputError(f"the model is not what its configuration builds: {error}") from None


def not_applied(params: SamplingParams, applied: Collection[str]) -> list[str]:
    """Return the sampling parameters, as KEY=VALUE, that are neither `applied` by a format nor at their default."""
    fields, known = type(params).model_fields, {*applied, *NOT_SAMPLING}
    values = {key: getattr(params, key) for key, field in fields.items() if getattr(params, key) != field.default}
    return [f"sample.{key}={value}" for key, value in values.items() if key not in known]
