"""A model with its tokenizer as one GGUF file, which llama.cpp and the programs built on it run."""

from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor

from gpt.config import ModelConfig
from gpt.data.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer
from gpt.errors import InputError
from gpt.interop.architectures import architecture_for, gpt2_entries
from gpt.interop.hugging_face import require_float32, weights_with_positions
from gpt.interop.tensors import to_theirs
from gpt.model import GPT

ARCHITECTURES = {"GPT2LMHeadModel": "gpt2", "LlamaForCausalLM": "llama", "Qwen3ForCausalLM": "qwen3"}
"""Names in transformers, and in GGUF."""
WEIGHTS = ("float32", "q8_0")
"""Formats of the matrices; q8_0 is 8 bits with a float16 scale for each 32 values of a row. Vectors are float32."""
Q8_BLOCK = 32
NORMAL, UNUSED = 1, 5
"""Types of tokens, as GGUF numbers them."""


def write_gguf(path: Path, model: GPT, tokenizer: Tokenizer, weights: str, name: str) -> None:
    """Write a model as a GGUF file.

    Args:
        path: path of the file.
        model: with weights that are not quantized.
        tokenizer: the one it was trained with, of characters or bytes.
        weights: one of `WEIGHTS`.
        name: name of the model.

    Raises:
        InputError: GGUF cannot express the model or its tokenizer, or the gguf package is missing.
        OSError: the file cannot be written.
    """
    try:
        library: Any = import_module("gguf")
    except ModuleNotFoundError:
        raise InputError("exporting to GGUF needs the gguf package: pip install 'gpt[gguf]'") from None
    require_float32(model)
    config, kind = model.config, ARCHITECTURES[architecture_for(model.config).name]
    if kind == "gpt2" and config.mlp not in ("gelu", "gelu_tanh"):
        raise InputError(f"llama.cpp has no {config.mlp} in GPT-2's layout; train with model.mlp=gelu_tanh")
    tokens = rwkv_tokens(tokenizer)
    writer = library.GGUFWriter(path, kind)
    try:
        writer.add_name(name)
        _add_sizes(writer, config, kind)
        _add_tokens(writer, tokens, tokenizer, model.vocab_size - len(tokens))
        architecture = getattr(library.MODEL_ARCH, kind.upper())
        names = library.get_tensor_name_map(architecture, config.n_layer)
        q8_0, float32 = library.GGMLQuantizationType.Q8_0, library.GGMLQuantizationType.F32
        for theirs, tensor in gguf_tensors(model, kind).items():
            fits = weights == "q8_0" and tensor.dim() == 2 and tensor.size(1) % Q8_BLOCK == 0
            stored = q8_0 if fits and "wpe" not in theirs else float32
            gguf_name = names.get_name(theirs, try_suffixes=(".weight", ".bias"))
            writer.add_tensor(gguf_name, library.quants.quantize(tensor.numpy(), stored), raw_dtype=stored)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def gguf_tensors(model: GPT, kind: str) -> dict[str, Tensor]:
    """Return float32 tensors by transformers' names, matrices (out, in).

    In architecture "llama" the rows of queries and keys are interleaved: it rotates neighbors, as Meta's weights do.
    """
    config, weights = model.config, weights_with_positions(model)
    if kind == "gpt2":
        return to_theirs(gpt2_entries(config, "transformer.", transposed=False, bias=True), weights)
    tensors = to_theirs(architecture_for(config).entries(config), weights)
    if kind == "llama":
        for name, tensor in tensors.items():
            if "q_proj" in name or "k_proj" in name:
                tensors[name] = interleave_halves(tensor, config.n_head if "q_proj" in name else config.kv_heads)
    return tensors


def interleave_halves(weight: Tensor, heads: int) -> Tensor:
    """Reorder the rows of each head so that those that rotary positions pair, `i` and `i + D/2`, become neighbors.

    Takes and returns (H D, C), or (H D,) for a bias.
    """
    return weight.view(heads, 2, -1, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


def rwkv_tokens(tokenizer: Tokenizer) -> list[bytes]:
    """Return the tokens as GGUF's tokenizer `rwkv` has them: escaped bytes, of which the longest match is taken.

    It is the one of GGUF's tokenizers that needs no token for the end of a text.

    Raises:
        InputError: the tokenizer is of another kind.
    """
    if isinstance(tokenizer, CharTokenizer | ByteTokenizer):
        return [_escaped(tokenizer.token_bytes(index)) for index in range(tokenizer.vocab_size)]
    raise InputError("a GGUF file has tokenizers of characters and bytes, and this model has byte pair encoding")


def _escaped(token: bytes) -> bytes:
    return "".join(f"\\x{byte:02x}" for byte in token).encode()


def _add_sizes(writer: Any, config: ModelConfig, kind: str) -> None:
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.block_size)
    writer.add_embedding_length(config.n_embd)
    writer.add_block_count(config.n_layer)
    writer.add_feed_forward_length(config.mlp_hidden)
    writer.add_head_count(config.n_head)
    if kind == "gpt2":
        writer.add_layer_norm_eps(config.norm_eps)
        return
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_rope_dimension_count(config.head_dim)


def _add_tokens(writer: Any, tokens: list[bytes], tokenizer: Tokenizer, unused: int) -> None:
    """Add the vocabulary; a model may have more ids than its tokenizer."""
    writer.add_tokenizer_model("rwkv")
    writer.add_token_list([*tokens, *(f"[unused{index}]".encode() for index in range(unused))])
    writer.add_token_types([NORMAL] * len(tokens) + [UNUSED] * unused)
    if isinstance(tokenizer, CharTokenizer):
        writer.add_unk_token_id(tokenizer.stoi[tokenizer.replacement])
