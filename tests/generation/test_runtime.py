"""Which backend decodes a model, and why."""

from typing import Any

import pytest
from native_support import needs_compiler

from gpt.generation.runtime import DecodeOptions, build_runtime, why_not_native
from gpt.model.quantized import quantize
from gpt.system.environment import read_settings
from gpt.system.errors import DeviceError, GenerationError
from gpt.system.progress import silent
from tiny import sharp_model

MIXED = "the native backend needs queries, keys and values in the same format"


def mixed_model() -> Any:
    """A model whose keys alone have int8 weights."""
    model: Any = sharp_model()
    model.h[1].attn.c_k = quantize(model, "int8").h[1].attn.c_k
    return model


@needs_compiler
def test_question_has_no_answer_for_a_model_of_the_decoder() -> None:
    assert why_not_native(sharp_model(), read_settings(), silent) is None


def test_question_says_why_the_decoder_does_not_compute_a_model() -> None:
    assert why_not_native(mixed_model(), read_settings(), silent) == MIXED
    hooked = sharp_model()
    hooked.h[0].register_forward_hook(lambda module, inputs, output: None)
    reason = why_not_native(hooked, read_settings(), silent)
    assert reason == "the native backend does not cover hooks, and h.0 has one"


def test_runtime_is_eager_where_native_cannot_be_and_says_so() -> None:
    lines: list[str] = []
    runtime = build_runtime(mixed_model(), report=lines.append)
    assert runtime.name.startswith("eager, ")
    assert lines == [f"no native backend, which is several times faster: {MIXED}"]


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        (DecodeOptions("native"), "backend auto or eager"),
        (DecodeOptions(kv_dtype="int8"), "another kv_dtype"),
    ],
)
def test_runtime_that_must_be_native_is_refused(options: DecodeOptions, remedy: str) -> None:
    with pytest.raises(DeviceError, match=f"^no native backend: {MIXED}; take {remedy}$"):
        build_runtime(mixed_model(), options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"backend": "fast"}, "backend 'fast': expected one of auto, eager, native, graph"),
        ({"kv_dtype": "int2"}, "kv_dtype 'int2': expected one of fp32, bf16, fp16, int8"),
        (
            {"backend": "eager", "kv_dtype": "int8"},
            "the eager backend has no cache of int8; take another kv_dtype",
        ),
        (
            {"backend": "graph", "kv_dtype": "int8"},
            "the graph backend has no cache of int8; take another kv_dtype",
        ),
    ],
)
def test_options_refuse_what_no_backend_has(options: dict[str, str], said: str) -> None:
    with pytest.raises(GenerationError, match=f"^{said}$"):
        DecodeOptions(**options)


def test_graphs_are_refused_on_a_cpu() -> None:
    said = "no graph backend: it is for CUDA devices, and the model is on cpu"
    with pytest.raises(DeviceError, match=f"^{said}; take backend auto or eager$"):
        build_runtime(sharp_model(), DecodeOptions("graph"))
