"""Folders for transformers: logits, texts and ids, as it computes them; and imports."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from gpt.config import SamplingParams
from gpt.data.bpe import learn_bpe
from gpt.data.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer
from gpt.generation import generate_tokens
from gpt.interop.hugging_face import export_files, import_folder, read_end_id
from gpt.model import GPT
from gpt.model.quantized import quantize
from gpt.system.errors import InputError
from tiny import sharp_model

CHARS = CharTokenizer("abcdefghijklmnopqrst \n?")
LLAMA: dict[str, object] = {"position": "rope", "norm": "rmsnorm", "mlp": "swiglu"}
VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    "gpt": ("GPT2", {}),
    "gpt-biases-tied": ("GPT2", {"bias": True, "tie_weights": True, "mlp": "gelu_tanh"}),
    "gpt-relu": ("GPT2", {"mlp": "relu", "mlp_width": 40, "norm_eps": 1e-3}),
    "sinusoidal-relu2": ("GPT2", {"position": "sinusoidal", "mlp": "relu2"}),
    "llama": ("Llama", LLAMA),
    "llama-grouped-tied-biases": ("Llama", LLAMA | {"n_kv_head": 2, "tie_weights": True, "bias": True}),
    "llama-theta-eps": ("Llama", LLAMA | {"rope_theta": 500.0, "norm_eps": 1e-3, "mlp_width": 72}),
    "qwen": ("Qwen3", LLAMA | {"qk_norm": True, "n_kv_head": 1}),
}


def save(model: GPT, folder: Path, tokenizer: Tokenizer = CHARS, **params: Any) -> Path:
    for name, content in export_files(model, tokenizer, SamplingParams(**params)).items():
        (folder / name).write_bytes(content)
    return folder


def sequences(model: GPT) -> Tensor:
    return torch.randint(model.vocab_size, (3, model.config.block_size), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("family", "changes"), VARIANTS.values(), ids=VARIANTS.keys())
@torch.no_grad()
def test_transformers_computes_the_same(family: str, changes: dict[str, object], tmp_path: Path) -> None:
    model = sharp_model(std=0.1, block_size=64, **changes)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(save(model, tmp_path))
    assert type(theirs).__name__ == {"GPT2": "GPT2LMHeadModel"}.get(family, f"{family}ForCausalLM")
    idx = sequences(model)
    torch.testing.assert_close(theirs(idx).logits, model(idx), atol=1e-5, rtol=0)
    again, tokenizer = import_folder(tmp_path)
    assert tokenizer.to_dict() == CHARS.to_dict()
    assert not again.training
    torch.testing.assert_close(again(idx), model(idx), atol=0, rtol=0)


def test_a_greedy_text_of_200_tokens_is_equal(tmp_path: Path) -> None:
    model = sharp_model(block_size=256, **VARIANTS["qwen"][1])
    folder = save(model, tmp_path, temperature=0)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer("a bad cab", return_tensors="pt").input_ids
    text = theirs.generate(prompt, max_new_tokens=200)[0].tolist()
    ours = generate_tokens(model, prompt[0].tolist(), SamplingParams(max_new_tokens=200, temperature=0.0))
    assert text[prompt.size(1) :] == list(ours)
    assert tokenizer.decode(text) == CHARS.decode(text)


def whole_text() -> str:
    """Tiny Shakespeare where it is, otherwise the documentation that comes with Python."""
    file = Path(os.environ.get("GPT_DATA_DIR", "data")) / "tinyshakespeare.txt"
    return file.read_text(encoding="utf-8") if file.is_file() else "".join(topics.values())


TEXT = whole_text()


@pytest.mark.parametrize("kind", ["char", "byte", "bpe"])
def test_ids_of_a_whole_text_survive_the_way_there_and_back(kind: str, tmp_path: Path) -> None:
    learned: dict[str, Callable[[], Tokenizer]] = {
        "char": lambda: CharTokenizer(TEXT),
        "byte": ByteTokenizer,
        "bpe": lambda: learn_bpe([TEXT[:100_000]], 512),
    }
    tokenizer = learned[kind]()
    save(sharp_model(vocab_size=tokenizer.vocab_size), tmp_path, tokenizer)
    ids = tokenizer.encode(TEXT).tolist()
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(TEXT, verbose=False).input_ids == ids
    assert theirs.decode(ids) == TEXT
    _, again = import_folder(tmp_path)
    assert again.to_dict() == tokenizer.to_dict()
    assert again.encode(TEXT).tolist() == ids
    assert again.decode(ids) == TEXT


def test_sampling_defaults_travel_along(tmp_path: Path) -> None:
    defaults = {"temperature": 0.7, "top_k": 9, "top_p": 0.8, "max_new_tokens": 33}
    save(sharp_model(block_size=66), tmp_path, **defaults)
    config = transformers.GenerationConfig.from_pretrained(tmp_path)
    assert {name: getattr(config, name) for name in ("do_sample", *defaults)} == {"do_sample": True, **defaults}


def test_the_token_that_ends_a_text_travels_along(tmp_path: Path) -> None:
    save(sharp_model(), tmp_path, end_id=3)
    assert transformers.GenerationConfig.from_pretrained(tmp_path).eos_token_id == 3
    assert read_end_id(tmp_path, 23) == 3
    for ids, first in (([5, 7], 5), (50256, 3), ([], 3), (None, 3)):
        edit(tmp_path / "generation_config.json", eos_token_id=ids)
        assert read_end_id(tmp_path, 23) == first
    (tmp_path / "generation_config.json").write_text("[1]")
    with pytest.raises(InputError, match=r"generation_config\.json is not a JSON object$"):
        read_end_id(tmp_path, 23)


def gpt2(**changes: Any) -> Any:
    sizes = {"vocab_size": 256, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **changes))


def llama_like(name: str, **changes: Any) -> Any:
    sizes = {"vocab_size": 256, "max_position_embeddings": 32, "hidden_size": 32, "intermediate_size": 48}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    config = getattr(transformers, f"{name}Config")(**(sizes | heads | changes))
    return getattr(transformers, f"{name}ForCausalLM")(config)


MODELS = {
    "gpt2": lambda: gpt2(),
    "gpt2-untied": lambda: gpt2(tie_word_embeddings=False, activation_function="gelu", n_inner=40),
    "llama": lambda: llama_like("Llama"),
    "llama-biases": lambda: llama_like("Llama", attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "llama-attention-biases": lambda: llama_like("Llama", attention_bias=True, rms_norm_eps=1e-3),
    "llama-theta": lambda: llama_like("Llama", rope_parameters={"rope_type": "default", "rope_theta": 777.0}),
    "qwen3": lambda: llama_like("Qwen3"),
}


@pytest.mark.parametrize("shards", ["10GB", "20KB"])
@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS.keys())
@torch.no_grad()
def test_a_model_of_transformers_is_imported(build: Any, shards: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs = build().eval()
    for parameter in theirs.parameters():
        parameter += 0.1 * torch.randn_like(parameter)  # norms and biases too
    theirs.save_pretrained(tmp_path, max_shard_size=shards)
    assert (tmp_path / "model.safetensors.index.json").exists() == (shards == "20KB")
    add_byte_tokenizer(tmp_path)
    model, tokenizer = import_folder(tmp_path)
    assert isinstance(tokenizer, ByteTokenizer)
    idx = sequences(model)
    torch.testing.assert_close(model(idx), theirs(idx).logits, atol=1e-5, rtol=0)


def add_byte_tokenizer(folder: Path) -> None:
    byte_files = export_files(sharp_model(vocab_size=256), ByteTokenizer(), SamplingParams())
    (folder / "tokenizer.json").write_bytes(byte_files["tokenizer.json"])


@torch.no_grad()
def test_a_model_saved_without_its_head_is_imported(tmp_path: Path) -> None:
    theirs = gpt2().eval()
    theirs.transformer.save_pretrained(tmp_path)
    edit(tmp_path / "config.json", architectures=["GPT2LMHeadModel"])
    add_byte_tokenizer(tmp_path)
    model, _ = import_folder(tmp_path)
    idx = sequences(model)
    torch.testing.assert_close(model(idx), theirs(idx).logits, atol=1e-5, rtol=0)


def edit(file: Path, **fields: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"architectures": ["BertModel"]}, "BertModel is not supported; GPT2LMHeadModel, LlamaForCausalLM"),
        ({"architectures": None}, "is not supported"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type is 'yarn', which is not supported"),
        ({"quantization_config": {"quant_method": "awq"}}, "its weights are quantized"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', which is not supported; silu is"),
        ({"head_dim": 16}, "head_dim is 16"),
        ({"use_sliding_window": True}, "use_sliding_window is True"),
        ({"hidden_size": "wide"}, "config.json"),
        ({"num_key_value_heads": 3}, "not divisible by n_kv_head 3"),
        ({"vocab_size": 5}, "the tokenizer has 23 ids, the model 5"),
        ({"num_hidden_layers": 10**9}, "n_layer: Input should be less"),
        ({"num_hidden_layers": 3}, "has 3 layers, the weights 2"),
        ({"hidden_size": 10**18, "head_dim": None}, "is not what it should be"),
        ({"vocab_size": 2**62}, "is not what it should be|has shape"),
        ({"vocab_size": None}, "the model None"),
        ({"max_position_embeddings": 2**62}, "is not what it should be|has shape"),
        ({"max_position_embeddings": 10**7}, "absurd block_size|has shape"),
        ({"rope_parameters": {"rope_theta": "abc"}}, "is not what it should be"),
        ({"rope_parameters": {"rope_theta": 10**400}}, "is not what it should be"),
        ({"intermediate_size": 24}, r"gate_proj.weight has shape .* which does not fit the configuration"),
    ],
)
def test_what_is_not_computed_is_refused(fields: dict[str, object], message: str, tmp_path: Path) -> None:
    save(sharp_model(**LLAMA), tmp_path)
    edit(tmp_path / "config.json", **fields)
    with pytest.raises(InputError, match=message):
        import_folder(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
@pytest.mark.parametrize("damage", [None, lambda content: b"", lambda content: content[:100], lambda _: b"[" * 100_000])
def test_a_missing_or_damaged_file_is_named(name: str, damage: Callable[[bytes], bytes] | None, tmp_path: Path) -> None:
    file = save(sharp_model(**LLAMA), tmp_path) / name
    if damage is None:
        file.unlink()
    else:
        file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(InputError, match=name):
        import_folder(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    llama_like("Llama").save_pretrained(tmp_path, max_shard_size="20KB")
    add_byte_tokenizer(tmp_path)
    next(tmp_path.glob("model-00002-*")).unlink()
    with pytest.raises(InputError, match="has no model-00002-of"):
        import_folder(tmp_path)


@pytest.mark.parametrize("index", [{}, [], {"weight_map": {"a": "../x"}}, {"weight_map": 3}])
def test_an_index_that_is_none_is_refused(index: object, tmp_path: Path) -> None:
    save(sharp_model(**LLAMA), tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError):
        import_folder(tmp_path)


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"qk_norm": True}, "model.qk_norm=false"),
        (
            {"qk_norm": True, "norm": "rmsnorm"},
            "model.norm=layernorm model.qk_norm=false or with model.position=rope model.mlp=swiglu",
        ),
        ({"position": "rope"}, "model.position=learned"),
        ({"n_kv_head": 2}, "model.n_kv_head=null"),
        (LLAMA | {"norm": "layernorm"}, "model.norm=rmsnorm"),
        (LLAMA | {"qk_norm": True, "bias": True}, "model.qk_norm=false or with model.bias=false"),
    ],
)
def test_what_transformers_has_no_architecture_for_is_refused(
    changes: dict[str, object], remedy: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as error:
        save(sharp_model(**changes), tmp_path)
    assert str(error.value) == (
        f"transformers has no architecture that computes this model; train one with {remedy}, as the recipe "
        "shakespeare does, or export it --to html"
    )
    assert list(tmp_path.iterdir()) == []


def test_quantized_weights_are_refused() -> None:
    with pytest.raises(InputError, match="the weights are int8"):
        export_files(quantize(sharp_model(), "int8"), CHARS, SamplingParams())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(value: float, tmp_path: Path) -> None:
    model = sharp_model(**LLAMA)
    model.ln_f.weight.data[3] = value
    save(model, tmp_path)
    with pytest.raises(InputError, match=r"model\.norm\.weight has values that are not finite"):
        import_folder(tmp_path)
