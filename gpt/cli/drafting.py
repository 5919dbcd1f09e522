"""`--speculate`: where the drafts of speculative decoding come from."""

from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpt.errors import CheckpointError

if TYPE_CHECKING:
    from gpt.checkpoint import Loaded
    from gpt.generation.runtime import MakeDrafter


def make_drafter_of(choice: str | None, loaded: "Loaded", runs: Path) -> "MakeDrafter | None":
    """Return what makes drafters for one choice.

    Args:
        choice: ngram, lookup, a checkpoint, or None.
        loaded: the model that the drafts are for.
        runs: folder of run folders.

    Raises:
        CheckpointError: the checkpoint has no n-gram table, or that of the drafts cannot be read or has
            another vocabulary.
    """
    from gpt.generation.drafts import LookupDrafter, NgramDrafter

    if choice is None:
        return None
    if choice == "lookup":
        return lambda params: LookupDrafter()
    if choice == "ngram":
        table = loaded.ngrams
        if table is None:
            raise CheckpointError(
                f"{loaded.folder} has no n-gram table (train.ngrams: false, or an older run); take --speculate lookup"
            )
        return lambda params: NgramDrafter(table)
    return _model_drafter(Path(choice), loaded, runs)


def _model_drafter(path: Path, loaded: "Loaded", runs: Path) -> "MakeDrafter":
    import torch

    from gpt.checkpoint import load_trained
    from gpt.generation.drafts import ModelDrafter
    from gpt.generation.runtime import DecodeOptions, NativeRuntime
    from gpt.report import silent
    from gpt.settings import read_settings

    draft = load_trained(path, runs, torch.device("cpu"))
    same_ids = draft.model.vocab_size == loaded.model.vocab_size
    if not same_ids or draft.tokenizer.to_dict() != loaded.tokenizer.to_dict():
        raise CheckpointError(f"--speculate {path}: its vocabulary is not that of {loaded.folder}")

    @cache
    def runtime() -> NativeRuntime:  # only where the model itself has one
        return NativeRuntime(draft.model, DecodeOptions(), read_settings(), silent)

    return lambda params: ModelDrafter(partial(runtime().backend, params), params)
