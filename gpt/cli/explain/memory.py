"""`gpt explain memory`: the memory of training and of generation, predicted without allocating it."""

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

    def prepare(model: "GPT") -> "Optimizer":
        return build_optimizer(model, config.optim, compute.device, compute.fast_dtype)

    training = training_memory(
        config.model, batch, length, compute, prepare, config.train.grad_accum_steps
    )
    inference = inference_memory(config.model, batch, length, compute.device)
    size, dtype = f"{batch:,} × {length:,} tokens", str(compute.dtype).removeprefix("torch.")
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
    title = f"Training step of {size} on {compute.device}, {dtype}, eager"
    table = _training_table(training, title, config)
    generating = _inference_table(
        inference, f"Generating in float32: prefill of {size}, then a decode step", config
    )
    print_view(arguments, source, [table, generating], summary)


def _training_table(memory: "TrainingMemory", title: str, config: Config) -> Table:
    entries = [
        ("weights, float32", memory.weights),
        ("position tables", memory.buffers),
        (f"optimizer state, {config.optim.name}", memory.optimizer),
        ("gradients, after the backward pass", memory.gradients),
        ("activations, after the forward pass", memory.activations),
        ("peak of the step", memory.peak),
    ]
    note = (
        "The peak is less than the sum where activations are freed as gradients appear, and more where\n"
        "operators need scratch. The libraries add some hundred MiB, and the C library's allocator keeps\n"
        "freed blocks, up to half as much again where they are small. Compiled code takes less."
    )
    if config.train.grad_accum_steps > 1:
        note += f"\nOf {config.train.grad_accum_steps} micro-batches, all but the first start with gradients allocated."
    return _parts(title, entries, memory.peak, "of the peak", note)


def _parts(title: str, entries: list[tuple[str, int]], whole: int, share: str, note: str) -> Table:
    rows = [
        (name, f"{size:,}", human_bytes(size), f"{100 * size / whole:.1f} %")
        for name, size in entries
        if size
    ]
    return Table(title, ("part", "bytes", "", share), rows, "<>>>", note)


def _inference_table(memories: dict[str, "InferenceMemory"], title: str, config: Config) -> Table:
    rows = [
        (
            kind,
            *(
                human_bytes(size)
                for size in (memory.cache, memory.prefill_peak, memory.decode_peak)
            ),
        )
        for kind, memory in memories.items()
    ]
    weights = human_bytes(next(iter(memories.values())).weights)
    note = (
        f"Both peaks hold {weights} of weights and the cache, allocated for {config.model.block_size:,} positions per\n"
        "sequence. Other types than fp32 are converted to float32 when they are read, layer by layer."
    )
    return Table(title, ("cache", "its bytes", "prefill peak", "decode peak"), rows, "<>>>", note)
