"""Options for decoding: backend, key/value cache and speculative decoding."""

import argparse
from typing import TYPE_CHECKING

from gpt.cli.command import report
from gpt.cli.shared_options import add_number

if TYPE_CHECKING:
    from gpt.checkpoint import Loaded
    from gpt.generation.backends.selection import Runtime


def add_decoding_options(parser: argparse.ArgumentParser) -> None:
    backends, logits = ("auto", "eager", "compiled", "native"), "how to compute the logits (default: auto, the fastest)"
    parser.add_argument("--backend", choices=backends, default="auto", help=logits)
    drafts = "speculative decoding by drafts from the text so far, which gives the same text"
    parser.add_argument("--speculate", action="store_true", help=drafts)
    parser.add_argument("--no-cache", action="store_true", help="recompute the whole window for every token")
    dtype = "dtype of the key/value cache (default: fp32)"
    parser.add_argument("--kv-dtype", choices=("fp32", "bf16", "fp16", "int8"), help=dtype)
    add_number(parser, "--prefill-chunk", "process at most N prompt tokens per pass")


def chosen_runtime(arguments: argparse.Namespace, loaded: "Loaded") -> "Runtime":
    """Return the runtime of a model by the options of `add_decoding_options`.

    Raises:
        DeviceError: the requested backend is not available.
        GenerationError: two options contradict each other.
    """
    from gpt.generation.backends.selection import DecodeOptions, build_runtime

    options = DecodeOptions(
        arguments.backend, not arguments.no_cache, arguments.kv_dtype or "fp32", arguments.prefill_chunk
    )
    return build_runtime(loaded.model, options, report=report, speculate=arguments.speculate)
