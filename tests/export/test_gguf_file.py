"""GGUF files: read by the library of the format, and run by llama.cpp where it is installed."""

import copy
import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gguf
import jinja2
import pytest
import torch
import transformers
from torch import Tensor

from gpt.config import SampleConfig, SamplingParams
from gpt.data.bpe import BPETokenizer, learn_bpe
from gpt.data.pairs import ANSWER, END_OF_TEXT, TURN
from gpt.data.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer
from gpt.data.words import learn_words
from gpt.extras.export.gguf_file import gguf_tokens, not_in_file, write_gguf
from gpt.generation.generator import generate_tokens
from gpt.model import GPT
from gpt.system.errors import InputError
from tiny import CORPUS, sharp_model

CHARS = CharTokenizer("abcdefghijklmnopqrs\né?")
BPE = learn_bpe([CORPUS], 300)
LLAMA: dict[str, object] = {"position": "rope", "norm": "rmsnorm", "mlp": "swiglu"}
GPT2 = {"mlp": "gelu_tanh"}
TIED = LLAMA | {"n_kv_head": 2, "tie_weights": True}
VARIANTS: list[tuple[str, dict[str, object]]] = [
    ("gpt2", GPT2),
    ("gpt2", GPT2 | {"position": "sinusoidal", "bias": True, "tie_weights": True}),
    ("llama", TIED),
    ("llama", LLAMA | {"bias": True, "mlp_width": 96}),
    ("qwen3", LLAMA | {"qk_norm": True, "n_kv_head": 1}),
    ("qwen3", TIED | {"qk_norm": True, "norm_eps": 0.1, "rope_theta": 50.0}),
]
TEXT_OF_PAIRS = "The keeper's ROOM'S 12345\n\n  It was  naïve, 你好 🎭 she'll...\t\n x "


def logits_of(file: Path, idx: Tensor, expected_kind: str) -> Tensor:
    """What the file's architecture, in transformers, computes of its sizes and tensors."""
    reader: Any = gguf.GGUFReader(file)
    fields = {name.partition(".")[2]: field.contents() for name, field in reader.fields.items()}
    kind = fields["architecture"]
    layers = fields["block_count"]
    vocab = fields["vocab_size"]
    assert (kind, fields["name"], fields["context_length"]) == (
        expected_kind,
        "a name",
        idx.size(1),
    )
    if kind == "gpt2":  # whose activation is the tanh form there
        sizes = {
            "n_positions": fields["context_length"],
            "n_embd": fields["embedding_length"],
            "n_layer": layers,
        }
        sizes |= {
            "n_head": fields["attention.head_count"],
            "n_inner": fields["feed_forward_length"],
        }
        sizes |= {"layer_norm_epsilon": fields["attention.layer_norm_epsilon"]}
    else:
        sizes = {
            "hidden_size": fields["embedding_length"],
            "intermediate_size": fields["feed_forward_length"],
        }
        sizes |= {
            "num_hidden_layers": layers,
            "num_attention_heads": fields["attention.head_count"],
        }
        sizes |= {
            "num_key_value_heads": fields["attention.head_count_kv"],
            "head_dim": fields["attention.key_length"],
        }
        sizes |= {"rms_norm_eps": fields["attention.layer_norm_rms_epsilon"]}
        sizes |= {
            "rope_parameters": {"rope_type": "default", "rope_theta": fields["rope.freq_base"]}
        }
        has_bias = any(tensor.name.endswith("attn_q.bias") for tensor in reader.tensors)
        sizes |= {"attention_bias": has_bias, **({"mlp_bias": has_bias} if kind == "llama" else {})}
    tensors = {
        each.name: torch.tensor(gguf.quants.dequantize(each.data, each.tensor_type))
        for each in reader.tensors
    }
    tied = "output.weight" not in tensors
    config = transformers.AutoConfig.for_model(
        kind, vocab_size=vocab, tie_word_embeddings=tied, **sizes
    )
    model: Any = transformers.AutoModelForCausalLM.from_config(config).eval()
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, kind.upper()), layers)
    for name, parameter in model.named_parameters():
        tensor = tensors.pop(names.get_name(name, try_suffixes=(".weight", ".bias")))
        if kind == "llama" and (
            "q_proj" in name or "k_proj" in name
        ):  # llama.cpp rotates neighbors
            tensor = tensor.view(
                -1, fields["attention.key_length"] // 2, 2, *tensor.shape[1:]
            ).transpose(1, 2)
        matrix_in_block = kind == "gpt2" and ".h." in name and tensor.dim() == 2
        parameter.data = (
            tensor.T if matrix_in_block else tensor.reshape(parameter.shape)
        ).contiguous()
    assert not tensors
    return model(idx).logits


