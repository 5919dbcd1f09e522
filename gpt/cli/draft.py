"""`--draft`: the small model that guesses tokens for a large one."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from gpt.cli.shared_options import to_path
from gpt.system.errors import CheckpointError

if TYPE_CHECKING:
    from gpt.checkpoint import Loaded


def add_draft_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--draft",
        type=to_path,
        metavar="RUN",
        help="a smaller run on the same text, which guesses tokens that the model then checks "
        "several at a time: the same text, faster where the guesses are good",
    )


def load_draft(path: Path, runs: Path) -> "Loaded":
    """Load the run that `--draft` names on the CPU, see `load_trained`."""
    import torch

    from gpt.checkpoint import load_trained

    try:
        return load_trained(path, runs, torch.device("cpu"))
    except CheckpointError as error:
        raise CheckpointError(f"--draft: {error}") from None


def check_draft(draft: "Loaded", loaded: "Loaded") -> None:
    """Raise CheckpointError unless a draft has the token ids of the model that it guesses for."""
    has_same_ids = draft.model.vocab_size == loaded.model.vocab_size
    if not has_same_ids or draft.tokenizer.to_dict() != loaded.tokenizer.to_dict():
        raise CheckpointError(
            f"--draft: {draft.folder} has another vocabulary than {loaded.folder}; "
            "take a run on the same text"
        )
