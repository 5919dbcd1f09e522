"""`scripts/explain.py memory`: the memory of training and of generation, predicted without allocating it."""

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gpt.cli.command import add_command, report
from gpt.cli.explain.model_options import add_model_options, find_config
from gpt.cli.explain.size_options import (
    add_parallel_options,
    add_size_options,
    check_batch,
    read_size,
    share_of_batch,
)
from gpt.cli.tables import add_format_options, human_bytes, print_view
from gpt.config import Config, RunConfig
from gpt.inspection.rendering.tables import Table

if TYPE_CHECKING:
    from gpt.accounting.memory import InferenceMemory, Optimizer, TrainingMemory
    from gpt.accounting.parallel import Method, ParallelStep
    from gpt.device import Compute
    from gpt.model import GPT


def add_parser(subparsers: Any) -> None:
    """Add this view and its options."""
    parser = add_command(
        subparsers,
        "memory",
        "Predict the memory of training and of generation.",
        "python scripts/explain.py memory --published gpt2 --batch 8 --dtype bfloat16",
    )
    add_model_options(parser)
    add_size_options(parser, "train.batch_size", "block_size")
    parser.add_argument(
        "--dtype",
        choices=("auto", "float32", "bfloat16", "float16"),
        help="of the matmuls in training (default: run.dtype)",
    )
    add_parallel_options(parser)
    add_format_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Predict the memory and show it."""
    check_batch(arguments)
    named = find_config(arguments)
    config = named.config
    block_size = config.model.block_size
    whole, length = read_size(arguments, config.train.batch_size, block_size, block_size)
    batch = share_of_batch(arguments, whole)

    from gpt.accounting.memory import inference_memory
    from gpt.accounting.memory_limits import require_countable
    from gpt.device import choose_compute, choose_device

    require_countable(config.model, batch, length)
    device = str(choose_device(arguments.device))  # RunConfig would report it in pydantic's words
    compute = choose_compute(RunConfig(device=device, dtype=arguments.dtype or config.run.dtype), report)
    report("counting the bytes of a training step and of decoding: a few seconds")
    training = predict_training(config, batch, length, compute)
    inference = inference_memory(config.model, batch, length, compute.device)
    method, processes = arguments.parallel or config.run.parallel, arguments.world_size
    parallel = _predict_process(config, method, processes) if processes > 1 else None
    size, dtype = f"{batch:,} × {length:,} tokens", str(compute.dtype).removeprefix("torch.")
    summary = {
        "source": named.source,
        "batch": batch,
        "seq": length,
        "device": str(compute.device),
        "dtype": dtype,
        "optimizer": config.optim.name,
        "training": asdict(training),
        **({} if parallel is None else {"process": {**asdict(parallel), "sent": parallel.sent}}),
        "inference": {kind: asdict(memory) for kind, memory in inference.items()},
    }
    print_view(
        arguments,
        named.source,
        lambda: [
            _training_table(training, f"Training step of {size} on {compute.device}, {dtype}, eager", config)
            if parallel is None
            else _process_table(
                parallel, training, f"One of {processes:,} processes ({method}): {size}, {dtype}, eager"
            ),
            _inference_table(inference, f"Generating in float32: prefill of {size}, then a decode step", config),
        ],
        summary,
    )


def predict_training(config: Config, batch: int, length: int, compute: "Compute") -> "TrainingMemory":
    """Predict a step of a configuration."""
    from gpt.accounting.memory import training_memory
    from gpt.training.optimizers import build_optimizer

    def build(model: "GPT") -> "Optimizer":
        return build_optimizer(model, config.optim, compute.device, compute.fast_dtype)

    return training_memory(config.model, batch, length, compute, build, config.train.grad_accum_steps)


def _predict_process(config: Config, method: "Method", processes: int) -> "ParallelStep":
    from gpt.accounting.parallel import parallel_step

    return parallel_step(config.model, config.optim.name, method, processes, config.train.grad_accum_steps)


def _training_table(memory: "TrainingMemory", title: str, config: Config) -> Table:
    entries = [
        ("weights, float32", memory.weights),
        ("position tables", memory.buffers),
        (f"optimizer state, {config.optim.name}", memory.optimizer),
        ("gradients, after the backward pass", memory.gradients),
        ("activations, after the forward pass", memory.activations),
        ("peak of the step", memory.peak),
    ]
    rows = [
        (name, f"{size:,}", human_bytes(size), f"{100 * size / memory.peak:.1f} %") for name, size in entries if size
    ]
    note = (
        "The peak is less than the sum where activations are freed as gradients appear, and more where\n"
        "operators need scratch. The libraries add some hundred MiB, and the C library's allocator keeps\n"
        "freed blocks, up to half as much again where they are small. Compiled code takes less."
    )
    if config.train.grad_accum_steps > 1:
        note += f"\nOf {config.train.grad_accum_steps} micro-batches, all but the first start with gradients allocated."
    return Table(title, ("part", "bytes", "", "of the peak"), rows, "<>>>", note)


def _process_table(step: "ParallelStep", memory: "TrainingMemory", title: str) -> Table:
    entries = [
        ("weights, float32", step.weights),
        ("position tables", memory.buffers),
        ("optimizer state", step.optimizer),  # none if it is not counted
        ("gradients", step.gradients),
        ("whole tensors, for a moment", step.whole),
        ("activations, after the forward pass", memory.activations),
    ]
    total = sum(size for _, size in entries)
    rows = [(name, f"{size:,}", human_bytes(size), f"{100 * size / total:.1f} %") for name, size in entries if size]
    rows.append(("sum", f"{total:,}", human_bytes(total), ""))
    note = (
        "Of rank 0, whose shards are the largest. Whole tensors: weights, gradients and buffers that are\n"
        "gathered for a block or an update. Scratch memory of operators and libraries comes on top."
    )
    if not step.optimizer:
        note += "\nThe optimizer's state is not counted: its shards are known of AdamW and Muon only."
    return Table(title, ("part", "bytes", "", "of the sum"), rows, "<>>>", note)


def _inference_table(memories: dict[str, "InferenceMemory"], title: str, config: Config) -> Table:
    rows = [
        (kind, *(human_bytes(size) for size in (memory.cache, memory.prefill_peak, memory.decode_peak)))
        for kind, memory in memories.items()
    ]
    weights = human_bytes(next(iter(memories.values())).weights)
    note = (
        f"Both peaks hold {weights} of weights and the cache, allocated for {config.model.block_size:,} positions per\n"
        "sequence. Other types than fp32 are converted to float32 when they are read, layer by layer."
    )
    return Table(title, ("cache", "its bytes", "prefill peak", "decode peak"), rows, "<>>>", note)
