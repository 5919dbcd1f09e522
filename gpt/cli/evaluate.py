"""`scripts/evaluate.py`: the loss of a trained model on held-out text."""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from gpt.cli.common import add_checkpoint_options, build_parser, report, run_command
from gpt.config import RunConfig
from gpt.errors import ConfigError
from gpt.settings import read_settings


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 2 a user's mistake, 130 stopped."""
    arguments = _parse(argv)
    return run_command(lambda: _run(arguments))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = build_parser(
        "Evaluate a trained model on the corpus it was trained on. The last line is one JSON object.",
        "python scripts/evaluate.py --checkpoint runs/shakespeare --protocol full",
    )
    add_checkpoint_options(parser)
    parser.add_argument("--split", choices=("train", "val"), default="val", help="default: val")
    parser.add_argument(
        "--protocol",
        choices=("full", "sliding", "random"),
        default="full",
        help="full: the split once, in blocks; sliding: with overlapping windows; random: nanoGPT's crops",
    )
    parser.add_argument("--batch-size", type=int, default=64, metavar="N", help="sequences at a time (default: 64)")
    parser.add_argument("--stride", type=int, metavar="N", help="of sliding; default: a quarter of block_size")
    parser.add_argument("--batches", type=int, default=200, metavar="N", help="of random (default: 200)")
    parser.add_argument("--seed", type=int, default=1337, metavar="N", help="of random (default: 1337)")
    parser.add_argument("--offline", action="store_true", help="open no connection (also GPT_OFFLINE=1)")
    return parser.parse_args(argv)


def _run(arguments: argparse.Namespace) -> int:
    for name in ("batch_size", "stride", "batches"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} is {value}, expected at least 1")

    from gpt.checkpoint import load_trained
    from gpt.data import Dataset, prepare
    from gpt.device import choose_compute
    from gpt.training.evaluation import evaluate, full_batches, random_batches, sliding_batches
    from gpt.training.loss import Batch

    path = Path(arguments.checkpoint) if arguments.checkpoint else None
    settings = read_settings()
    settings = replace(settings, offline=settings.offline or arguments.offline)

    compute = choose_compute(RunConfig(device=arguments.device, compile=False), report)
    loaded = load_trained(path, Path(arguments.runs), compute.device)
    dataset = prepare(loaded.config.data, settings, report)
    if dataset.tokenizer.to_dict() != loaded.tokenizer.to_dict():
        raise ConfigError(f"{loaded.folder} has another tokenizer than the corpus that data.source gives now")
    block_size = loaded.config.model.block_size
    dataset.check_length(block_size)

    def batches(dataset: Dataset) -> Iterator[Batch]:
        tokens = dataset.split(arguments.split)
        match arguments.protocol:
            case "full":
                return full_batches(tokens, block_size, arguments.batch_size)
            case "sliding":
                stride = min(arguments.stride or max(1, block_size // 4), block_size)
                return sliding_batches(tokens, block_size, arguments.batch_size, stride)
            case _:
                return random_batches(tokens, block_size, arguments.batch_size, arguments.batches, arguments.seed)

    result = evaluate(loaded.model, batches(dataset), compute)
    bits = result.bits_per_char(dataset.chars_per_token)
    report(f"{loaded.folder}: {arguments.split} loss {result.loss:.4f} nats per token, {bits:.4f} bits per character")
    summary = {
        "checkpoint": str(loaded.folder),
        "split": arguments.split,
        "protocol": arguments.protocol,
        "loss": result.loss,
        "bits_per_char": bits,
        "tokens": result.tokens,
        "block_size": block_size,
    }
    print(json.dumps(summary))
    return 0
