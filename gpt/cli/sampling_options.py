"""Options for sampling, checked by `SamplingParams`, where errors name the option; and for decoding."""

import argparse
from typing import Any

from pydantic import ValidationError

from gpt.config import SamplingParams
from gpt.config.filters import FILTERS
from gpt.config.loading import explain
from gpt.system.errors import GenerationError


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """Add one option per sampling parameter; defaults come from the run's configuration."""
    usual = SamplingParams()
    parser.add_argument(
        "--max-new-tokens",
        type=int,
        metavar="N",
        help=f"tokens to generate per sample (default: the run's, usually {usual.max_new_tokens})",
    )
    temperature = parser.add_mutually_exclusive_group()
    temperature.add_argument(
        "--temperature",
        type=float,
        metavar="T",
        help="0 is greedy, 1 the model's own distribution "
        f"(default: the run's, usually {usual.temperature})",
    )
    temperature.add_argument(
        "--greedy",
        dest="temperature",
        action="store_const",
        const=0.0,
        help="always the most likely token: --temperature 0",
    )
    for name, part in FILTERS.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=type(part.off),
            metavar=name.rpartition("_")[2][:1].upper(),  # K for top_k
            help=part.help.replace("%", "%%"),  # argparse reads % as the beginning of a name
        )
    parser.add_argument(
        "--repetition-penalty",
        type=float,
        metavar="R",
        help="above 1: avoid tokens that occurred",
    )
    parser.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help="same seed, same text; sample i uses N + i (default: random)",
    )
    parser.add_argument(
        "--stop", action="append", metavar="TEXT", help="stop before this text; may be repeated"
    )
    parser.add_argument(
        "--overflow", choices=("slide", "stop"), help="when the window is full: slide it, or stop"
    )
    parser.add_argument(
        "--crop-prompt",
        dest="long_prompt",
        action="store_const",
        const="crop",
        help="crop a prompt to its end if it exceeds the window",
    )
    parser.add_argument(
        "--logprobs",
        type=int,
        metavar="N",
        help="with --json: log-probabilities (nats) of N tokens",
    )


def given_params(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the sampling parameters that were given on the command line, validated.

    Raises:
        GenerationError: a value is out of range; the message names the option.
    """
    given = {}
    for name in SamplingParams.model_fields:
        value = getattr(arguments, name, None)
        if value is not None:
            given[name] = value
    try:
        params = SamplingParams.model_validate(given)
    except ValidationError as error:
        path, message = explain(error, "sample")[0]
        option = path[-1].replace("_", "-")
        raise GenerationError(f"--{option}: {message}") from None
    return {name: getattr(params, name) for name in given}


def add_decoding_options(parser: argparse.ArgumentParser) -> None:
    """Add options for how logits are computed: values of `DecodeOptions`, without its import."""
    parser.add_argument(
        "--backend",
        choices=("auto", "eager", "native"),
        default="auto",
        help="how to compute the logits (default: auto, the fastest)",
    )
    parser.add_argument(
        "--kv-dtype",
        choices=("fp32", "bf16", "fp16", "int8"),
        default="fp32",
        help="dtype of the key/value cache (default: fp32)",
    )
