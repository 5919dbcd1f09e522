"""Folders for transformers that carry their model's code, as transformers loads and runs them."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

from gpt.config import SamplingParams
from gpt.data.tokenizers import CharTokenizer
from gpt.errors import InputError
from gpt.generation import generate_tokens
from gpt.interop.hugging_face import check_folder, export_files, import_folder
from gpt.model import GPT
from planted_edits import EDITS
from tiny import sharp_model
from variants import VARIANTS, keys_of, name_of

CHARS = CharTokenizer("abcdefghijklmnopqrst \n?")
SHAKESPEARE = {"position": "rope", "norm": "rmsnorm", "mlp_conv": 4, "qk_norm": True, "logit_softcap": 15.0}
MODELS: dict[str, dict[str, object]] = {
    "shakespeare": SHAKESPEARE,
    "grouped-gated-tied-biases": {"n_kv_head": 2, "mlp": "swiglu", "mlp_conv": 2, "bias": True, "tie_weights": True},
    "sinusoidal": {"position": "sinusoidal", "norm": "rmsnorm", "mlp": "relu2", "mlp_width": 40, "norm_eps": 1e-3},
    "long": {"block_size": 700, "position": "rope", "rope_theta": 50.0, "n_kv_head": 1},
}


@pytest.fixture(scope="module", autouse=True)
def modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the copies of code that transformers makes out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        cache = str(tmp_path_factory.mktemp("modules"))
        patch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", cache)
        patch.setattr(sys, "path", [*sys.path])
        yield


def save(model: GPT, folder: Path, **params: Any) -> Path:
    for name, content in export_files(model, CHARS, SamplingParams(**params), "# card\n").items():
        (folder / name).write_bytes(content)
    return folder


def load(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)


def greedy(model: GPT, prompt: Tensor, count: int) -> list[int]:
    return list(generate_tokens(model, prompt.tolist(), SamplingParams(max_new_tokens=count, temperature=0.0)))


def some_ids(*shape: int) -> Tensor:
    return torch.randint(23, shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("changes", MODELS.values(), ids=MODELS.keys())
@torch.no_grad()
def test_transformers_computes_the_same_and_so_does_what_it_saves(changes: dict[str, object], tmp_path: Path) -> None:
    model = sharp_model(std=0.1, **changes)
    theirs = load(save(model, tmp_path))
    idx = some_ids(2, model.config.block_size)
    expected = model(idx)
    torch.testing.assert_close(theirs(idx).logits, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(theirs(idx, logits_to_keep=2).logits, expected[:, -2:], atol=1e-5, rtol=0)
    loss = F.cross_entropy(expected[:, :-1].flatten(0, 1), idx[:, 1:].flatten())
    torch.testing.assert_close(theirs(idx, labels=idx).loss, loss)
    theirs.save_pretrained(tmp_path / "saved")
    saved = tmp_path / "saved/config.json"  # version 4 leaves out what is its default, and 5 has another one
    saved.write_text(re.sub(r'\s*"tie_word_embeddings": true,', "", saved.read_text()))
    torch.testing.assert_close(load(tmp_path / "saved")(idx).logits, theirs(idx).logits, atol=0, rtol=0)
    transformers.AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=True).save_pretrained(tmp_path / "saved")
    for folder in (tmp_path, tmp_path / "saved"):
        torch.testing.assert_close(import_folder(folder)[0](idx), expected, atol=0, rtol=0)


def test_texts_are_equal_with_and_without_a_cache_in_padded_batches_and_in_beams(tmp_path: Path) -> None:
    model = sharp_model(block_size=128, **SHAKESPEARE)
    theirs = load(save(model, tmp_path, temperature=0, max_new_tokens=500))
    prompts = [some_ids(2), some_ids(11)]
    expected = [greedy(model, prompt, 100) for prompt in prompts]
    calls = []
    theirs.model.register_forward_pre_hook(lambda _, inputs: calls.append(inputs[0].size(1)))
    assert theirs.generate(prompts[0][None], max_new_tokens=100)[0, 2:].tolist() == expected[0]
    assert calls == [2] + [1] * 99
    assert theirs.generate(prompts[0][None], max_new_tokens=30, use_cache=False)[0, 2:].tolist() == expected[0][:30]
    assert theirs.generate(prompts[1][None]).size(1) == 11 + 64  # half of the window, and so not past its end
    padded = torch.stack([F.pad(prompt, (11 - len(prompt), 0)) for prompt in prompts])
    is_token = torch.stack([F.pad(torch.ones_like(prompt), (11 - len(prompt), 0)) for prompt in prompts])
    texts = theirs.generate(padded, attention_mask=is_token, max_new_tokens=100)
    assert texts[:, 11:].tolist() == expected
    beams, slow = (theirs.generate(padded[1:], num_beams=3, max_new_tokens=20, use_cache=use) for use in (True, False))
    assert beams.tolist() == slow.tolist()
    assert beams[0, 11:].tolist() != expected[1][:20]  # so that beams are reordered


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.1), ("float16", 0.02)])
@torch.no_grad()
def test_a_text_in_pieces_and_with_padding_on_its_right_has_the_same_logits(
    dtype: str, tolerance: float, tmp_path: Path
) -> None:
    model = sharp_model(std=0.1, **SHAKESPEARE)
    theirs, idx = load(save(model, tmp_path)).to(getattr(torch, dtype)), some_ids(1, 12)
    expected, past, pieces = model(idx), None, []
    for piece in idx.split([5, 1, 4, 2], dim=1):
        output = theirs(piece, past_key_values=past)
        past = output.past_key_values
        pieces.append(output.logits.float())
    torch.testing.assert_close(torch.cat(pieces, dim=1), expected, atol=tolerance, rtol=0)
    padded, is_token = F.pad(idx, (0, 3)), F.pad(torch.ones_like(idx), (0, 3))
    padded_logits = theirs(padded, attention_mask=is_token).logits.float()
    torch.testing.assert_close(padded_logits[:, :12], expected, atol=tolerance, rtol=0)


def test_a_smaller_model_assists_without_changing_the_text(tmp_path: Path) -> None:
    model, drafting = sharp_model(block_size=128, **SHAKESPEARE), sharp_model(seed=5, block_size=128)
    for name in ("model", "drafting"):
        (tmp_path / name).mkdir()
    theirs, prompt = load(save(model, tmp_path / "model")), some_ids(1, 4)
    assistant = load(save(drafting, tmp_path / "drafting"))
    found = theirs.generate(prompt, assistant_model=assistant, max_new_tokens=40, do_sample=False)
    assert found[0, 4:].tolist() == greedy(model, prompt[0], 40)


def test_what_the_code_does_not_compute_is_refused(tmp_path: Path) -> None:
    theirs, idx = load(save(sharp_model(**SHAKESPEARE), tmp_path)), some_ids(1, 9)
    with pytest.raises(ValueError, match="17 tokens do not fit the window of 16; lower max_new_tokens, or give fewer"):
        theirs.generate(idx, max_new_tokens=9)
    with pytest.raises(ValueError, match="this model has no static cache"):
        theirs.generate(idx, max_new_tokens=2, cache_implementation="static")
    with pytest.raises(ValueError, match=r"attention_mask must be \(1, 9\), not \(1, 8\)"):
        theirs(idx, attention_mask=torch.ones(1, 8))
    with pytest.raises(ValueError, match="this model has no output_hidden_states"):
        theirs(idx, output_hidden_states=True)


@pytest.mark.parametrize("mlp_conv", [None, 3])
@pytest.mark.parametrize("variant", VARIANTS, ids=name_of)
def test_the_code_computes_every_variant(variant: tuple[Any, ...], mlp_conv: int | None, tmp_path: Path) -> None:
    model = sharp_model(**keys_of(variant), mlp_conv=mlp_conv)
    assert check_folder(save(model, tmp_path), model) < 1e-6


def test_an_edit_of_the_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    EDITS["attention times zero"](monkeypatch)
    model = sharp_model(**SHAKESPEARE)
    with pytest.raises(InputError, match=r"Block of gpt/model/gpt\.py was replaced"):
        check_folder(save(model, tmp_path), model)


@pytest.mark.slow
def test_a_folder_loads_where_this_package_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "Träume 1.2-hf"
    folder.mkdir()
    model = sharp_model(**SHAKESPEARE)
    code = """if True:
        import sys
        sys.modules["gpt"] = None  # whose import then fails
        from transformers import AutoModelForCausalLM, AutoTokenizer
        tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=True)
        model = AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True)
        ids = tokenizer("abc", return_tensors="pt").input_ids
        print("text:", *model.generate(ids, max_new_tokens=12)[0, 3:].tolist())
    """
    where = {"HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", code, save(model, folder, temperature=0)],
        cwd=tmp_path,
        env={**os.environ, **where},
        capture_output=True,
        text=True,
        check=True,
    )
    expected = greedy(model, CHARS.encode("abc"), 12)
    assert f"text: {' '.join(map(str, expected))}\n" in done.stdout
