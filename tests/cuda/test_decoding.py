"""Texts from the device are those of the CPU; weights are sharp, so that rounding decides nothing."""

import pytest
import torch

from gpt.config import SamplingParams
from gpt.generation import Batch
from gpt.generation.beam import beam_search
from gpt.generation.runtime import DecodeOptions, build_runtime
from gpt.model import GPT
from tiny import sharp_model

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11]]
TOKENS = 24
"""Past the end of the window, which has 16."""

every_position = pytest.mark.parametrize("position", ["learned", "sinusoidal", "rope"])


def generate(model: GPT, options: DecodeOptions, params: SamplingParams, prompts: list[list[int]]) -> list[list[int]]:
    """New tokens of every prompt."""
    batch = Batch(build_runtime(model, options), prompts, params, list(range(len(prompts))))
    steps = [batch.step() for _ in range(params.max_new_tokens)]
    return [[step[row].token.id for step in steps] for row in range(len(prompts))]


@every_position
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_tokens_are_those_of_the_cpu(device: torch.device, position: str, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, top_k=10, top_p=0.95, max_new_tokens=TOKENS)
    expected = generate(sharp_model(position=position), DecodeOptions("eager"), params, PROMPTS)
    model = sharp_model(position=position).to(device)
    assert generate(model, DecodeOptions("eager"), params, PROMPTS) == expected


@pytest.mark.parametrize("kv_dtype", ["fp32", "bf16", "fp16"])
def test_log_probabilities_through_a_cache_are_near_those_of_the_cpu(device: torch.device, kv_dtype: str) -> None:
    params, found = SamplingParams(temperature=0, max_new_tokens=1, logprobs=23), []
    for place, kind in ((torch.device("cpu"), "fp32"), (device, kv_dtype)):
        batch = Batch(build_runtime(sharp_model(0.1).to(place), DecodeOptions("eager", kind)), PROMPTS, params, [0] * 3)
        found.append(torch.tensor([[logprob for _, logprob in sorted(c.token.top)] for c in batch.step().values()]))
    tolerance = {"fp32": 1e-4, "bf16": 5e-2, "fp16": 1e-2}[kv_dtype]
    torch.testing.assert_close(found[1], found[0], atol=tolerance, rtol=tolerance)


def test_a_row_does_not_depend_on_the_others(device: torch.device) -> None:
    model, params = sharp_model(position="rope").to(device), SamplingParams(temperature=0.9, max_new_tokens=TOKENS)
    options = DecodeOptions("eager")
    many = generate(model, options, params, [PROMPTS[0]] + [[3, row % 23] for row in range(63)])
    assert generate(model, options, params, PROMPTS[:1]) == many[:1]


def test_beams_are_those_of_the_cpu(device: torch.device) -> None:
    found = [
        beam_search(build_runtime(model, DecodeOptions("eager")).runner(4), [1, 2], 4, 6)
        for model in (sharp_model(), sharp_model().to(device))
    ]
    assert [beam.tokens for beam in found[1]] == [beam.tokens for beam in found[0]]
    for one, other in zip(*found, strict=True):
        assert other.logprob == pytest.approx(one.logprob, abs=1e-3)
