"""What a smaller cache costs: bits per character on the whole validation split, for each type it can hold.

Every block is read through a cache of that type, so that each query sees keys and values as rounded as
they are when text is generated.

    python benchmarks/kv_dtype.py [--checkpoint runs/shakespeare]
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from gpt.cache import KV_DTYPES, KVCache, cache_bytes
from gpt.checkpoint import load_trained
from gpt.data import prepare
from gpt.device import Compute
from gpt.evaluation.loss import evaluate
from gpt.evaluation.windows import full_batches
from gpt.model import GPT
from gpt.settings import read_settings


class ThroughCache(nn.Module):
    """A model that looks at its own input through a cache."""

    def __init__(self, model: GPT, kv_dtype: str) -> None:
        super().__init__()
        self.model, self.kv_dtype = model, kv_dtype

    def forward(self, idx: Tensor) -> Tensor:
        logits: Tensor = self.model(idx, cache=KVCache(self.model.config, idx.size(0), kv_dtype=self.kv_dtype))
        return logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, help="default: the newest run")
    arguments = parser.parse_args()
    compute = Compute(torch.device("cpu"), torch.float32)
    loaded = load_trained(arguments.checkpoint, Path("runs"), compute.device)
    dataset = prepare(loaded.config.data, read_settings(), print)
    model, block_size = loaded.model, loaded.config.model.block_size
    rows: dict[str, dict[str, float]] = {}
    for kv_dtype in KV_DTYPES:
        result = evaluate(ThroughCache(model, kv_dtype), full_batches(dataset.val, block_size, 64), compute)
        bits = result.bits_per_char(dataset.chars_per_token(dataset.val))
        size = cache_bytes(model.config, 1, block_size, kv_dtype)
        rows[kv_dtype] = {
            "bits_per_char": bits,
            "change": bits - rows.get("fp32", {"bits_per_char": bits})["bits_per_char"],
        }
        print(f"{kv_dtype:>5}  {bits:.5f} bits per character  change {rows[kv_dtype]['change']:+.5f}  {size:,} bytes")
    print(json.dumps({"checkpoint": str(loaded.folder), **rows}))


if __name__ == "__main__":
    main()
