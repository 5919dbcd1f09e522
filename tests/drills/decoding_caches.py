"""Caches of 8-bit integers: how far the logits are from those of floats, and where two ways to round them part."""

from random import Random
from unittest.mock import patch

import torch
from torch import Tensor

from drills.frame import Tally
from gpt.cache import stores
from gpt.config import SamplingParams
from gpt.generation import DecodeOptions, build_runtime, generate_tokens
from gpt.model import GPT


class StoreAsInC(stores.Int8Store):
    """`Int8Store` with the scales of the native engine, which are float32 and are multiplied by."""

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        super().__init__(shape, device)
        self.scales = stores.FloatStore((*shape[:-1], 1), torch.float32, device)


def quantize_as_in_c(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return integers and scales as `store_vector` in cache.h does."""
    scales = x.abs().amax(dim=-1, keepdim=True).float() / 127
    inverse = torch.where(scales > 0, 1 / scales, 0.0)
    return (x.float() * inverse).round().clamp(-127, 127).to(torch.int8), scales


Drifts = dict[str, list[Tensor]]
"""Differences of logits, of the largest of each step relative to the deviation of all, by what is compared."""
PAIRS = ("PyTorch", "native", "native and PyTorch", "native and PyTorch with its scales")
NO_FLIP = 1e-4
"""Difference by float32 alone. Beyond it, some key or value was so near to half an integer that it was rounded the
other way, which is as rare as it is inevitable."""
FEW = 0.05
"""Of the models."""


@torch.inference_mode()
def logits_along(model: GPT, text: list[int], start: int, backend: str, kv_dtype: str) -> Tensor:
    """Return the logits (N, V) after each token of a text from `start` on, a step at a time."""
    decoding = build_runtime(model, DecodeOptions(backend, kv_dtype=kv_dtype)).backend(SamplingParams())
    return torch.stack([decoding.next_logits([text[:end]])[0] for end in range(start, len(text) + 1)])


def text_of(model: GPT, prompt: list[int], backend: str, seed: int) -> list[int]:
    """Return 40 tokens that are sampled with an 8-bit cache."""
    runtime = build_runtime(model, DecodeOptions(backend, kv_dtype="int8"))
    return list(generate_tokens(model, prompt, SamplingParams(max_new_tokens=40, seed=seed), runtime))


def compare_caches(chance: Random, model: GPT, tally: Tally, drifts: Drifts) -> None:
    """Compare logits along a text, and sampled texts; with the same scales there is no difference but of float32."""
    text, seed = chance.choices(range(model.vocab_size), k=model.config.block_size), chance.randrange(1000)
    start = 1 + len(text) // 4
    floats = logits_along(model, text, start, "eager", "fp32")
    pytorch, native = (logits_along(model, text, start, backend, "int8") for backend in ("eager", "native"))
    texts = [text_of(model, text[:start], backend, seed) for backend in ("eager", "native")]
    with patch.multiple(stores, Int8Store=StoreAsInC, _quantize=quantize_as_in_c):
        same = logits_along(model, text, start, "eager", "int8")
        texts.append(text_of(model, text[:start], "eager", seed))
    pairs = ((pytorch, floats), (native, floats), (native, pytorch), (native, same))
    for what, (one, other) in zip(PAIRS, pairs, strict=True):
        drifts.setdefault(what, []).append((one - other).abs().amax(-1) / floats.std())
    tally.count("texts of 8-bit caches that part", texts[0] != texts[1])
    tally.count("with the same scales", texts[1] != texts[2])


def summarize(drifts: Drifts, tally: Tally) -> None:
    """Add the median and the largest difference of each pair to the figures, and check what rounding may explain."""
    medians = {}
    for what in PAIRS:
        every = torch.cat(drifts[what])
        medians[what] = float(every.median())
        tally.figures[f"of the logits' deviation: 8 bits, {what}"] = f"{medians[what]:.1g} to {every.max():.1g}"
    flipped = sum(float(drift.max()) > NO_FLIP for drift in drifts[PAIRS[3]])
    tally.figures["models with a value rounded the other way"] = flipped
    few = 1 + FEW * len(drifts[PAIRS[3]])
    tally.check(flipped <= few, f"{flipped} models with 8-bit caches differ even with the same scales")
    parted = tally.figures["with the same scales"]
    tally.check(int(parted) <= few, f"{parted} texts of 8-bit caches part even with the same scales")
    alike = medians["native"] < 1.5 * medians["PyTorch"] < 2.25 * medians["native"]
    tally.check(alike, f"8-bit caches are not alike: {medians}")
