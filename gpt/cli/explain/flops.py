"""`gpt explain flops`: FLOPs of training and generation, and the highest decoding speed of this machine."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gpt.cli.command import report
from gpt.cli.explain.model_options import add_model_options, add_size_options, check_range, find_config, read_size
from gpt.cli.shared_options import number
from gpt.cli.tables import human_bytes, human_count, print_view
from gpt.config import Config, ModelConfig
from gpt.errors import ConfigError
from gpt.inspection.rendering.tables import Table

if TYPE_CHECKING:
    from gpt.accounting.flops import GenerationFlops
    from gpt.accounting.roofline import DecodeBound, Machine

SUMMARY = "Count the FLOPs of training and of generation, with and without a cache."
EXAMPLE = "--published llama-2-7b --prompt-tokens 50 --new-tokens 100 --dtype bfloat16"

CACHE_KINDS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
"""Dtypes of weights, with the cache's names for them."""

BATCHES = (1, 4, 16, 64, 256)
MEASURED_BYTES = 256 << 20
"""Most bytes for measuring the bandwidth: more than fits into a processor's cache."""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    add_size_options(parser, parallel=True)
    parser.add_argument("--prompt-tokens", type=int, metavar="P", help="default: half the rest of block_size")
    parser.add_argument("--new-tokens", type=int, metavar="N", help="default: the rest of block_size")
    dtypes = "dtype of weights and cache (default: float32)"
    parser.add_argument("--dtype", choices=CACHE_KINDS, default="float32", help=dtypes)
    rate = number(0, kind=float, above=True)
    parser.add_argument("--bandwidth", type=rate, metavar="GB/S", help="of memory (default: measured)")
    parser.add_argument("--matmul-rate", type=rate, metavar="GFLOP/S", help="of matmuls (default: measured)")


def run(arguments: argparse.Namespace) -> None:
    config, source = find_config(arguments)
    model = config.model
    batch, length = read_size(arguments, config)
    prompt, new = _prompt_and_new(arguments, model.block_size)

    from gpt.accounting.flops import GenerationFlops
    from gpt.accounting.memory_limits import require_countable
    from gpt.accounting.roofline import decode_bounds

    require_countable(model)
    generation = GenerationFlops(model, prompt, new) if new else None
    kind, keys = CACHE_KINDS[arguments.dtype], prompt + new
    bounds = decode_bounds(model, sorted({*BATCHES, batch}), keys, kind, _machine(arguments, model, kind))
    training, summary = _training(model, batch, length, config.train.activation_checkpointing)
    tables = [training] if arguments.world_size == 1 else [training, _sent(arguments, config, summary)]
    summary["generation"] = None
    if generation:
        table, summary["generation"] = _generation(generation)
        tables.append(table)
    table, summary["decode"] = _decoding(bounds, keys, arguments.dtype)
    print_view(arguments, source, lambda: [*tables, table], {"source": source, **summary})


