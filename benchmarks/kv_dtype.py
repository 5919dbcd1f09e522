"""Measure what a smaller cache costs: bits per character over the whole validation split, for each type it can hold.

Every block is read through a cache of that type, so that keys and values are rounded as in generation.

    python benchmarks/kv_dtype.py [--checkpoint runs/shakespeare]
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

from gpt.cache import KV_DTYPES, KVCache, cache_bytes
from gpt.checkpoint import load_trained
from gpt.cli.command import report, run_command
from gpt.data import prepare
from gpt.device import Compute
from gpt.environment import read_settings
from gpt.evaluation.loss import evaluate
from gpt.evaluation.windows import full_batches


def main() -> int:
    """Print a line for each type, and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, help="default: the newest run")
    path = parser.parse_args().checkpoint
    loaded = load_trained(path, Path("runs"), torch.device("cpu"))
    dataset = prepare(loaded.config.data, read_settings(), report)
    config, compute, bits = loaded.model.config, Compute(torch.device("cpu"), torch.float32), {}
    for kv_dtype in KV_DTYPES:
        through = nn.Module()  # a model that reads its own input through a cache
        through.forward = lambda idx, kv=kv_dtype: loaded.model(idx, cache=KVCache(config, len(idx), kv_dtype=kv))
        result = evaluate(through, full_batches(dataset.val, config.block_size, 64), compute)
        bits[kv_dtype] = result.bits_per_char(dataset.chars_per_token(dataset.val))
        change, size = bits[kv_dtype] - bits["fp32"], cache_bytes(config, 1, config.block_size, kv_dtype)
        print(f"{kv_dtype:>5}  {bits[kv_dtype]:.5f} bits per character  change {change:+.5f}  {size:,} bytes")
    print(json.dumps({"checkpoint": str(loaded.folder), "bits_per_char": bits}))
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
