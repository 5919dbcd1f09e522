"""The loss of a trained model over a split of the corpus that it learned from."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gpt.api.online import RATE, dynamic_evaluation
from gpt.checkpoint import Loaded
from gpt.data.dataset import META, Dataset, join_texts, open_dataset, token_folders
from gpt.data.tokens import Tokens
from gpt.system.device import Compute
from gpt.system.environment import expand_home
from gpt.system.errors import CheckpointError, ConfigError
from gpt.system.invocation import command_line
from gpt.system.progress import Report, counted
from gpt.training.loss import IGNORE, Batch, evaluate, sliding_batches


@dataclass(frozen=True)
class Windows:
    """How a split is cut into sequences.

    Attributes:
        protocol: full: adjacent blocks; sliding: overlapping windows; online: adjacent blocks, each learned from after
            it is scored.
        batch_size: sequences per batch; None: 64; online: always 1.
        stride: sliding: tokens to move by; None: a quarter of the window.
        rate: online: learning rate; None: that of `gpt.api.online`.
    """

    protocol: str = "full"
    batch_size: int | None = None
    stride: int | None = None
    rate: float | None = None

    def stride_for(self, block_size: int) -> int:
        """Return the tokens between the starts of windows."""
        return min(self.stride or max(1, block_size // 4), block_size) if self.protocol == "sliding" else block_size

    @property
    def learning_rate(self) -> float | None:
        """The rate to learn with what was scored; None: nothing is learned."""
        if self.protocol != "online":
            return None
        return RATE if self.rate is None else self.rate


def evaluate_corpus(
    loaded: Loaded,
    compute: Compute,
    report: Report,
    split: str = "val",
    windows: Windows = Windows(),
) -> dict[str, Any]:
    """Compute the loss of a model over a split of its run's corpus: train, val or test.

    Only the tokens that the training left are read. The corpus itself is not looked for: somebody else's configuration
    may name any file, folder or address.

    Returns:
        `split`; `loss` in nats per token; `bits_per_char`; `tokens` that were predicted; `block_size`.

    Raises:
        ConfigError: the tokens are not there, or have no such split or one that is too short.
        CheckpointError: the loss is not finite.
        InputError: see `learning`.
    """
    if "data" not in loaded.state:
        raise ConfigError(f"{loaded.folder} does not know what it was trained on; give a text with --text-file")
    tokens_folder = expand_home(loaded.config.data.dir, "data.dir") / "tokens"
    folders = token_folders(tokens_folder, str(loaded.state["data"]))
    folder = next((each for each in folders if not (each / META).is_file()), folders[0])
    if not (folder / META).is_file():
        prepare = command_line("prepare-data", "--config", str(loaded.folder / "config.yaml"))
        raise ConfigError(
            f"the tokens that {loaded.folder} was trained on are not in {folder}; encode its corpus again: {prepare}, "
            "or give a text with --text-file"
        )
    opened = [open_dataset(each) for each in folders]
    dataset = join_texts(opened)
    if dataset.tokenizer.to_dict() != loaded.tokenizer.to_dict():
        raise ConfigError(f"{loaded.folder} has a different tokenizer than the tokens in {folder}")
    block_size = loaded.config.model.block_size
    dataset.check_length(block_size)
    tokens, stride, rate = _split_of(dataset, split), windows.stride_for(block_size), windows.learning_rate
    if len(tokens) < 2:
        raise ConfigError(
            f"the {split} split has {len(tokens):,} tokens, too few to predict one; "
            "train with more text or a larger data.test_fraction"
        )
    size = 1 if rate is not None else min(windows.batch_size or 64, len(tokens) // stride + 1)
    model, batches = loaded.model, sliding_batches(tokens, block_size, size, stride)
    if rate is not None:
        model, batches = dynamic_evaluation(model, batches, rate)
    with counted(report, f"evaluating {loaded.folder}", len(tokens) - 1, "tokens") as advance:
        result = evaluate(model, _counted(batches, advance), compute)
    if not math.isfinite(result.loss):
        raise CheckpointError(f"{loaded.folder}: the loss is not finite; its weights are damaged")
    bits = result.bits_per_char(dataset.chars_per_token(tokens))
    summary = {"split": split, "loss": result.loss, "bits_per_char": bits}
    return {**summary, "tokens": result.tokens, "block_size": block_size}


def _split_of(dataset: Dataset, split: str) -> Tokens:
    splits = {"train": dataset.train, "val": dataset.val, "test": dataset.test}
    if split not in splits:
        raise ConfigError(f"split is {split!r}, expected one of {', '.join(splits)}")
    tokens = splits[split]
    if tokens is None:
        raise ConfigError("the corpus has no test split; the run was made with data.test_fraction 0")
    return tokens


def _counted(batches: Iterator[Batch], advance: Callable[[int], None]) -> Iterator[Batch]:
    """Yield the same batches, and call `advance` with the tokens of each one after its use."""
    for inputs, targets in batches:
        yield inputs, targets
        advance(int((targets != IGNORE).sum()))
