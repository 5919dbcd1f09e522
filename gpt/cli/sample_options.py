"""The options of `gpt sample`.

Those for sampling are checked by `SamplingParams`, and an error names the option.
"""

import argparse
from collections.abc import Collection
from typing import Any

from pydantic import ValidationError

from gpt.cli.draft import add_draft_option
from gpt.cli.shared_options import (
    add_checkpoint_options,
    add_number,
    add_weights_option,
    number,
    to_path,
)
from gpt.config import SamplingParams
from gpt.config.filters import FILTERS
from gpt.config.loading import explain
from gpt.system.errors import GenerationError


def add_options(parser: argparse.ArgumentParser) -> None:
    add_checkpoint_options(parser)
    add_weights_option(parser)
    add_draft_option(parser)
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--prompt", help="text to continue; - reads standard input (default: a newline)"
    )
    source.add_argument(
        "--prompts-file",
        type=to_path,
        metavar="FILE",
        help="read several prompts from a UTF-8 file, one per line",
    )
    source.add_argument("--interactive", action="store_true", help="prompt repeatedly")
    _add_sampling_options(parser)
    _add_text_options(parser)
    add_number(parser, "--num-samples", "samples per prompt (default: 1; of a list, 20 items)")
    parser.add_argument(
        "--new", action="store_true", help="of a list: only items that are not in its training text"
    )
    add_number(parser, "--beam", "beam search with N hypotheses, best first", most=10_000)
    parser.add_argument(
        "--length-penalty",
        type=number(0, kind=float),
        metavar="A",
        help="with --beam: divide by length to this power (default: 1)",
    )
    parser.add_argument(
        "--unknown",
        choices=("error", "replace", "drop"),
        default="error",
        help="what to do with characters outside the vocabulary (default: error)",
    )
    _add_decoding_options(parser)
    parser.add_argument(
        "--stats", action="store_true", help="report the backend, the device and tokens/s"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per sample")


def _add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """Add options for how many tokens are chosen, and how.

    They are named as the sampling parameters, whose defaults come from the run's configuration.
    """
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


def _add_text_options(parser: argparse.ArgumentParser) -> None:
    """Add the other sampling parameters: where a text ends, and what is told of its tokens."""
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


def _add_decoding_options(parser: argparse.ArgumentParser) -> None:
    """Add options for how logits are computed: values of `DecodeOptions`, without its import."""
    parser.add_argument(
        "--backend",
        choices=("auto", "eager", "native", "graph"),
        default="auto",
        help="how to compute the logits (default: auto, the fastest)",
    )
    parser.add_argument(
        "--kv-dtype",
        choices=("fp32", "bf16", "fp16", "int8"),
        default="fp32",
        help="dtype of the key/value cache (default: fp32)",
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


def check_options(arguments: argparse.Namespace) -> None:
    """Raise GenerationError for an option without effect."""
    # Options that are not given have the value None, or False without a value of their own.
    chosen = set()
    for name, value in vars(arguments).items():
        if value is not None and value is not False:
            chosen.add(name)
    for_samples = {"stats", "logprobs", "num_samples", "new"}
    if arguments.interactive:
        _refuse(chosen & {"json", "beam", *for_samples}, "--interactive")
    if arguments.beam is None:
        _refuse(chosen & {"length_penalty"}, "sampling, without --beam")
    else:
        sampling = {"temperature", *FILTERS, "repetition_penalty", "seed"}
        _refuse(chosen & (sampling | for_samples | {"draft"}), "--beam")
    if not arguments.json:
        _refuse(chosen & {"logprobs"}, "text output, without --json")


def _refuse(ignored: Collection[str], mode: str) -> None:
    """Raise GenerationError for the first of some options that have no effect in a mode."""
    if ignored:
        option = min(ignored).replace("_", "-")
        raise GenerationError(f"--{option} has no effect with {mode}; leave one of them out")
