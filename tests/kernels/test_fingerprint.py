"""Edits of the model and of sampling, on disk and at run time: one line names each, and PyTorch computes it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from native_support import needs_compiler
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from gpt.config import SamplingParams
from gpt.device import Compute
from gpt.filters import FILTERS, Filter
from gpt.generation import Batch, generate_tokens
from gpt.generation.reference import reference_tokens
from gpt.generation.runtime import DecodeOptions, build_runtime
from gpt.kernels import fingerprint
from gpt.kernels.coverage import changed_module
from gpt.kernels.decoding.c_structs import SAMPLING as SAMPLED_IN_C
from gpt.kernels.fingerprint import DECODING, SAMPLING, TRAINING, changed_code
from gpt.kernels.training.block import NativeBlock, use_native_blocks
from gpt.model import GPT
from gpt.model import gpt as gpt_file
from gpt.model.attention import Attention, ReferenceCore, SDPACore
from gpt.model.gpt import Block
from gpt.model.layers import ACTIVATIONS
from gpt.system.environment import read_settings
from gpt.system.errors import DeviceError
from planted_edits import EDITS
from tiny import sharp_model, tiny_config

FLOAT32 = Compute(torch.device("cpu"), torch.float32)


def test_the_fingerprint_is_that_of_the_code() -> None:
    assert fingerprint.current() == fingerprint.recorded(), "compare and write it: python -m gpt.kernels.trial"
    assert [changed_code(scope) for scope in (TRAINING, DECODING, SAMPLING)] == [None] * 3


IN_ATTENTION = ("model/attention.py", "Attention")
IN_BLOCK = ("model/gpt.py", "Block")
ON_DISK: list[tuple[tuple[str, str], str, str]] = [
    (IN_BLOCK, "x = x + self.attn(", "x = x + 0.0 * self.attn("),
    (IN_BLOCK, "self.mlp(self.ln_2(x))", "self.mlp(self.ln_2(x.clamp(-6, 6)))"),
    (IN_BLOCK, "return x + self.mlp(", "return x + (1 + x.std(0, keepdim=True)) * self.mlp("),
    (IN_BLOCK, "self.mlp(self.ln_2(x))", "self.mlp(self.ln_2(x) * (0.5 if x.size(1) < 32 else 1.0))"),
    (IN_BLOCK, "self.mlp(self.ln_2(x))", "self.mlp(self.ln_2(x) * (1.0 if self.training else 0.0))"),
    (
        IN_ATTENTION,
        "v = _split_heads(self.c_v(x), self.n_kv_head)",
        "v = 0.97 * _split_heads(self.c_v(x), self.n_kv_head)",
    ),
    (IN_ATTENTION, "y = self.core(q, k, v, mask)", "y = self.core(q, k, v.sigmoid() * v, mask)"),
    (IN_ATTENTION, "return self.resid_dropout(self.c_proj(y))", "return self.c_proj(y)"),
    (("model/attention.py", "ReferenceCore"), "softmax(dim=-1)", "softmax(dim=-1).clamp(max=0.5)"),
    (("model/attention.py", "SDPACore"), "mask is None and queries > 1", "mask is None"),
    (
        ("model/attention.py", "AutoCore"),
        "trains_on_cpu and (q.dtype == torch.bfloat16",
        "(q.dtype == torch.half",
    ),
    (("model/attention.py", "CORES"), '{"auto": AutoCore', '{"auto": ReferenceCore'),
    (("model/attention.py", "masked_scores"), "math.sqrt(q.size(-1))", "q.size(-1)"),
    (("model/attention.py", "causal_mask"), "keys - queries", "keys - queries + 1"),
    (("model/attention.py", "import rotate"), "import Rotation, rotate", "import Rotation, rotate_half as rotate"),
    (("model/layers.py", "MLP"), "self.activation(self.c_fc(x))", "self.activation(self.c_fc(x)).clamp(max=1)"),
    (("model/layers.py", "SwiGLU"), "F.silu(self.c_gate(x))", "self.c_gate(x).sigmoid()"),
    (("model/layers.py", "relu2"), "F.relu(x).square()", "F.relu6(x).square()"),
    (("model/layers.py", "ACTIVATIONS"), '"gelu": F.gelu', '"gelu": F.mish'),
    (("model/layers.py", "RMSNorm"), "self.eps)", "2 * self.eps)"),
    (("model/layers.py", "NORMS"), "bias=config.bias", "bias=False"),
    (("model/layers.py", "a statement"), "class MLP(", 'ACTIVATIONS["gelu"] = F.silu\n\n\nclass MLP('),
    (("model/positions.py", "rotate"), "rotate_half(x) * sin", "rotate_half(x) * -sin"),
    (("model/positions.py", "rotate_half"), "(-second, first)", "(second, first)"),
]
"""The definition that is edited, what is replaced, and by what."""
DECODED: list[tuple[tuple[str, str], str, str]] = [
    (("model/gpt.py", "GPT"), "x = self.wte(idx)", "x = 3.0 * self.wte(idx)"),
    (("model/gpt.py", "GPT"), "self.ln_f(x)).float()", "self.ln_f(x)).float().clamp(-30, 30)"),
    (("model/positions.py", "Rotary"), "self.cos[positions], self.sin", "self.cos[positions], 0.9 * self.sin"),
    (("model/positions.py", "_angles"), "theta ** (-", "2 * theta ** (-"),
    (("model/quantized.py", "QuantizedLinear"), "* self.scales", "* 0.9 * self.scales"),
]
"""Edits of what only decoding computes natively."""
SAMPLED: list[tuple[tuple[str, str], str, str]] = [
    (("generation/sampling.py", "next_token_probabilities"), "max(params.temp", "max(0.2 * params.temp"),
    (("filters.py", "top_p_filter"), "(before >= p)", "(before > p)"),
]


def edited(place: Path, file: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the fingerprint read a copy of the package's files, one of them edited."""
    for each in {*DECODING, *SAMPLING}:
        (place / each).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(fingerprint.PACKAGE / each, place / each)
    source = (place / file).read_text(encoding="utf-8")
    assert source.count(old) >= 1, f"{file} lacks {old!r}"
    (place / file).write_text(source.replace(old, new, 1), encoding="utf-8")
    monkeypatch.setattr(fingerprint, "PACKAGE", place)


