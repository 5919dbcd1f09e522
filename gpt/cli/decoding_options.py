"""Options for decoding: backend, key/value cache and speculative decoding."""

import argparse
from typing import TYPE_CHECKING

from gpt.cli.command import report

if TYPE_CHECKING:
    from gpt.checkpoint import Loaded
    from gpt.generation.runtime import Runtime


def add_decoding_options(parser: argparse.ArgumentParser) -> None:
    backends, logits = ("auto", "eager", "native"), "how to compute the logits (default: auto, the fastest)"
    parser.add_argument("--backend", choices=backends, default="auto", help=logits)
    drafts = "speculative decoding by drafts from the text so far, which gives the same text"
    parser.add_argument("--speculate", action="store_true", help=drafts)
    dtype = "dtype of the key/value cache (default: fp32)"
    parser.add_argument("--kv-dtype", choices=("fp32", "bf16", "fp16", "int8"), default="fp32", help=dtype)


def chosen_runtime(arguments: argparse.Namespace, loaded: "Loaded") -> "Runtime":
    """Return the runtime of a model by the options of `add_decoding_options`.

    Raises:
        DeviceError: the requested backend is not available.
        GenerationError: two options contradict each other.
    """
    from gpt.generation.runtime import DecodeOptions, build_runtime

    options = DecodeOptions(arguments.backend, arguments.kv_dtype)
    return build_runtime(loaded.model, options, report=report, speculate=arguments.speculate)
