"""The loss of a trained model over a split of the corpus that it was trained on."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gpt.api.item_samples import NUM_SAMPLES, count_new
from gpt.api.pair_answers import count_exact
from gpt.checkpoint import Loaded
from gpt.checkpoint.corpus import training_dataset
from gpt.data.dataset import Dataset
from gpt.data.item_batches import item_batches
from gpt.data.items import item_spans
from gpt.data.tokens import IGNORE, Tokens
from gpt.system.device import Compute
from gpt.system.errors import CheckpointError, ConfigError
from gpt.system.progress import Report, announce_if_slow, progress_bar
from gpt.training.loss import Batch, Evaluation, evaluate, sliding_batches

DEFAULT_BATCH_SIZE = 64
"""Sequences per batch: enough for large matrix products, and few enough for any memory."""
WINDOWS_PER_BLOCK = 4
"""With protocol sliding, and no stride given: windows that read each token.

Each token then has at least three quarters of a block as its context, for four times the time of
protocol full.
"""


@dataclass(frozen=True)
class Windows:
    """How a split is cut into sequences.

    Attributes:
        protocol: full: adjacent blocks; sliding: overlapping windows.
        batch_size: sequences per batch; None: `DEFAULT_BATCH_SIZE`.
        stride: with protocol sliding, tokens between the starts of windows; None: a quarter of a
            block.
    """

    protocol: str = "full"
    batch_size: int | None = None
    stride: int | None = None

    def stride_for(self, block_size: int) -> int:
        """Return the tokens between the starts of windows of `block_size` tokens."""
        if self.protocol == "full":
            return block_size
        stride = self.stride or max(1, block_size // WINDOWS_PER_BLOCK)
        # a longer stride would leave tokens out
        return min(stride, block_size)


def evaluate_corpus(
    loaded: Loaded,
    compute: Compute,
    report: Report,
    split: str = "val",
    windows: Windows = Windows(),
) -> dict[str, Any]:
    """Compute the loss of a model over a split of its run's corpus: train, val or test.

    Only the token files that the training wrote are read. The corpus itself is not looked for: the
    configuration of somebody else's checkpoint may name any file, folder or address.

    Returns:
        `split`; `loss` in nats per token; `bits_per_char`; `tokens`, the number of those that were
        predicted; `block_size`. Of a corpus of items also `items`, their number; `loss_per_item`,
        in nats; `samples`, and `new_samples`, how many of them are no item of the training split.
        Of questions and answers, `loss` is over the answers; `answers`, how many were written, and
        `exact_answers`, how many of them are right to the last character.

    Raises:
        ConfigError: the token files are not there, or have no such split or one that is too short,
            or `windows` are asked for that items do not have.
        CheckpointError: the loss is not finite.
    """
    dataset = training_dataset(loaded)
    block_size = loaded.config.model.block_size
    dataset.check_length(block_size)
    tokens = _split_of(dataset, split)
    if dataset.items is not None:
        return _evaluate_items(loaded, dataset, split, windows, compute, report)

    stride = windows.stride_for(block_size)
    number_of_windows = len(tokens) // stride + 1
    # a batch is not larger than the split, since its memory grows with its size
    batch_size = min(windows.batch_size or DEFAULT_BATCH_SIZE, number_of_windows)
    batches = sliding_batches(tokens, block_size, batch_size, stride)
    with progress_bar(report, f"evaluating {loaded.folder}", len(tokens) - 1, "tokens") as advance:
        result = evaluate(loaded.model, _counted(batches, advance), compute)
    return _summary(loaded, split, result, dataset.chars_per_token(tokens))


def _summary(
    loaded: Loaded, split: str, result: Evaluation, chars_per_token: float
) -> dict[str, Any]:
    """Return what an evaluation found; CheckpointError: the loss is not finite."""
    if not math.isfinite(result.loss):
        raise CheckpointError(
            f"{loaded.folder}: the loss is not finite; its weights may be corrupt"
        )
    return {
        "split": split,
        "loss": result.loss,
        "bits_per_char": result.bits_per_char(chars_per_token),
        "tokens": result.tokens,
        "block_size": loaded.config.model.block_size,
    }


def _evaluate_items(
    loaded: Loaded,
    dataset: Dataset,
    split: str,
    windows: Windows,
    compute: Compute,
    report: Report,
) -> dict[str, Any]:
    """Evaluate each item of a split by itself, and count how many samples are new.

    Raises:
        ConfigError: a protocol is asked for that makes no difference to items.
    """
    assert dataset.items is not None
    if windows.protocol != Windows().protocol:
        raise ConfigError(
            f"protocol {windows.protocol} has no effect with data.items: "
            f"{loaded.config.data.items}; each item is predicted from its own beginning"
        )
    tokens = _split_of(dataset, split)
    batch_size = windows.batch_size or DEFAULT_BATCH_SIZE
    block_size = loaded.config.model.block_size
    batches = item_batches(tokens, block_size, batch_size, dataset.items)
    with progress_bar(report, f"evaluating {loaded.folder}", len(tokens), "tokens") as advance:
        result = evaluate(loaded.model, _counted(batches, advance), compute)
    summary = _summary(loaded, split, result, dataset.chars_per_token(tokens))
    num_items = len(item_spans(tokens, dataset.items.end))
    summary |= {"items": num_items, "loss_per_item": result.loss * result.tokens / num_items}
    if dataset.items.answer is not None:
        with announce_if_slow(report, "answering questions"):
            num_exact, num_answers = count_exact(loaded, dataset, tokens)
        return {**summary, "answers": num_answers, "exact_answers": num_exact}
    with announce_if_slow(report, f"writing {NUM_SAMPLES:,} samples"):
        num_new = count_new(loaded, dataset)
    return {
        **summary,
        "samples": NUM_SAMPLES,
        "new_samples": num_new,
    }


def _split_of(dataset: Dataset, split: str) -> Tokens:
    """Return the tokens of a split: at least two, since the first one is not predicted.

    Raises:
        ConfigError: `split` is no name of a split, or the corpus has no such split or one that is
            too short.
    """
    splits = {"train": dataset.train, "val": dataset.val, "test": dataset.test}
    if split not in splits:
        raise ConfigError(f"split is {split!r}, expected one of {', '.join(splits)}")
    tokens = splits[split]
    if tokens is None:
        raise ConfigError(
            "the corpus has no test split; the run was made with data.test_fraction 0, and without "
            "data.test_path"
        )
    if len(tokens) < 2:
        raise ConfigError(
            f"the {split} split has {len(tokens):,} tokens, too few to predict one; "
            "train with more text or a larger data.test_fraction"
        )
    return tokens


def _counted(batches: Iterator[Batch], advance: Callable[[int], None]) -> Iterator[Batch]:
    """Yield the same batches; after the use of each, call `advance` with its number of targets."""
    for inputs, targets in batches:
        yield inputs, targets
        advance(int((targets != IGNORE).sum()))
