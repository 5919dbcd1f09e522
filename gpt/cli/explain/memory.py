"""`gpt explain memory`: predict the memory of training and of generation, allocating none."""

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from gpt.cli.command import report
from gpt.cli.explain.options import add_model_options, add_size_options, find_config, read_size
from gpt.cli.shared_options import add_device_option
from gpt.cli.tables import human_bytes, print_view
from gpt.config import Config
from gpt.extras.inspection.rendering.tables import Table

if TYPE_CHECKING:
    from gpt.extras.accounting.memory import InferenceMemory, Optimizer, TrainingMemory
    from gpt.model import GPT

SUMMARY = "Predict the memory of training and of generation."
EXAMPLE = "--published gpt2 --batch 8 --dtype bfloat16"


def add_options(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    add_size_options(parser)
    add_device_option(parser)
    dtypes = ("auto", "float32", "bfloat16", "float16")
    parser.add_argument(
        "--dtype", choices=dtypes, help="of the matmuls in training (default: run.dtype)"
    )


def run(arguments: argparse.Namespace) -> None:
    config, source = find_config(arguments)
    batch, length = read_size(arguments, config)

    from gpt.extras.accounting.memory import inference_memory, training_memory
    from gpt.system.device import choose_compute
    from gpt.training.optimizers import build_optimizer

    compute = choose_compute(arguments.device, arguments.dtype or config.run.dtype, report)
    report("counting the bytes of a training step and of decoding: a few seconds")

    # The counted step runs the optimizer of this configuration, built as training builds it.
    def prepare(model: "GPT") -> "Optimizer":
        return build_optimizer(model, config.optim, compute.device, compute.fast_dtype)

    micro_batches = config.train.grad_accum_steps
    training = training_memory(config.model, batch, length, compute, prepare, micro_batches)
    inference = inference_memory(config.model, batch, length, compute.device)
    size = f"{batch:,} × {length:,} tokens"
    dtype = str(compute.dtype).removeprefix("torch.")
    summary = {
        "source": source,
        "batch": batch,
        "seq": length,
        "device": str(compute.device),
        "dtype": dtype,
        "optimizer": config.optim.name,
        "training": asdict(training),
        "inference": {kind: asdict(memory) for kind, memory in inference.items()},
    }
    training_title = f"Training step of {size} on {compute.device}, {dtype}, eager"
    inference_title = f"Generating in float32: prefill of {size}, then a decode step"
    tables = [
        _training_table(training, training_title, config),
        _inference_table(inference, inference_title, config),
    ]
    print_view(arguments, source, tables, summary)


def _training_table(memory: "TrainingMemory", title: str, config: Config) -> Table:
    """Return the bytes of a training step: what it holds, and its peak."""
    entries = [
        ("weights, float32", memory.weights),
        ("position tables", memory.buffers),
        (f"optimizer state, {config.optim.name}", memory.optimizer),
        ("gradients, after the backward pass", memory.gradients),
        ("activations, after the forward pass", memory.activations),
        ("peak of the step", memory.peak),
    ]
    rows = []
    for name, size in entries:
        if size:  # some models have no tables, some optimizers no state
            share = f"{100 * size / memory.peak:.1f} %"
            rows.append((name, f"{size:,}", human_bytes(size), share))
    note = (
        "The peak is less than the sum where activations are freed as gradients appear, "
        "and more where\n"
        "operators need scratch. The libraries add some hundred MiB, "
        "and the C library's allocator keeps\n"
        "freed blocks, up to half as much again where they are small. Compiled code takes less."
    )
    micro_batches = config.train.grad_accum_steps
    if micro_batches > 1:
        note += (
            f"\nOf {micro_batches} micro-batches, all but the first start with gradients allocated."
        )
    return Table(title, ("part", "bytes", "", "of the peak"), rows, "<>>>", note)


def _inference_table(memories: dict[str, "InferenceMemory"], title: str, config: Config) -> Table:
    """Return a row for each type of the cache: its bytes, and the peaks with it."""
    rows = []
    for kind, memory in memories.items():
        sizes = (memory.cache, memory.prefill_peak, memory.decode_peak)
        rows.append((kind, *map(human_bytes, sizes)))
    any_memory = next(iter(memories.values()))  # the weights do not depend on the type of the cache
    weights = human_bytes(any_memory.weights)
    positions = f"{config.model.block_size:,}"
    note = (
        f"Both peaks hold {weights} of weights and the cache, "
        f"allocated for {positions} positions per\n"
        "sequence. Other types than fp32 are converted to float32 when they are read, "
        "layer by layer."
    )
    header = ("cache", "its bytes", "prefill peak", "decode peak")
    return Table(title, header, rows, "<>>>", note)
