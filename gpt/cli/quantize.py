"""`gpt quantize`: write a copy of a checkpoint with quantized weights."""

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpt.cli.command import load_torch, report
from gpt.cli.config_options import require_free
from gpt.cli.shared_options import add_checkpoint_options, command, to_path
from gpt.cli.tables import human_bytes
from gpt.system.progress import announce_if_slow

if TYPE_CHECKING:
    from torch import Tensor


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_checkpoint_options(parser, with_device=False)
    parser.add_argument(
        "--weights",
        choices=("bf16", "int8", "int4"),
        default="int8",
        help="format of the weights (default: int8)",
    )
    output = (
        "checkpoint folder to write "
        "(default: the run's name with -int8, or as --weights, below --runs)"
    )
    parser.add_argument("--output", type=to_path, metavar="DIR", help=output)


@command(
    "quantize",
    "Write a copy of a checkpoint with the weights of its blocks quantized. "
    "It can be sampled and evaluated like any other, but not trained.",
    "--checkpoint runs/shakespeare --weights int8 --output runs/shakespeare-int8",
    _add_options,
)
def main(arguments: argparse.Namespace) -> int:
    if arguments.output is not None:  # before torch is loaded, which takes seconds
        require_free(arguments.output)
    load_torch()
    import torch

    from gpt.checkpoint import (
        build_model,
        find_checkpoint,
        name_of_model,
        read_checkpoint,
        weights_of,
        write_checkpoint,
    )
    from gpt.model.quantized import quantize

    folder = find_checkpoint(arguments.checkpoint, arguments.runs)
    checkpoint = read_checkpoint(folder, training=False)
    name = name_of_model(folder, checkpoint.config)
    output: Path = arguments.output or Path(arguments.runs, f"{name}-{arguments.weights}")
    require_free(output)
    with announce_if_slow(report, f"quantizing {folder}"), torch.no_grad():
        model = quantize(build_model(checkpoint, folder), arguments.weights)
        weights = weights_of(model)
        # All but the weights is the same: tokenizer, configuration, and the state of the run.
        write_checkpoint(output, replace(checkpoint, model=weights))
    before = human_bytes(_total_bytes(checkpoint.model))
    after = human_bytes(_total_bytes(weights))
    report(f"{folder}: {before} of weights quantized to {after} in {output}")
    return 0


def _total_bytes(weights: Mapping[str, "Tensor"]) -> int:
    return sum(tensor.nbytes for tensor in weights.values())
