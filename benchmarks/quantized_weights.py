"""Tokens a second with weights of few bits, by this package and by torchao, in turns, on random weights.

pip install --no-deps torchao
python benchmarks/quantized_weights.py [--rounds 3]
"""

import argparse
import copy
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.spread import PAUSE, in_turns
from gpt.config import ModelConfig, SamplingParams
from gpt.generation import DecodeOptions, Runtime, build_runtime, generate_tokens
from gpt.model import GPT
from gpt.model.quantized import quantize

PARAMS = SamplingParams(max_new_tokens=120)
PROMPT = list(range(16))


def by_torchao(model: GPT, format: Any) -> GPT:
    """A copy whose blocks' linear layers torchao has quantized."""
    from torchao.quantization import quantize_

    copied = copy.deepcopy(model)
    quantize_(copied.h, format, filter_fn=lambda module, name: isinstance(module, nn.Linear))
    return copied


def entrants(model: GPT) -> dict[str, Runtime]:
    from torchao.quantization import (
        Int8DynamicActivationInt8WeightConfig,
        Int8WeightOnlyConfig,
        IntxWeightOnlyConfig,
        PerGroup,
    )

    int4 = IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32))  # type: ignore[attr-defined]
    integers, eager, compiled = Int8WeightOnlyConfig(), DecodeOptions("eager"), DecodeOptions("compiled")
    return {
        "native, float32": build_runtime(model, DecodeOptions("native")),
        "native, int8": build_runtime(quantize(model, "int8"), DecodeOptions("native")),
        "native, int4": build_runtime(quantize(model, "int4"), DecodeOptions("native")),
        "eager, float32": build_runtime(model, eager),
        "eager, int8": build_runtime(quantize(model, "int8"), eager),
        "torchao int8, eager": build_runtime(by_torchao(model, integers), eager),
        "torchao int8, compiled step": build_runtime(by_torchao(model, integers), compiled),
        "torchao int8 with int8 activations, eager": build_runtime(
            by_torchao(model, Int8DynamicActivationInt8WeightConfig()), eager
        ),
        "torchao int4 in groups of 32, eager": build_runtime(by_torchao(model, int4), eager),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each (default: 3)")
    arguments = parser.parse_args()
    results = {}
    for layers, heads, width in ((4, 4, 128), (6, 6, 384)):
        torch.manual_seed(1)
        config = ModelConfig(n_layer=layers, n_head=heads, n_embd=width, block_size=256, vocab_size=65)
        model = GPT(config).eval()
        runtimes = entrants(model)
        seconds: dict[str, list[float]] = {name: [] for name in runtimes}
        for number, order in enumerate(in_turns(list(runtimes), arguments.rounds + 1)):
            for name in order:
                time.sleep(PAUSE)
                start = time.perf_counter()
                assert len(list(generate_tokens(runtimes[name].model, PROMPT, PARAMS, runtimes[name]))) == 120
                if number:
                    seconds[name].append(time.perf_counter() - start)
        rates = {name: PARAMS.max_new_tokens / statistics.median(taken) for name, taken in seconds.items()}
        print(f"{layers}/{heads}/{width}, tokens/s, median of {arguments.rounds}")
        for name, rate in rates.items():
            print(f"  {name:<45} {rate:>8,.0f}")
        results[f"{layers}/{heads}/{width}"] = rates
    print(json.dumps(results))


if __name__ == "__main__":
    main()