@pytest.mark.parametrize(("where", "old", "new"), [*ON_DISK, *DECODED, *SAMPLED], ids=lambda value: str(value)[:40])
def test_an_edit_on_disk_is_named(
    where: tuple[str, str], old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, name = where
    edited(tmp_path, file, old, new, monkeypatch)
    said = f"{name} of gpt/{file} was edited"
    case = (where, old, new)
    assert changed_code(TRAINING) == (said if case in ON_DISK else None)
    assert changed_code(DECODING) == (None if case in SAMPLED else said)
    assert changed_code(SAMPLING) == (said if case in SAMPLED else None)


def test_weights_at_the_start_have_no_part_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edited(tmp_path, "model/gpt.py", "INIT_STD = 0.02", "INIT_STD = 0.01", monkeypatch)
    assert changed_code(TRAINING) is None
    assert changed_code(DECODING) is None


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        (
            "model/gpt.py",
            "        return x + self.mlp(self.ln_2(x))\n",
            "\n        # a comment\n        return x + self.mlp(\n            self.ln_2(x))\n",
        ),
        ("model/attention.py", '"""Map x (B, T, C) to (B, T, C)."""', '"""Attend."""'),
    ],
    ids=["a comment", "a docstring"],
)
def test_comments_have_no_part_in_the_fingerprint(
    file: str, old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edited(tmp_path, file, old, new, monkeypatch)
    assert fingerprint.current() == fingerprint.recorded()


@pytest.mark.parametrize(
    ("content", "said"), [("def (", "raises SyntaxError"), ("import nothing_like_it\n", "raises Module")]
)
def test_a_file_that_is_broken_is_named(
    content: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edited(tmp_path, "model/layers.py", "class MLP(", f"{content}\nclass MLP(", monkeypatch)
    assert said in str(changed_code(TRAINING))


def twice(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def doubled(*arguments: Any, **options: Any) -> Tensor:
        return 2 * function(*arguments, **options)

    doubled.__wrapped__ = function  # type: ignore[attr-defined]
    return doubled


def replacing(owner: Any, name: str) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(owner, name, twice(getattr(owner, name)))


AT_RUN_TIME: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "a function of a file": (replacing(gpt_file, "build_mlp"), "build_mlp of gpt/model/gpt.py"),
    "a method": (replacing(Attention, "forward"), "Attention of gpt/model/attention.py"),
    "a method more": (
        lambda patch: patch.setattr(Block, "__call__", Block.forward, raising=False),
        "Block of gpt/model",
    ),
    "dropout taken out": (replacing(ReferenceCore, "__init__"), "ReferenceCore of gpt/model/attention.py"),
    "a default": (lambda patch: patch.setattr(Block.forward, "__defaults__", (1,)), "Block of gpt/model/gpt.py"),
    "a class": (
        lambda patch: patch.setattr(gpt_file, "Attention", type("A", (Attention,), {})),
        "Attention of gpt/model",
    ),
    "torch's": (lambda patch: patch.setitem(ACTIVATIONS, "gelu", torch.sin), "ACTIVATIONS of gpt/model/layers.py"),
    "a table": (lambda patch: patch.setitem(ACTIVATIONS, "gelu", twice(F.gelu)), "ACTIVATIONS of gpt/model/layers.py"),
}


@pytest.mark.parametrize("name", [*AT_RUN_TIME, *EDITS])
def test_what_is_replaced_at_run_time_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change, said = AT_RUN_TIME[name] if name in AT_RUN_TIME else (EDITS[name], " of gpt/model/")
    change(monkeypatch)
    for scope in (TRAINING, DECODING):
        found = changed_code(scope)
        assert found is not None
        assert said in found
        assert found.endswith(" was replaced")


RECIPE = {"norm": "rmsnorm", "position": "rope", "qk_norm": True, "n_embd": 64, "n_head": 2}


def build(**changes: Any) -> GPT:
    torch.manual_seed(0)
    return GPT(tiny_config(**{**RECIPE, "block_size": 72, **changes}))


class Scaled(Block):
    def forward(self, *arguments: Any) -> Tensor:
        return 0.5 * super().forward(*arguments)


class Negated(SDPACore):
    def forward(self, *arguments: Any) -> Tensor:
        return -super().forward(*arguments)


def with_forward(module: Any) -> None:
    module.forward = twice(module.forward)


IN_MODEL: dict[str, tuple[Callable[[Any], object], str]] = {
    "class": (lambda model: model.h.__setitem__(1, Scaled(model.config)), "modules of class Scaled"),
    "parameter": (lambda model: setattr(model.h[0].mlp, "c_fc", nn.Linear(64, 512, bias=False)), "the shapes of h.0"),
    "module": (lambda model: setattr(model.h[0], "more", nn.Linear(2, 2)), "a model with h.0.more"),
    "hook": (lambda model: model.h[1].mlp.register_forward_hook(lambda m, a, y: 2 * y), "hooks, and h.1.mlp has one"),
    "pre-hook": (lambda model: model.h[1].register_forward_pre_hook(lambda m, a: a), "hooks, and h.1 has one"),
    "method": (lambda model: with_forward(model.h[0].mlp), "h.0.mlp.forward, which was changed"),
    "call": (lambda model: setattr(model.h[0], "_call_impl", model.h[0].forward), "h.0._call_impl, which was"),
    "activation": (
        lambda model: setattr(model.h[1].mlp, "activation", F.mish),
        "h.1.mlp.activation, which was changed",
    ),
    "eps": (lambda model: setattr(model.h[1].ln_1, "eps", 0.1), "h.1.ln_1.eps, which was changed"),
    "core": (lambda model: setattr(model.h[0].attn, "core", SDPACore(0.0)), "modules of class SDPACore"),
    "parametrization": (
        lambda model: parametrizations.weight_norm(model.h[0].attn.c_q),
        "modules of class ParametrizedLinear",
    ),
}


@pytest.mark.parametrize("name", IN_MODEL)
def test_what_is_changed_in_a_model_is_named(name: str) -> None:
    change, said = IN_MODEL[name]
    model = build()
    assert changed_module(model) is None
    change(model)
    assert said in str(changed_module(model))
    with pytest.raises(DeviceError, match=r"^the native kernels do not cover ") as caught:
        use_native_blocks(model, FLOAT32, read_settings())
    assert said in str(caught.value)
    assert not any(isinstance(block, NativeBlock) for block in model.h)


def test_dropout_matters_in_training_only() -> None:
    model = build(dropout=0.1)
    model.h[0].mlp.dropout.p = 0.5
    assert changed_module(model) is None
    assert changed_module(model, trains=True) == "h.0.mlp.dropout.p, which was changed"


def test_the_head_matters_in_decoding_only() -> None:
    model = build()
    with_forward(model.lm_head)
    assert changed_module(model) == "lm_head.forward, which was changed"
    assert changed_module(model, trains=True) is None


@needs_compiler
@pytest.mark.parametrize(
    "change",
    [
        lambda block: setattr(block.mlp, "activation", torch.sin),
        lambda block: setattr(block.attn, "core", Negated(0.0)),
        lambda block: block.attn.register_forward_hook(lambda module, args, y: 2 * y),
        lambda block: setattr(block.ln_1, "eps", 1.0),
    ],
    ids=["activation", "core", "hook", "eps"],
)
def test_change_after_kernels_were_chosen_is_computed(change: Callable[[Any], object]) -> None:
    model, idx = build(), torch.randint(23, (2, 9))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    use_native_blocks(model, FLOAT32, read_settings())
    before = model(idx)
    change(model.h[0])
    with torch.no_grad():
        plain = model(idx)  # by PyTorch's operators, as every evaluation in float32
    assert not torch.allclose(before, plain, atol=1e-2)
    torch.testing.assert_close(model(idx), plain, rtol=1e-4, atol=1e-4)


@needs_compiler
def test_an_edited_model_trains_and_decodes_by_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    model = sharp_model(**RECIPE)
    lines: list[str] = []
    assert build_runtime(model, report=lines.append).name == "native, fp32 cache"
    EDITS["no residual"](monkeypatch)
    assert build_runtime(model, report=lines.append).name == "eager, fp32 cache"
    assert lines == [
        "no native backend, which is several times faster: Block of gpt/model/gpt.py was replaced",
    ]
    with pytest.raises(DeviceError, match=r"^Block of gpt/model/gpt\.py was replaced$"):
        use_native_blocks(build(), FLOAT32, read_settings())


@needs_compiler
@pytest.mark.parametrize("name", ["top_k", "repetition_penalty"])
def test_edited_sampling_is_by_pytorch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, lines = sharp_model(**RECIPE), list[str]()
    params = SamplingParams.model_validate({"temperature": 0.9, name: 3, "max_new_tokens": 30})
    if name in FILTERS:
        monkeypatch.setitem(FILTERS, name, Filter(lambda logits, value: logits, FILTERS[name].field))
    else:
        monkeypatch.setattr(f"gpt.generation.sampling.{name}", lambda logits, *_: logits)
    runtime = build_runtime(model, DecodeOptions("native"), report=lines.append)
    assert list(generate_tokens(model, [1, 2], params, runtime)) == list(reference_tokens(model, [1, 2], params))
    (line,) = lines
    where = "FILTERS of gpt/filters.py" if name in FILTERS else "repetition_penalty of gpt/generation/sampling.py"
    assert line == f"sampling with PyTorch's operators: {where} was replaced"


@needs_compiler
def test_a_parameter_that_the_engine_does_not_know_is_applied_by_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpt.generation.native_runner.SAMPLING", SAMPLED_IN_C - {"min_p"})
    lines: list[str] = []
    runtime = build_runtime(sharp_model(**RECIPE), report=lines.append)
    Batch(runtime, [[1]], SamplingParams(), [0]).step()
    assert lines == []
    Batch(runtime, [[1]], SamplingParams(min_p=0.2), [0]).step()
    assert lines == ["sampling with PyTorch's operators: the native engine does not know min_p"]


@needs_compiler
def test_what_pytorch_samples_from_the_engines_logits_is_the_text_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(temperature=0.9, top_k=5, logprobs=2, max_new_tokens=90)
    model = sharp_model(**RECIPE, block_size=72)
    by_engine = Batch(build_runtime(model), [[1, 2], [3]], params, [7, 8])
    monkeypatch.setattr("gpt.generation.native_runner.SAMPLING", SAMPLED_IN_C - {"top_k"})
    by_pytorch = Batch(build_runtime(model), [[1, 2], [3]], params, [7, 8])
    for _ in range(90):  # past the window's edge
        assert by_engine.step() == by_pytorch.step()