def rounded(model: GPT) -> GPT:
    """The model with its matrices as q8_0 has them, where a row is of whole blocks."""
    model, q8_0 = copy.deepcopy(model), gguf.GGMLQuantizationType.Q8_0
    for name, weight in model.named_parameters():
        if weight.dim() == 2 and weight.size(1) % 32 == 0 and "wpe" not in name:
            quantized = gguf.quants.quantize(weight.detach().numpy(), q8_0)
            weight.data = torch.from_numpy(gguf.quants.dequantize(quantized, q8_0))
    return model


@pytest.mark.parametrize(("kind", "changes"), VARIANTS)
@torch.no_grad()
def test_file_computes_what_its_model_does(
    kind: str, changes: dict[str, object], tmp_path: Path
) -> None:
    model = sharp_model(std=0.1, **changes)
    idx = torch.randint(
        model.vocab_size, (2, model.config.block_size), generator=torch.Generator().manual_seed(1)
    )
    for weights, expected in (("float32", model), ("q8_0", rounded(model))):
        write_gguf(tmp_path / "x.gguf", model, CHARS, weights, "a name")
        torch.testing.assert_close(
            logits_of(tmp_path / "x.gguf", idx, kind), expected(idx), atol=1e-5, rtol=0
        )


def test_tokens_merges_and_the_end_of_a_text_are_written(tmp_path: Path) -> None:
    assert gguf_tokens(CharTokenizer("aé\n")).texts == [b"\\x0a", b"\\x61", b"\\xc3\\xa9"]
    assert gguf_tokens(ByteTokenizer()).texts[255] == b"\\xff"
    model = sharp_model(vocab_size=BPE.vocab_size + 2, mlp="gelu_tanh")
    write_gguf(tmp_path / "x.gguf", model, BPE, "float32", "x")
    reader: Any = gguf.GGUFReader(tmp_path / "x.gguf")
    header = {
        name.removeprefix("tokenizer.ggml."): field.contents()
        for name, field in reader.fields.items()
    }
    assert (header["model"], header["pre"], header["add_bos_token"]) == ("gpt2", "gpt-2", False)
    assert header["tokens"][header["eos_token_id"]] == "ÿ"  # byte 255, which no text has
    assert header["tokens"][-1] == "[beyond1]"
    assert header["merges"][0].split(" ") == BPE.to_dict()["tokenizer"]["model"]["merges"][0]
    assert gguf_tokens(BPE, end_id=7).end_id == 7
    split_otherwise = BPETokenizer(BPE.to_dict()["tokenizer"] | {"pre_tokenizer": None})
    with pytest.raises(
        InputError, match=r"llama\.cpp has byte pair encoding only with words as of GPT-2"
    ):
        gguf_tokens(split_otherwise)
    words = learn_words(lambda: [CORPUS], 30)
    with pytest.raises(InputError, match=r"llama\.cpp has no tokenizer of words.*; use --to hf"):
        gguf_tokens(words)


def header_of(file: Path) -> dict[str, Any]:
    """Return what a file says of its tokenizer."""
    reader: Any = gguf.GGUFReader(file)
    fields = {name.removeprefix("tokenizer."): each for name, each in reader.fields.items()}
    return {name.removeprefix("ggml."): each.contents() for name, each in fields.items()}


MARKS = [END_OF_TEXT, ANSWER, TURN]
MARKED = CharTokenizer([*"abcdef\n", *MARKS])


