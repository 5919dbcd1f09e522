"""Decoding against peers on the same weights, in one call, interleaved: tokens per second, one text at a time.

Rows: this package with its cache, without it, Hugging Face `generate` with its cache, and, given a
checkout, nanoGPT, which computes the whole window for every token. Then the cost of a token early and
late in a long window. Random weights: the arithmetic is the same as with trained ones.

    python benchmarks/decode.py [--nanogpt ../nanoGPT] [--rounds 5]
"""

import argparse
import datetime
import importlib.util
import json
import logging
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.utils import logging as transformers_logging

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from gpt.cache import KVCache
from gpt.config import ModelConfig, SamplingParams
from gpt.generation import DecodeOptions, generate_tokens
from gpt.model import GPT

PROMPT, NEW = 16, 240
SHAPES = {
    "0.8M (4/4/128)": {"n_layer": 4, "n_head": 4, "n_embd": 128},
    "10.65M (6/6/384)": {"n_layer": 6, "n_head": 6, "n_embd": 384},
}
Run = Callable[[], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nanogpt", type=Path, help="checkout of nanoGPT")
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds, after one that is not (default: 5)")
    arguments = parser.parse_args()
    transformers_logging.set_verbosity(logging.ERROR)
    results: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "tokens": NEW,
    }
    for name, shape in SHAPES.items():
        config = ModelConfig.model_validate({**shape, "block_size": 256, "vocab_size": 65})
        results[name] = compare(name, runs_of(GPT(config).eval(), arguments.nanogpt), arguments.rounds)
    results["seconds_per_token"] = cost_by_position()
    print(json.dumps(results))


def runs_of(model: GPT, nanogpt: Path | None) -> dict[str, Run]:
    """What is compared, by name; all have the weights of `model`."""
    prompt = list(range(PROMPT))
    params = SamplingParams(max_new_tokens=NEW, temperature=0.8)
    theirs = to_hugging_face(model)
    idx = torch.tensor([prompt])

    def hugging_face() -> None:
        out = theirs.generate(idx, do_sample=True, temperature=0.8, top_k=0, max_new_tokens=NEW, use_cache=True)
        assert out.size(1) == PROMPT + NEW

    runs: dict[str, Run] = {
        "cached": lambda: drain(model, prompt, params, DecodeOptions()),
        "Hugging Face": hugging_face,
        "uncached": lambda: drain(model, prompt, params, DecodeOptions(cache=False)),
    }
    if nanogpt is not None:
        peer = to_nanogpt(model, nanogpt)
        runs["nanoGPT"] = lambda: assert_length(peer.generate(idx, NEW, temperature=0.8))
    return runs


def compare(name: str, runs: dict[str, Run], rounds: int) -> dict[str, Any]:
    """Interleaved rounds; prints and returns tokens per second, and ratios round by round."""
    seconds: dict[str, list[float]] = {row: [] for row in runs}
    for round_number in range(rounds + 1):
        for row, run in runs.items():
            start = time.perf_counter()
            run()
            if round_number:
                seconds[row].append(time.perf_counter() - start)
    table = {}
    for row, times in seconds.items():
        ratios = sorted(theirs / ours for theirs, ours in zip(times, seconds["cached"], strict=True))
        rate = NEW / statistics.median(times)
        table[row] = {"tokens_per_second": rate, "times_slower": [ratios[0], statistics.median(ratios), ratios[-1]]}
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        print(f"{name:>18}  {row:>12}  {rate:8,.0f} tokens/s  {statistics.median(ratios):6.2f} times slower ({spread})")
    return table


@torch.inference_mode()
def cost_by_position(window: int = 1024, repeats: int = 25) -> dict[str, float]:
    """Seconds of one cached step after 100 and after 900 tokens, 6 layers, 384 wide; medians, interleaved."""
    model = GPT(ModelConfig(n_layer=6, n_head=6, n_embd=384, block_size=window, vocab_size=65)).eval()
    caches = {}
    for place in (100, 900):
        caches[place] = KVCache(model.config)
        model(torch.zeros(1, place, dtype=torch.long), cache=caches[place])
    times: dict[int, list[float]] = {place: [] for place in caches}
    for _ in range(repeats):
        for place, cache in caches.items():
            start = time.perf_counter()
            model(torch.zeros(1, 1, dtype=torch.long), cache=cache)
            times[place].append(time.perf_counter() - start)
    medians = {f"after {place}": statistics.median(values) for place, values in times.items()}
    ratio = medians["after 900"] / medians["after 100"]
    print(f"6/6/384, window {window}: {medians}, ratio {ratio:.2f}")
    return {**medians, "ratio": ratio}


def drain(model: GPT, prompt: list[int], params: SamplingParams, options: DecodeOptions) -> None:
    assert sum(1 for _ in generate_tokens(model, prompt, params, options)) == NEW


def assert_length(out: torch.Tensor) -> None:
    assert out.size(1) == PROMPT + NEW


def peer_weights(model: GPT) -> dict[str, torch.Tensor]:
    """The weights under GPT-2's names: queries, keys and values in one matrix, (out, in)."""
    weights = {}
    for name, value in model.state_dict().items():
        if ".attn.c_q." in name:
            parts = [model.get_parameter(name.replace("c_q", part)) for part in ("c_q", "c_k", "c_v")]
            weights[name.replace("c_q", "c_attn")] = torch.cat(parts)
        elif ".attn.c_k." not in name and ".attn.c_v." not in name:
            weights[name] = value
    return weights


def to_hugging_face(model: GPT) -> GPT2LMHeadModel:
    """GPT-2 of the same shape; its biases, which the model has not, stay zero."""
    config = model.config
    peer = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=model.vocab_size,
            n_positions=config.block_size,
            n_embd=config.n_embd,
            n_layer=config.n_layer,
            n_head=config.n_head,
            activation_function="gelu",
            bos_token_id=None,
            eos_token_id=None,
        )
    ).eval()
    renamed = {}
    for name, value in peer_weights(model).items():
        is_conv1d = name.startswith("h.") and value.dim() == 2  # GPT-2 keeps those as (in, out)
        renamed[name if name.startswith("lm_head") else f"transformer.{name}"] = value.T if is_conv1d else value
    missing, unexpected = peer.load_state_dict(renamed, strict=False)
    assert not unexpected
    assert all(name.endswith("bias") for name in missing)
    idx = torch.arange(PROMPT).unsqueeze(0)
    with torch.no_grad():
        torch.testing.assert_close(peer(idx).logits, model(idx), atol=1e-4, rtol=1e-4)
    return peer


def to_nanogpt(model: GPT, checkout: Path) -> Any:
    """nanoGPT's model of the same shape and weights."""
    spec = importlib.util.spec_from_file_location("nanogpt_model", checkout / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    keys = ("n_layer", "n_head", "n_embd", "block_size", "bias", "dropout", "vocab_size")
    peer = module.GPT(module.GPTConfig(**{key: getattr(model.config, key) for key in keys})).eval()
    weights = {
        name if name.startswith("lm_head") else f"transformer.{name}": v for name, v in peer_weights(model).items()
    }
    peer.load_state_dict(weights)
    return peer


if __name__ == "__main__":
    main()
