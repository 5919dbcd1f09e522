"""Exports are compared with the model as it is: what a format does not cover, and what an edit changes, is refused."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gpt.config import ModelConfig, SamplingParams
from gpt.data.tokenizers import CharTokenizer
from gpt.errors import InputError
from gpt.interop.coverage import not_applied
from gpt.interop.gguf_file import check_gguf, write_gguf
from gpt.interop.html import render_model_page
from gpt.interop.hugging_face import check_folder, export_files
from gpt.interop.page_check import check_page
from gpt.interop.verification import require_same, window_of
from gpt.model import GPT
from gpt.model.attention import Attention
from gpt.model.quantized import quantize
from interop.node import run_page
from planted_edits import EDITS
from programs import find_node
from tiny import sharp_model
from variants import VARIANTS, keys_of, name_of

CHARS = CharTokenizer("abcdefghijklmnopqrst \n?")
GPT2: dict[str, object] = {"mlp": "gelu_tanh"}
LLAMA: dict[str, object] = {"position": "rope", "norm": "rmsnorm", "mlp": "swiglu", "n_kv_head": 2}
QWEN = LLAMA | {"qk_norm": True, "tie_weights": True, "norm_eps": 0.1, "rope_theta": 50.0}
SINUSOIDAL = GPT2 | {"position": "sinusoidal", "bias": True, "tie_weights": True, "mlp_width": 80}
EDITED = r"^the model is not what its configuration builds: \w+ of gpt/model/\w+\.py was replaced$"
Export = Callable[[GPT, Path], float]


def page_of(model: GPT, weights: str = "float32") -> str:
    return render_model_page(model, CHARS, weights, SamplingParams(), "", "A title", "a note")


def to_html(model: GPT, folder: Path, weights: str = "float32") -> float:
    (folder / "x.html").write_text(page_of(model, weights), encoding="utf-8")
    return check_page(folder / "x.html", model, weights, find_node())


def to_folder(model: GPT, folder: Path) -> float:
    for name, content in export_files(model, CHARS, SamplingParams()).items():
        (folder / name).write_bytes(content)
    return check_folder(folder, model)


def to_gguf(model: GPT, folder: Path, weights: str = "float32") -> float:
    write_gguf(folder / "x.gguf", model, CHARS, weights, "x")
    return check_gguf(folder / "x.gguf", model, weights)


EXPORTS: dict[str, Export] = {"html": to_html, "hf": to_folder, "gguf": to_gguf}
every_export = pytest.mark.parametrize("export", EXPORTS.values(), ids=EXPORTS.keys())


@pytest.mark.parametrize("changes", [GPT2, SINUSOIDAL, LLAMA | {"bias": True}, QWEN])
def test_an_untouched_model_is_what_its_files_compute(changes: dict[str, object], tmp_path: Path) -> None:
    model = sharp_model(**changes)
    assert to_folder(model, tmp_path) < 1e-6
    assert to_gguf(model, tmp_path) < 1e-6
    assert to_gguf(model, tmp_path, "q8_0") < 1e-6


def test_the_gelu_of_llama_cpp_is_allowed_for(tmp_path: Path) -> None:
    assert 1e-5 < to_gguf(sharp_model(mlp="gelu"), tmp_path) < 1e-3


@pytest.mark.parametrize("variant", VARIANTS, ids=name_of)
def test_an_untouched_model_is_what_a_page_computes(variant: tuple[Any, ...], tmp_path: Path) -> None:
    assert to_html(sharp_model(**keys_of(variant)), tmp_path, "fp16") < 1e-6


@pytest.mark.parametrize("kept", ["int8", "int4", "bf16"])
def test_quantized_weights_are_allowed_for(kept: str, tmp_path: Path) -> None:
    model = sharp_model(mlp_conv=3)
    assert to_html(model, tmp_path, "int8") < 1e-6
    assert to_html(quantize(model, kept), tmp_path, "fp16") < (1e-2 if kept == "int4" else 1e-6)


@every_export
@pytest.mark.parametrize(
    ("edit", "changes"),
    [
        ("attention times zero", GPT2),
        ("another activation", {"mlp": "gelu", "mlp_width": 120}),
        ("another eps", QWEN),
        ("another scale", LLAMA | {"n_kv_head": 4}),
    ],
)
def test_an_edit_of_the_code_is_refused(
    edit: str, changes: dict[str, object], export: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    EDITS[edit](monkeypatch)
    with pytest.raises(InputError, match=EDITED):
        export(sharp_model(**changes), tmp_path)


class Scaled(Attention):
    def forward(self, *arguments: Any) -> Tensor:
        return 0.5 * super().forward(*arguments)


@every_export
def test_a_module_that_the_configuration_does_not_build_is_refused(export: Export, tmp_path: Path) -> None:
    model = sharp_model(**GPT2)
    model.h[1].attn.__class__ = Scaled
    with pytest.raises(InputError, match=r"^the model is not what its configuration builds: .* Scaled"):
        export(model, tmp_path)


class WiderConfig(ModelConfig):
    """A configuration with an option that exporters do not know."""

    alibi_slope: float = 0.0


@every_export
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mlp": "mish"}, r"model\.mlp"),
        ({"norm": "dyt"}, r"model\.norm"),
        ({"position": "alibi"}, r"model\.position"),
        ({"alibi_slope": 0.5}, r"; train one with model\.alibi_slope=0\.0"),
    ],
)
def test_an_option_that_is_not_listed_is_refused_by_name(
    changes: dict[str, object], message: str, export: Export, tmp_path: Path
) -> None:
    model = sharp_model(**GPT2)
    model.config = WiderConfig(**model.config.model_dump())
    export(model, tmp_path)  # the new key has its default
    model.config = model.config.model_copy(update=changes)
    with pytest.raises(InputError, match=message) as error:
        export(model, tmp_path)
    assert "\n" not in str(error.value)


def test_a_page_finds_its_own_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "return findProblem(newModel(true), data.probe);"
    model = sharp_model(**LLAMA)
    assert run_page(page_of(model), code) is None
    EDITS["no rotation"](monkeypatch)
    assert "This page does not compute what its model computes" in run_page(page_of(model), code)
    monkeypatch.undo()
    broken = "data.config.mlp = 'mish'; data.config.norm = 'layernorm';"
    assert "a logit differs by" in run_page(page_of(model), broken + code)
    assert "a logit differs by NaN" in run_page(page_of(sharp_model()), broken + code)  # nothing is called mish


def test_what_counts_as_the_same() -> None:
    expected = torch.randn(5, 7)
    assert require_same(expected * (1 + 5e-5), expected) == pytest.approx(5e-5, rel=0.1)
    for found in (expected * 1.001, expected[:4], torch.full((5, 7), math.nan)):
        with pytest.raises(InputError, match="computes other logits"):
            require_same(found, expected)
    assert require_same(torch.zeros(2, 2), torch.zeros(2, 2)) == 0.0


def test_the_window_is_short_where_a_token_costs_much(monkeypatch: pytest.MonkeyPatch) -> None:
    model = sharp_model()
    assert len(window_of(model)) == model.config.block_size
    assert window_of(model).tolist() == window_of(model).tolist()
    monkeypatch.setattr("gpt.interop.verification.MAX_PRODUCTS", 10)
    assert len(window_of(model)) == 8


def test_sampling_that_is_not_applied_is_named() -> None:
    params = SamplingParams(top_k=3, min_p=0.1, seed=2, slide_chunk=4)
    assert not_applied(params, ("top_k",)) == ["sample.min_p=0.1", "sample.slide_chunk=4"]
    assert not_applied(SamplingParams(), ()) == []
