"""Texts from the device are those of the CPU, by every backend; weights are sharp, so that rounding decides nothing."""

import pytest
import torch

from cuda_device import no_synchronization
from gpt.config import SamplingParams
from gpt.generation import Batch
from gpt.generation.backends.compiled import CompiledBackend
from gpt.generation.backends.eager import CachedBackend
from gpt.generation.backends.selection import DecodeOptions, EagerRuntime, build_runtime
from gpt.generation.beam import beam_search
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
@pytest.mark.parametrize("backend", ["eager", "compiled"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_tokens_are_those_of_the_cpu(device: torch.device, backend: str, position: str, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, top_k=10, top_p=0.95, max_new_tokens=TOKENS)
    expected = generate(sharp_model(position=position), DecodeOptions("eager"), params, PROMPTS)
    model = sharp_model(position=position).to(device)
    assert generate(model, DecodeOptions(backend), params, PROMPTS) == expected


@pytest.mark.parametrize("options", [DecodeOptions("eager", cache=False), DecodeOptions("eager", prefill_chunk=2)])
def test_the_cache_changes_nothing(device: torch.device, options: DecodeOptions) -> None:
    model, params = sharp_model(n_kv_head=2).to(device), SamplingParams(temperature=0, max_new_tokens=TOKENS)
    assert generate(model, options, params, PROMPTS) == generate(model, DecodeOptions("eager"), params, PROMPTS)


@pytest.mark.parametrize("kind", [CachedBackend, CompiledBackend])
@pytest.mark.parametrize("kv_dtype", ["fp32", "bf16", "fp16"])
def test_logits_through_a_cache_are_near_those_of_the_cpu(
    device: torch.device, kind: type[CachedBackend], kv_dtype: str
) -> None:
    cpu, backend = CachedBackend(sharp_model(0.1)), kind(sharp_model(0.1).to(device), kv_dtype=kv_dtype)
    contexts = [list(prompt) for prompt in PROMPTS]
    tolerance = {"fp32": 1e-4, "bf16": 5e-2, "fp16": 1e-2}[kv_dtype]
    with torch.inference_mode():
        for token in range(5):
            expected, logits = cpu.next_logits(contexts), backend.next_logits(contexts)
            torch.testing.assert_close(logits.cpu(), expected, atol=tolerance, rtol=tolerance)
            contexts = [[*context, token] for context in contexts]


def test_a_row_does_not_depend_on_the_others(device: torch.device) -> None:
    model, params = sharp_model(position="rope").to(device), SamplingParams(temperature=0.9, max_new_tokens=TOKENS)
    options = DecodeOptions("eager")
    many = generate(model, options, params, [PROMPTS[0]] + [[3, row % 23] for row in range(63)])
    assert generate(model, options, params, PROMPTS[:1]) == many[:1]


def test_beams_are_those_of_the_cpu(device: torch.device) -> None:
    found = [
        beam_search(EagerRuntime(model, DecodeOptions("eager")).backend(SamplingParams()), [1, 2], 4, 6)
        for model in (sharp_model(), sharp_model().to(device))
    ]
    assert [beam.tokens for beam in found[1]] == [beam.tokens for beam in found[0]]
    for one, other in zip(*found, strict=True):
        assert other.logprob == pytest.approx(one.logprob, abs=1e-3)


@pytest.mark.parametrize("kind", [CachedBackend, CompiledBackend])
def test_a_step_waits_for_nothing(device: torch.device, kind: type[CachedBackend]) -> None:
    backend = kind(sharp_model().to(device))
    contexts = [[1, 2], [3]]
    with torch.inference_mode():
        backend.next_logits(contexts)
        backend.next_logits([[1, 2, 4], [3, 4]])
        with no_synchronization(device):
            backend.next_logits([[1, 2, 4, 5], [3, 4, 5]])
