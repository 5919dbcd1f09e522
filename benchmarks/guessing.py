"""What speculative decoding gains: the same texts with and without guesses, in turns, by kind of guess and weights.

python benchmarks/guessing.py --checkpoint runs/shakespeare [--texts 12]
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.spread import PAUSE, in_turns, ratios, show_ratios
from gpt.checkpoint import load_trained
from gpt.cli.drafting import make_drafter_of
from gpt.config import SamplingParams
from gpt.generation import DecodeOptions, build_runtime, generate_tokens

PLAIN = "plain"
GUESSES = (PLAIN, "ngram", "lookup")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=12, help="of 240 tokens at temperature 0.8 (default: 12)")
    arguments = parser.parse_args()
    results = {}
    for weights in ("float32", "int8"):
        loaded = load_trained(arguments.checkpoint, Path("runs"), torch.device("cpu"), weights)
        prompt = loaded.tokenizer.encode("\n").tolist()
        runtimes = {
            name: build_runtime(
                loaded.model,
                DecodeOptions("native"),
                make_drafter=make_drafter_of(None if name == PLAIN else name, loaded, Path("runs")),
            )
            for name in GUESSES
        }
        seconds: dict[str, list[float]] = {name: [] for name in GUESSES}
        for seed, order in enumerate(in_turns(GUESSES, arguments.texts)):
            params = SamplingParams(max_new_tokens=240, temperature=0.8, seed=seed)
            for name in order:
                time.sleep(PAUSE)
                start = time.perf_counter()
                assert len(list(generate_tokens(loaded.model, prompt, params, runtimes[name]))) == 240
                seconds[name].append(time.perf_counter() - start)
        for name in GUESSES:
            times = ratios(seconds[name], seconds[PLAIN])
            rate = 240 / statistics.median(seconds[name])
            results[f"{weights}, {name}"] = {"tokens_per_second": rate, "times": times}
            print(f"{weights:<8} {name:<7} {rate:>7,.0f} tokens/s  {show_ratios(times)} times plain")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