def _prompt_and_new(arguments: argparse.Namespace, block_size: int) -> tuple[int, int]:
    """Return the numbers of prompt and new tokens, together at most `block_size`; no new ones if that is 1."""
    prompt, new = arguments.prompt_tokens, arguments.new_tokens
    reason = "what block_size leaves"
    if block_size == 1:
        if prompt is not None or new is not None:
            raise ConfigError("block_size 1 has no room for new tokens; leave out --prompt-tokens and --new-tokens")
        return 1, 0
    if new is not None:
        check_range("--new-tokens", new, 1, block_size - 1, reason)
    if prompt is None:
        prompt = max(1, (block_size - (new or 0)) // 2)
    check_range("--prompt-tokens", prompt, 1, block_size - 1, reason)
    if new is None:
        new = block_size - prompt
    check_range("--new-tokens", new, 1, block_size - prompt, reason)
    return prompt, new


def _machine(arguments: argparse.Namespace, model: ModelConfig, kind: str) -> "Machine":
    """Return the machine's rates; those not given are measured."""
    import torch

    from gpt.accounting.machine import measure_bandwidth, measure_matmul_rate
    from gpt.accounting.roofline import Machine, weight_bytes
    from gpt.cache import KV_DTYPES
    from gpt.device import choose_device

    device = choose_device(arguments.device)
    if arguments.bandwidth is None or arguments.matmul_rate is None:
        report("measuring memory bandwidth and matmul rate: about 2 s, longer on a busy machine")
    dtype: torch.dtype = KV_DTYPES[kind]
    if arguments.bandwidth is None:
        bandwidth = measure_bandwidth(device, min(weight_bytes(model, kind), MEASURED_BYTES))
    else:
        bandwidth = arguments.bandwidth * 1e9
    rate = measure_matmul_rate(device, dtype) if arguments.matmul_rate is None else arguments.matmul_rate * 1e9
    return Machine(bandwidth, rate)


def _training(model: ModelConfig, batch: int, length: int, recomputes: bool) -> tuple[Table, dict[str, Any]]:
    from gpt.accounting.flops import backward_flops, flops_by_part, forward_flops, recomputed_flops, training_flops

    parts = flops_by_part(model, batch, length, length)
    sums = {
        "forward": forward_flops(model, batch, length),
        "backward": backward_flops(model, batch, length),
        "training_step": training_flops(model, batch, length),
    }
    if recomputes:
        sums["recomputed"] = recomputed_flops(model, batch, length)
    rows = [
        (name.replace("_", " "), f"{flops:,}", human_count(flops / (batch * length)), f"{100 * flops / whole:.1f} %")
        for entries, whole in ((parts, sums["forward"]), (sums, sums["training_step"]))
        for name, flops in entries.items()
    ]
    note = "Shares: of the forward pass for its three parts, of the training step for the passes."
    if recomputes:
        note += "\nRecomputed, by activation checkpointing, takes time, but is not counted as the model's, as in MFU."
    title = f"Training: matmuls of {batch:,} × {length:,} tokens; a multiply-add counts as 2 FLOPs"
    table = Table(title, ("part", "FLOPs", "FLOPs/token", "share"), rows, "<>>>", note)
    return table, {"batch": batch, "seq": length, "forward_parts": parts, **sums}


def _sent(arguments: argparse.Namespace, config: Config, summary: dict[str, Any]) -> Table:
    """Return the table of what a process sends in a training step, and add its part to the summary."""
    from gpt.accounting.parallel import parallel_step

    processes, method = arguments.world_size, arguments.parallel or config.run.parallel
    micro_batches = config.train.grad_accum_steps
    step = parallel_step(config.model, config.optim.name, method, processes, micro_batches)
    summary["sent"] = {
        "parallel": method,
        "processes": processes,
        "bytes": step.sent,
        "traffic": [{**asdict(part), "sent": part.sent(processes)} for part in step.traffic],
    }
    rows: list[Sequence[str]] = []
    for part in step.traffic:
        sent, calls = part.sent(processes), "" if part.calls is None else f"{part.calls:,}"
        rows.append((part.purpose, part.operation, calls, f"{sent:,}", human_bytes(sent)))
    rows.append(("all", "", "", f"{step.sent:,}", human_bytes(step.sent)))
    intensity = micro_batches * summary["training_step"] / step.sent
    note = (
        f"{human_count(intensity)} FLOPs of the step for each byte sent: sending can hide behind computing if a\n"
        "device does fewer FLOP/s than that for each byte/s of its link."
    )
    title = f"Sending: one of {processes:,} processes ({method}) in a ring, in a step of the optimizer"
    return Table(title, ("purpose", "operation", "calls", "bytes sent", ""), rows, "<<>>>", note)


def _generation(generation: "GenerationFlops") -> tuple[Table, dict[str, Any]]:
    """Return the table of some steps, 1, 2, 4, ... and the last, and its part of the summary."""
    prompt, new, naive, cached = generation.prompt, generation.new, generation.naive, generation.cached
    shown = sorted({1 << power for power in range(new.bit_length())} | {new})
    steps = [{"step": i, "naive": generation.naive_step(i), "cached": generation.cached_step(i)} for i in shown]
    rows = [("prompt", f"{prompt:,}", "", f"{generation.prefill:,}", "")]
    for one in steps:
        ratio = one["naive"] / one["cached"]
        cells = f"{one['step']:,}", f"{prompt + one['step']:,}", f"{one['naive']:,}", f"{one['cached']:,}"
        rows.append((*cells, f"{ratio:,.1f}"))
    rows.append(("total", "", f"{naive:,}", f"{cached:,}", f"{naive / cached:,.1f}"))
    positions = generation.naive_positions, generation.cached_positions
    note = (
        "Step i attends to the prompt and i new tokens: without a cache all of them go through the\n"
        "model, with one only the newest. Step 1 feeds the first new token back; sampling does not\n"
        "feed the last one back and saves that step.\n"
        f"Positions computed: {positions[0]:,} without a cache, {positions[1]:,} with one: "
        f"{positions[0] / positions[1]:,.1f} to 1."
    )
    header = ("step", "tokens", "FLOPs, no cache", "FLOPs, cached", "ratio")
    summary = {"prompt_tokens": prompt, "new_tokens": new, "prefill": generation.prefill, "naive": naive}
    summary |= {"cached": cached, "naive_positions": positions[0], "cached_positions": positions[1]}
    table = Table(f"Generating {new:,} tokens after {prompt:,}", header, rows, ">>>>>", note)
    return table, {**summary, "ratio": naive / cached, "steps": steps}


def _decoding(bounds: list["DecodeBound"], keys: int, dtype: str) -> tuple[Table, dict[str, Any]]:
    """Return the table of the bounds, and its part of the summary."""
    machine = bounds[0].machine
    rows = []
    for bound in bounds:
        sizes = map(human_bytes, (bound.weight_bytes, bound.cache_bytes))
        speed = f"{bound.seconds * 1000:,.3f}", f"{bound.tokens_per_second:,.0f}"
        counts = human_count(bound.flops), f"{bound.intensity:,.2f}"
        rows.append((f"{bound.batch:,}", *sizes, *counts, *speed, bound.limit))
    note = (
        f"This machine reads {human_count(machine.bandwidth, 'B')}/s from memory and computes "
        f"{human_count(machine.matmul_rate, 'FLOP')}/s:\nbelow {machine.ridge:,.1f} FLOPs/byte, memory is the limit.\n"
        "A batch reads the weights once: a larger one costs little until arithmetic is the limit."
    )
    header = ("batch", "weights", "cache", "FLOPs", "FLOPs/byte", "ms", "tokens/s", "limit")
    title = f"Decoding: least time of one step, {keys:,} positions per sequence, {dtype}"
    names = ("batch", "weight_bytes", "cache_bytes", "flops", "seconds", "tokens_per_second", "limit")
    found = [{"flops_per_byte": one.intensity, **{name: getattr(one, name) for name in names}} for one in bounds]
    rates = {"bytes_per_second": machine.bandwidth, "flops_per_second": machine.matmul_rate}
    return Table(title, header, rows, ">>>>>>><", note), {"keys": keys, **rates, "bounds": found}
