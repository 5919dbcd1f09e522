"""Random sizes and choices, which no table of models names, through every cache."""

from random import Random

import pytest
import torch
from native_support import needs_compiler

from gpt.config import SamplingParams
from gpt.generation.backends.eager import UncachedBackend
from gpt.generation.backends.selection import DecodeOptions, build_runtime
from variants import draw_model


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", ["eager", pytest.param("native", marks=needs_compiler)])
@torch.inference_mode()
def test_cached_logits_are_the_uncached_ones_within_and_beyond_the_window(kind: str, seed: int) -> None:
    chance = Random(seed)
    model, slide_chunk = draw_model(chance), chance.choice((None, 1, 3))
    options = DecodeOptions(kind, prefill_chunk=chance.choice((None, 1, 3)))
    cached = build_runtime(model, options).backend(SamplingParams(slide_chunk=slide_chunk))
    uncached = UncachedBackend(model, slide_chunk)
    window = model.config.block_size
    lengths = (1, window // 2, window + 3)
    texts = [chance.choices(range(model.vocab_size), k=length + 12) for length in lengths]
    for step in range(8):
        contexts = [text[: length + step] for text, length in zip(texts, lengths, strict=True)]
        expected = uncached.next_logits(contexts)
        assert (cached.next_logits(contexts) - expected).abs().max() < 1e-4 * expected.std()
