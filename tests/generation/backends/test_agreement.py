"""The native engine shows that it computes the model that is written, and samples as sampling is written."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from native_support import needs_compiler
from torch import Tensor

from gpt.config import SamplingParams
from gpt.filters import FILTERS
from gpt.generation import Batch, generate_tokens
from gpt.generation.backends.agreement import ROWS
from gpt.generation.backends.selection import DecodeOptions, Runtime, build_runtime
from gpt.generation.reference import reference_tokens
from gpt.kernels.decoding.c_structs import SAMPLING
from gpt.model import GPT
from planted_edits import EDITS
from tiny import sharp_model

pytestmark = needs_compiler
EVALUATED = [name for name in EDITS if name != "no gradient into attention"]


def model(**changes: Any) -> GPT:
    recipe = {"norm": "rmsnorm", "position": "rope", "qk_norm": True, "mlp_conv": 4}
    return sharp_model(**{"block_size": 72, **recipe, **changes})


def runtime_of(model: GPT) -> tuple[Runtime, list[str]]:
    lines: list[str] = []
    return build_runtime(model, DecodeOptions(), report=lines.append), lines


@pytest.mark.parametrize("name", EVALUATED)
def test_an_edited_model_is_decoded_by_pytorch(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert runtime_of(model())[0].name == "native, fp32 cache"
    EDITS[name](monkeypatch)
    runtime, (line,) = runtime_of(model())
    assert runtime.name == "eager, fp32 cache"
    reason = line.removeprefix("no native backend, which is several times faster: ")
    assert reason.startswith(("its logits differ by ", "the model differs from its configuration in h.0.mlp"))


def test_only_the_beginning_of_a_window_is_compared_where_more_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    EDITS["a window of 64"](monkeypatch)
    monkeypatch.setattr("gpt.generation.backends.agreement.FLOPS", 1e6)
    assert runtime_of(model())[0].name == "native, fp32 cache"


def test_weights_that_are_not_finite_are_left_to_sampling() -> None:
    broken = model()
    with torch.no_grad():
        broken.lm_head.weight[3] = torch.nan
    assert runtime_of(broken)[0].name == "native, fp32 cache"


VALUES = {"top_k": 3, "top_p": 0.5, "min_p": 0.3, "repetition_penalty": 4.0}


def said_by(params: SamplingParams) -> list[str]:
    """What is reported when a token is sampled by these parameters."""
    runtime, lines = runtime_of(model())
    Batch(runtime, [[1]], params, [0]).step()
    return lines


@pytest.mark.parametrize("name", VALUES)
def test_an_edited_filter_is_applied_by_pytorch(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    params = SamplingParams.model_validate({"temperature": 0.9, name: VALUES[name]})
    assert said_by(params) == []
    if name in FILTERS:
        monkeypatch.setitem(FILTERS, name, replace(FILTERS[name], apply=lambda logits, value: logits))
    else:
        monkeypatch.setattr(f"gpt.generation.sampling.{name}", lambda logits, *_: logits)
    (line,) = said_by(params)
    assert line.startswith("sampling with PyTorch's operators: ")
    assert line.endswith(f" of {ROWS} tokens differ between the native engine and gpt/generation/sampling.py")
    edited = generate_tokens(model(), [1, 2], params, build_runtime(model(), DecodeOptions("native")))
    assert list(edited) == list(reference_tokens(model(), [1, 2], params))


def test_a_parameter_that_the_engine_does_not_know_is_applied_by_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpt.generation.backends.native.SAMPLING", SAMPLING - {"min_p"})
    assert said_by(SamplingParams()) == []
    assert said_by(SamplingParams(min_p=0.2)) == [
        "sampling with PyTorch's operators: the native engine does not know min_p"
    ]


def test_what_pytorch_samples_from_the_engines_logits_is_the_text_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(temperature=0.9, top_k=5, logprobs=2, max_new_tokens=90)
    by_engine = Batch(runtime_of(model())[0], [[1, 2], [3]], params, [7, 8])
    monkeypatch.setattr("gpt.generation.backends.native.why_not_sample", lambda *_: "of a test")
    by_pytorch = Batch(runtime_of(model())[0], [[1, 2], [3]], params, [7, 8])
    for _ in range(90):  # past the window's edge
        assert by_engine.step() == by_pytorch.step()


def test_sampling_is_compared_once_for_each_set_of_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Tensor] = []
    monkeypatch.setattr("gpt.generation.backends.native.why_not_sample", lambda *_: calls.append(torch.zeros(1)))
    runtime, _ = runtime_of(model())
    for seed, top_k in ((1, 3), (2, 3), (3, 4)):
        Batch(runtime, [[1]], SamplingParams(seed=seed, top_k=top_k), [seed]).step()
    assert len(calls) == 2
