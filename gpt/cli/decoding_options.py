"""Options for decoding: backend, key/value cache and speculative decoding."""

import argparse
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from gpt.cli.command import report
from gpt.cli.shared_options import add_number, not_empty
from gpt.errors import CheckpointError

if TYPE_CHECKING:
    from gpt.checkpoint import Loaded
    from gpt.generation.backends.selection import Runtime
    from gpt.generation.drafts import MakeDrafter


def add_decoding_options(parser: argparse.ArgumentParser) -> None:
    backends, logits = ("auto", "eager", "compiled", "native"), "how to compute the logits (default: auto, the fastest)"
    parser.add_argument("--backend", choices=backends, default="auto", help=logits)
    drafts = (
        "speculative decoding, which gives the same text; drafts come from: ngram (the training text), lookup (the "
        "text so far), or a checkpoint of a smaller model"
    )
    parser.add_argument("--speculate", type=not_empty, metavar="WHAT", help=drafts)
    parser.add_argument("--no-cache", action="store_true", help="recompute the whole window for every token")
    dtype = "dtype of the key/value cache (default: fp32)"
    parser.add_argument("--kv-dtype", choices=("fp32", "bf16", "fp16", "int8"), help=dtype)
    add_number(parser, "--prefill-chunk", "process at most N prompt tokens per pass")


def chosen_runtime(arguments: argparse.Namespace, loaded: "Loaded") -> "Runtime":
    """Return the runtime of a model by the options of `add_decoding_options`.

    Raises:
        CheckpointError: see `make_drafter_of`.
        DeviceError: the requested backend is not available.
        GenerationError: two options contradict each other.
    """
    from gpt.generation.backends.selection import DecodeOptions, build_runtime

    options = DecodeOptions(
        arguments.backend, not arguments.no_cache, arguments.kv_dtype or "fp32", arguments.prefill_chunk
    )
    make_drafter = make_drafter_of(arguments.speculate, loaded, arguments.runs)
    return build_runtime(loaded.model, options, report=report, make_drafter=make_drafter)


def make_drafter_of(choice: str | None, loaded: "Loaded", runs: Path) -> "MakeDrafter | None":
    """Return a function that makes the drafters of `--speculate` for a model, or None.

    Raises:
        CheckpointError: the checkpoint has no n-gram table, or the draft model cannot be read or has another
            vocabulary.
    """
    from gpt.generation.drafts import LookupDrafter, NgramDrafter

    if choice is None:
        return None
    if choice == "lookup":
        return lambda params: LookupDrafter()
    if choice != "ngram":
        return _model_drafter(Path(choice), loaded, runs)
    if (table := loaded.ngrams) is None:
        why = "train.ngrams: false, or an older run"
        raise CheckpointError(f"{loaded.folder} has no n-gram table ({why}); take --speculate lookup")
    return lambda params: NgramDrafter(table)


def _model_drafter(path: Path, loaded: "Loaded", runs: Path) -> "MakeDrafter":
    import torch

    from gpt.checkpoint import load_trained
    from gpt.environment import read_settings
    from gpt.generation.backends.native_runtime import NativeRuntime
    from gpt.generation.backends.selection import DecodeOptions
    from gpt.generation.drafts import ModelDrafter
    from gpt.progress import silent

    draft = load_trained(path, runs, torch.device("cpu"))
    same_ids = draft.model.vocab_size == loaded.model.vocab_size
    if not same_ids or draft.tokenizer.to_dict() != loaded.tokenizer.to_dict():
        raise CheckpointError(f"--speculate {path}: its vocabulary differs from that of {loaded.folder}")

    @cache
    def runtime() -> NativeRuntime:  # only if the model itself has one
        return NativeRuntime(draft.model, DecodeOptions(), read_settings(), silent)

    return lambda params: ModelDrafter(runtime().backend(params), params)
