"""Options for sampling, checked by `SamplingParams`; errors name the option."""

import argparse
from typing import Any

from pydantic import ValidationError

from gpt.config import SamplingParams
from gpt.filters import FILTERS
from gpt.system.errors import GenerationError


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """Add one option per sampling parameter; defaults come from the run's configuration."""
    usual = SamplingParams()
    length = f"tokens to generate per sample (default: the run's, usually {usual.max_new_tokens})"
    parser.add_argument("--max-new-tokens", type=int, metavar="N", help=length)
    heat = f"0 is greedy, 1 the model's own distribution (default: the run's, usually {usual.temperature})"
    parser.add_argument("--temperature", type=float, metavar="T", help=heat)
    add_filter_options(parser)
    parser.add_argument("--repetition-penalty", type=float, metavar="R", help="above 1: avoid tokens that occurred")
    parser.add_argument("--greedy", action="store_true", help="always the most likely token: --temperature 0")
    seed = "same seed, same text; sample i uses N + i (default: random)"
    parser.add_argument("--seed", type=int, metavar="N", help=seed)
    parser.add_argument("--stop", action="append", metavar="TEXT", help="stop before this text; may be repeated")
    parser.add_argument("--overflow", choices=("slide", "stop"), help="when the window is full: slide it, or stop")
    parser.add_argument("--crop-prompt", action="store_true", help="crop a prompt to its end if it exceeds the window")
    parser.add_argument("--logprobs", type=int, metavar="N", help="with --json: log-probabilities (nats) of N tokens")


def add_filter_options(parser: "argparse._ActionsContainer") -> None:
    for name, part in FILTERS.items():
        option, letter = f"--{name.replace('_', '-')}", name.rpartition("_")[2][:1].upper()
        parser.add_argument(option, type=type(part.off), metavar=letter, help=part.help.replace("%", "%%"))


def given_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the parameters that were given on the command line.

    Raises:
        GenerationError: two of them contradict each other.
    """
    options = {name: getattr(arguments, name, None) for name in SamplingParams.model_fields}
    given = {name: value for name, value in options.items() if value is not None}
    if arguments.stop:
        given["stop"] = tuple(arguments.stop)
    if arguments.crop_prompt:
        given["long_prompt"] = "crop"
    if arguments.greedy:
        if given.get("temperature", 0) != 0:
            raise GenerationError(f"--greedy is temperature 0, but --temperature is {given['temperature']:g}")
        given["temperature"] = 0.0
    return given


def with_options(base: SamplingParams, given: dict[str, Any]) -> SamplingParams:
    """Return `base` with some parameters replaced.

    Raises:
        GenerationError: a value is out of range.
    """
    try:
        return SamplingParams.model_validate({**base.model_dump(), **given})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        option = "--" + str(first["loc"][0]).replace("_", "-")
        expected = first["msg"].replace("Input should be", "expected").replace("String should", "the text should")
        raise GenerationError(f"{option}: got {first['input']!r}, {expected}") from None
