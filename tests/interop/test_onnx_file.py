"""ONNX files, run by onnxruntime."""

import re
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch

from gpt import invocation
from gpt.config import SamplingParams
from gpt.data.bpe import learn_bpe
from gpt.data.tokenizers import CharTokenizer
from gpt.errors import InputError
from gpt.generation import generate_tokens
from gpt.interop import onnx_file
from gpt.interop.onnx_file import write_onnx
from gpt.model.quantized import quantize
from gpt.parts import names_of
from tiny import CORPUS, sharp_model

CHARS = CharTokenizer("abcdefghijklmnopqrs\né?")
GUIDE = Path(__file__).parents[2] / "docs/interop.md"
VARIANTS: dict[str, dict[str, object]] = {
    "gpt": {"bias": True, "mlp": "gelu", "attention": "sdpa", "n_layer": 2},
    "gpt2": {"bias": True, "mlp": "gelu_tanh", "tie_weights": True, "block_size": 1},
    "sinusoidal": {"position": "sinusoidal", "mlp": "relu2", "norm": "rmsnorm", "n_kv_head": 2},
    "llama": {"position": "rope", "norm": "rmsnorm", "mlp": "swiglu", "n_kv_head": 1, "logit_softcap": 9.0},
    "qwen": {"position": "rope", "norm": "layernorm", "mlp": "relu", "n_kv_head": 2, "qk_norm": True, "mlp_conv": 3},
}
"""Every value of every option of the architecture that changes what is computed."""


def session(file: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(file, options)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
@torch.inference_mode()
def test_onnxruntime_computes_the_same_at_every_length(changes: dict[str, object], tmp_path: Path) -> None:
    model = sharp_model(**({"n_layer": 1} | changes))
    core = model.get_submodule("h.0.attn.core")
    write_onnx(tmp_path / "x.onnx", model, CHARS)
    assert model.get_submodule("h.0.attn.core") is core
    assert b"attention.py" not in (tmp_path / "x.onnx").read_bytes()  # no paths of the machine that exported it
    run = session(tmp_path / "x.onnx").run
    longest = model.config.block_size
    for batch, length in ((1, 1), (3, min(2, longest)), (4, longest), (1, (longest + 1) // 2)):
        idx = torch.randint(model.vocab_size, (batch, length))
        logits = run(["logits"], {"idx": idx.numpy()})[0]
        torch.testing.assert_close(torch.from_numpy(logits), model(idx), atol=1e-5, rtol=0)


def test_every_option_is_among_the_variants() -> None:
    values = {key: {variant.get(key) for variant in VARIANTS.values()} for key in ("position", "norm", "mlp")}
    fields = type(sharp_model().config).model_fields
    for key, seen in values.items():
        assert set(names_of(f"model.{key}")) - {fields[key].default} <= seen


def test_the_lines_in_the_guide_write_the_same_greedy_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = learn_bpe([CORPUS], 300)
    model = sharp_model(block_size=24, vocab_size=tokenizer.vocab_size, n_layer=1)
    monkeypatch.chdir(tmp_path)
    write_onnx(Path("mine.onnx"), model, tokenizer)
    section = GUIDE.read_text(encoding="utf-8").partition("## To onnxruntime")[2]
    lines = section.partition("```python\n")[2].partition("```")[0]
    with redirect_stdout(StringIO()) as printed:
        exec(lines.replace("ROMEO:", "badcab"), {})
    prompt = tokenizer.encode("badcab").tolist()
    params = SamplingParams(max_new_tokens=200, temperature=0.0, slide_chunk=1)
    greedy = generate_tokens(model, prompt, params)
    assert printed.getvalue() == tokenizer.decode([*prompt, *greedy]) + "\n"


def test_what_a_file_does_not_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="the weights are int8"):
        write_onnx(tmp_path / "x.onnx", quantize(sharp_model(), "int8"), CHARS)
    monkeypatch.setattr(onnx_file, "MAX_BYTES", 1000)
    with pytest.raises(InputError, match="an ONNX file holds at most 2 GiB"):
        write_onnx(tmp_path / "x.onnx", sharp_model(), CHARS)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(InputError, match=re.escape(invocation.extra("onnx"))):
        write_onnx(tmp_path / "x.onnx", sharp_model(), CHARS)
    assert list(tmp_path.iterdir()) == []
