"""Options for sampling, checked by `SamplingParams`, where errors name the option; and for decoding."""

import argparse
from typing import Any

from pydantic import ValidationError

from gpt.config import SampleConfig, SamplingParams
from gpt.config.filters import FILTERS
from gpt.config.loading import explain
from gpt.system.errors import GenerationError


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """Add one option per sampling parameter; defaults come from the run's configuration."""
    usual = SamplingParams()
    length = f"tokens to generate per sample (default: the run's, usually {usual.max_new_tokens})"
    parser.add_argument("--max-new-tokens", type=int, metavar="N", help=length)
    heat = f"0 is greedy, 1 the model's own distribution (default: the run's, usually {usual.temperature})"
    temperature = parser.add_mutually_exclusive_group()
    temperature.add_argument("--temperature", type=float, metavar="T", help=heat)
    greedy = "always the most likely token: --temperature 0"
    temperature.add_argument("--greedy", dest="temperature", action="store_const", const=0.0, help=greedy)
    for name, part in FILTERS.items():
        option, letter = f"--{name.replace('_', '-')}", name.rpartition("_")[2][:1].upper()
        parser.add_argument(option, type=type(part.off), metavar=letter, help=part.help.replace("%", "%%"))
    parser.add_argument("--repetition-penalty", type=float, metavar="R", help="above 1: avoid tokens that occurred")
    seed = "same seed, same text; sample i uses N + i (default: random)"
    parser.add_argument("--seed", type=int, metavar="N", help=seed)
    parser.add_argument("--stop", action="append", metavar="TEXT", help="stop before this text; may be repeated")
    parser.add_argument("--overflow", choices=("slide", "stop"), help="when the window is full: slide it, or stop")
    crop = "crop a prompt to its end if it exceeds the window"
    parser.add_argument("--crop-prompt", dest="long_prompt", action="store_const", const="crop", help=crop)
    parser.add_argument("--logprobs", type=int, metavar="N", help="with --json: log-probabilities (nats) of N tokens")


def given_params(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the parameters that were given on the command line."""
    options = {name: getattr(arguments, name, None) for name in SamplingParams.model_fields}
    return {name: value for name, value in options.items() if value is not None}


def params_of(base: SampleConfig, given: dict[str, Any]) -> SamplingParams:
    """Return `base` with some parameters replaced.

    Raises:
        GenerationError: a value is out of range.
    """
    try:
        return base.params(**given)
    except ValidationError as error:
        (*_, name), message = explain(error, "sample")[0]
        raise GenerationError(f"--{name.replace('_', '-')}: {message}") from None


def add_decoding_options(parser: argparse.ArgumentParser) -> None:
    backends, logits = ("auto", "eager", "native"), "how to compute the logits (default: auto, the fastest)"
    parser.add_argument("--backend", choices=backends, default="auto", help=logits)
    dtype = "dtype of the key/value cache (default: fp32)"
    parser.add_argument("--kv-dtype", choices=("fp32", "bf16", "fp16", "int8"), default="fp32", help=dtype)
