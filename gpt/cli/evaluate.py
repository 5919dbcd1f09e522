"""`gpt evaluate`: the loss of a trained model on held-out text."""

import argparse
import json
from typing import TYPE_CHECKING, Any

from gpt.cli.command import load_torch, report
from gpt.cli.shared_options import (
    add_checkpoint_options,
    add_number,
    add_weights_option,
    command,
    read_text,
    to_path,
)
from gpt.system.errors import ConfigError
from gpt.system.progress import announce_if_slow

if TYPE_CHECKING:
    from gpt.api.evaluation import Windows
    from gpt.checkpoint import Loaded


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_checkpoint_options(parser)
    add_weights_option(parser)
    parser.add_argument(
        "--split", choices=("train", "val", "test"), help="split of the corpus (default: val)"
    )
    parser.add_argument(
        "--protocol",
        choices=("full", "sliding"),
        default="full",
        help="full (default): the whole split in blocks; sliding: overlapping windows",
    )
    add_number(parser, "--batch-size", "sequences per batch (default: 64)", most=1_000_000)
    add_number(parser, "--stride", "sliding: tokens to move by (default: block_size / 4)")
    parser.add_argument(
        "--text-file",
        type=to_path,
        metavar="FILE",
        help="score this UTF-8 text file instead; - reads standard input",
    )
    parser.add_argument(
        "--per-char",
        action="store_true",
        help="with --text-file: also the log-probability of each token, in nats",
    )


@command(
    "evaluate",
    "Evaluate a trained model on its corpus, or on your own text. "
    "The last line is one JSON object.",
    "--checkpoint runs/shakespeare --protocol full",
    _add_options,
)
def main(arguments: argparse.Namespace) -> int:
    # A wrong option is reported before torch is imported, which takes seconds.
    _check_options(arguments)

    load_torch()
    from gpt.api.evaluation import Windows, evaluate_corpus
    from gpt.checkpoint import load_trained
    from gpt.system.device import choose_compute

    compute = choose_compute(arguments.device, "float32", report)
    loaded = load_trained(arguments.checkpoint, arguments.runs, compute.device, arguments.weights)
    windows = Windows(arguments.protocol, arguments.batch_size, arguments.stride)
    if arguments.text_file is not None:
        summary = _score_file(arguments, loaded, windows)
    else:
        split = arguments.split or "val"
        summary = evaluate_corpus(loaded, compute, report, split, windows)
        loss = summary["loss"]
        bits = summary["bits_per_char"]
        losses = f"{loss:.4f} nats per token, {bits:.4f} bits per character"
        report(f"{loaded.folder}: {split} loss {losses}")
        if "items" in summary:
            report(_describe_items(summary))
    answer = {"checkpoint": str(loaded.folder), "protocol": arguments.protocol, **summary}
    print(json.dumps(answer, ensure_ascii=False))
    return 0


def _check_options(arguments: argparse.Namespace) -> None:
    """Raise ConfigError for an option without effect."""
    if arguments.text_file is not None and arguments.split is not None:
        raise ConfigError("--split has no effect with --text-file; it selects a part of the corpus")
    if arguments.stride is not None and arguments.protocol != "sliding":
        raise ConfigError(
            f"--stride has no effect with --protocol {arguments.protocol}; it is for sliding"
        )
    if arguments.per_char and arguments.text_file is None:
        raise ConfigError("--per-char needs --text-file")


def _describe_items(summary: dict[str, Any]) -> str:
    """Return the line about the items of a split: answers to questions, or items of a list."""
    per_item = summary["loss_per_item"]
    if "answers" in summary:
        num_exact = summary["exact_answers"]
        return (
            f"{per_item:.4f} nats per answer; {num_exact:,} of {summary['answers']:,} answers are "
            "right to the last character"
        )
    num_new = summary["new_samples"]
    samples = summary["samples"]
    return (
        f"{per_item:.4f} nats per item, of {summary['items']:,} items; "
        f"{num_new:,} of {samples:,} samples are new"
    )


def _score_file(
    arguments: argparse.Namespace, loaded: "Loaded", windows: "Windows"
) -> dict[str, Any]:
    """Compute the probability of the text in `arguments.text_file`, and report it in a line.

    Returns:
        What the command prints as JSON.
    """
    from gpt.api.scoring import score_text
    from gpt.data.tokenizers import convert_newlines
    from gpt.generation.text import token_name

    text = convert_newlines(read_text(arguments.text_file))
    kind = loaded.config.data.items
    if kind != "none":
        # The text has none of the marks that began and ended each item in training.
        report(
            f"warning: {loaded.folder} learned separate items (data.items: {kind}), but "
            f"{arguments.text_file} is scored as running text; without --text-file each item of "
            "the corpus is evaluated by itself"
        )
    stride = windows.stride_for(loaded.config.model.block_size)
    with announce_if_slow(report, f"scoring {len(text):,} characters"):
        score = score_text(loaded.model, loaded.tokenizer, text, stride)
    report(
        f"{loaded.folder}: {arguments.text_file} has log-probability {score.logprob:.2f} nats, "
        f"perplexity {score.perplexity:.4f} per token, {score.bits_per_char:.4f} bits per character"
    )
    summary = {
        "text_file": str(arguments.text_file),
        "logprob": score.logprob,
        "loss": -score.logprob / len(score.logprobs),
        "perplexity": score.perplexity,
        "bits_per_char": score.bits_per_char,
        "tokens": len(score.logprobs),
    }
    if arguments.per_char:
        # The first token has no context to be predicted from, and so no probability.
        ids = loaded.tokenizer.encode(text)[1:]
        names = [token_name(loaded.tokenizer, index) for index in ids.tolist()]
        summary["per_char"] = list(zip(names, score.logprobs, strict=True))
    return summary
