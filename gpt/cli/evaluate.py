"""`scripts/evaluate.py`: the loss of a trained model on held-out text."""

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpt.cli.command import CommandParser, load_torch, report, run_command
from gpt.cli.shared_options import add_checkpoint_options, add_weights_option, load_given_plugins, read_text, to_path
from gpt.config import RunConfig
from gpt.environment import read_settings
from gpt.errors import ConfigError
from gpt.progress import announced

if TYPE_CHECKING:
    from gpt.checkpoint import Loaded


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 2 a user's mistake, 130 stopped."""
    return run_command(lambda: _run(_parse(argv)))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    load_given_plugins(argv)
    parser = CommandParser(
        "Evaluate a trained model on its corpus, or on your own text. The last line is one JSON object.",
        "python scripts/evaluate.py --checkpoint runs/shakespeare --protocol full",
    )
    add_checkpoint_options(parser)
    add_weights_option(parser)
    parser.add_argument("--split", choices=("train", "val", "test"), help="split of the corpus (default: val)")
    parser.add_argument(
        "--protocol",
        choices=("full", "sliding", "random"),
        default="full",
        help="full (default): the whole split in blocks; sliding: overlapping windows; random: nanoGPT's random crops",
    )
    parser.add_argument("--batch-size", type=int, default=64, metavar="N", help="sequences per batch (default: 64)")
    parser.add_argument("--stride", type=int, metavar="N", help="sliding: tokens to move by (default: block_size / 4)")
    parser.add_argument("--batches", type=int, metavar="N", help="random: number of batches (default: 200)")
    parser.add_argument("--seed", type=int, metavar="N", help="random: seed of the crops (default: 1337)")
    parser.add_argument(
        "--text-file", type=to_path, metavar="FILE", help="score this UTF-8 text file instead; - reads standard input"
    )
    parser.add_argument(
        "--per-char", action="store_true", help="with --text-file: also the log-probability of each token, in nats"
    )
    parser.add_argument("--offline", action="store_true", help="never use the network (also GPT_OFFLINE=1)")
    return parser.parse_args(argv)


def _run(arguments: argparse.Namespace) -> int:
    for name, least, bits in (("batch_size", 1, 63), ("stride", 1, 63), ("batches", 1, 63), ("seed", 0, 32)):
        value = getattr(arguments, name)
        if value is not None and not least <= value < 2**bits:
            raise ConfigError(
                f"--{name.replace('_', '-')} is {value}, expected at least {least} and less than 2^{bits}"
            )
    if arguments.text_file is not None and arguments.split is not None:
        raise ConfigError("--split has no effect with --text-file; it selects a part of the corpus")
    if arguments.text_file is not None and arguments.protocol == "random":
        raise ConfigError("--protocol random samples a corpus; use full or sliding with --text-file")
    for name, protocol in (("stride", "sliding"), ("batches", "random"), ("seed", "random")):
        if getattr(arguments, name) is not None and arguments.protocol != protocol:
            raise ConfigError(f"--{name} has no effect with --protocol {arguments.protocol}; it is for {protocol}")
    if arguments.per_char and arguments.text_file is None:
        raise ConfigError("--per-char needs --text-file")

    load_torch()
    from gpt.api.evaluation import Windows, evaluate_corpus
    from gpt.checkpoint import load_trained
    from gpt.device import choose_compute, choose_device

    device = str(choose_device(arguments.device))  # checked first, since pydantic's message would be longer
    compute = choose_compute(RunConfig(device=device, dtype="float32"), report)
    loaded = load_trained(arguments.checkpoint, arguments.runs, compute.device, arguments.weights)
    windows = Windows(arguments.protocol, arguments.batch_size, arguments.stride, arguments.batches, arguments.seed)
    if arguments.text_file is not None:
        summary = _score_file(arguments, loaded, windows.stride_for(loaded.config.model.block_size))
    else:
        split = arguments.split or "val"
        summary = evaluate_corpus(loaded, compute, read_settings(arguments.offline), report, split, windows)
        loss, bits = summary["loss"], summary["bits_per_char"]
        report(f"{loaded.folder}: {split} loss {loss:.4f} nats per token, {bits:.4f} bits per character")
    print(json.dumps({"checkpoint": str(loaded.folder), "protocol": arguments.protocol, **summary}))
    return 0


def _score_file(arguments: argparse.Namespace, loaded: "Loaded", stride: int) -> dict[str, Any]:
    """Compute the probability of one text, in float32."""
    from gpt.data.tokenizers import convert_newlines
    from gpt.evaluation.scoring import score_text

    text = convert_newlines(read_text(arguments.text_file), loaded.config.data.newlines)
    with announced(report, f"scoring {len(text):,} characters"):
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
        ids = loaded.tokenizer.encode(text)[1:]
        names = [loaded.tokenizer.token_bytes(index).decode(errors="replace") for index in ids.tolist()]
        summary["per_char"] = list(zip(names, score.logprobs, strict=True))
    return summary