@pytest.mark.parametrize(("tokenizer", "adds_begin"), [(MARKED, False), (BPE, True)])
def test_answer_begins_and_ends_at_the_marks_of_its_run(
    tokenizer: Tokenizer, adds_begin: bool, tmp_path: Path
) -> None:
    end, turn = (int(tokenizer.encode(mark)[0]) for mark in (END_OF_TEXT, TURN))
    params = SampleConfig(begin_id=end, end_id=end, stop=(TURN,))
    model = sharp_model(vocab_size=tokenizer.vocab_size, mlp="gelu_tanh")
    write_gguf(tmp_path / "x.gguf", model, tokenizer, "float32", "x", params)
    header = header_of(tmp_path / "x.gguf")
    assert (header["bos_token_id"], header["eos_token_id"]) == (end, end)
    assert header["eot_token_id"] == turn
    assert header["add_bos_token"] == adds_begin
    messages = [{"role": "user", "content": "ab"}]
    written = jinja2.Template(header["chat_template"]).render(
        messages=messages, bos_token=END_OF_TEXT, eos_token=END_OF_TEXT
    )
    assert written == f"{END_OF_TEXT}ab{ANSWER}"
    assert not_in_file(tokenizer, params) == []


def test_item_of_a_list_ends_at_its_mark_and_begins_with_the_prompt_s(tmp_path: Path) -> None:
    params = SampleConfig(begin_id=0, end_id=0)
    model = sharp_model(vocab_size=MARKED.vocab_size, mlp="gelu_tanh")
    write_gguf(tmp_path / "x.gguf", model, MARKED, "float32", "x", params)
    header = header_of(tmp_path / "x.gguf")
    assert (header["bos_token_id"], header["eos_token_id"]) == (0, 0)
    assert not {"eot_token_id", "chat_template"} & header.keys()
    (said,) = not_in_file(MARKED, params)
    assert said.endswith(r'(begin a prompt with "\n")')
    assert not_in_file(BPE, params) == []


def test_file_is_refused_without_the_library_or_an_architecture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = (
        r"^llama\.cpp has .* with model\.mlp=gelu_tanh model\.qk_norm=false, as .*, or export "
        r"it --to html$"
    )
    with pytest.raises(InputError, match=message):
        write_gguf(
            tmp_path / "x.gguf", sharp_model(mlp="relu2", qk_norm=True), CHARS, "float32", "x"
        )
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(InputError, match=re.escape("glassgpt[gguf]")):
        write_gguf(tmp_path / "x.gguf", sharp_model(), CHARS, "float32", "x")
    assert list(tmp_path.iterdir()) == []


RUN = """
import json, sys, llama_cpp
model = llama_cpp.Llama(sys.argv[1], n_ctx=256, verbose=False, type_k=0, type_v=0)
ids = model.tokenize(sys.argv[2].encode(), add_bos=False)
text = model.create_completion(sys.argv[2], max_tokens=200, temperature=0.0, repeat_penalty=1.0)
print(json.dumps({"ids": ids, "text": text["choices"][0]["text"]}))
"""


@pytest.mark.skipif(
    find_spec("llama_cpp") is None, reason="needs llama-cpp-python: pip install 'glassgpt[llama]'"
)
@pytest.mark.parametrize(
    ("tokenizer", "prompt", "changes"),
    [
        *((CHARS, "abadcabé?", changes) for changes in (GPT2, TIED, VARIANTS[-2][1])),
        (BPE, TEXT_OF_PAIRS, GPT2 | {"vocab_size": 300}),
    ],
)
def test_llama_cpp_writes_the_same_greedy_text(
    tokenizer: Tokenizer, prompt: str, changes: dict[str, object], tmp_path: Path
) -> None:
    model = sharp_model(block_size=256, **changes)
    ids = tokenizer.encode(prompt).tolist()
    write_gguf(tmp_path / "x.gguf", model, tokenizer, "float32", "x")
    # The library is asked for a character that the vocabulary lacks.
    unknown = prompt.replace("?", "#") if tokenizer is CHARS else prompt
    command = [sys.executable, "-c", RUN, str(tmp_path / "x.gguf"), unknown]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    end = gguf_tokens(tokenizer).end_id
    greedy = generate_tokens(
        model, ids, SamplingParams(max_new_tokens=200, temperature=0.0, end_id=end)
    )
    text = b"".join(tokenizer.token_bytes(index) for index in greedy if index != end).decode(
        errors="ignore"
    )
    assert json.loads(printed.splitlines()[-1]) == {"ids": ids, "text": text}
