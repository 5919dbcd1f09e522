"""A model with its tokenizer as one GGUF file, which llama.cpp and the programs built on it run."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from gpt.config import ModelConfig
from gpt.data.bpe import BPETokenizer, byte_symbols
from gpt.data.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer
from gpt.extras.export.architectures import architecture_for, gpt2_entries
from gpt.extras.export.hugging_face import require_float32, weights_with_positions
from gpt.extras.export.tensors import to_theirs
from gpt.extras.export.tokenizer_json import merges_of, require_gpt2_words
from gpt.model import GPT
from gpt.system.errors import InputError

ARCHITECTURES = {
    "GPT2LMHeadModel": "gpt2",
    "LlamaForCausalLM": "llama",
    "Qwen3ForCausalLM": "qwen3",
}
"""Names in transformers, and in GGUF."""
WEIGHTS = ("float32", "q8_0")
"""Formats of the matrices; q8_0 is 8 bits with a float16 scale for each 32 values of a row. Vectors are float32."""
Q8_BLOCK = 32
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""Types of tokens, as GGUF numbers them."""


class GGUFTokens(NamedTuple):
    """A vocabulary."""

    model: str  # what applies it: "rwkv" takes the longest match, "gpt2" merges pairs
    texts: list[bytes]  # the tokens, as `model` writes them
    types: list[int]
    unknown_id: int | None = None  # token for what has none
    end_id: int | None = None  # token that ends a text; "gpt2" always has one
    merges: tuple[str, ...] = ()  # pairs to merge, first come the most frequent


def write_gguf(
    path: Path, model: GPT, tokenizer: Tokenizer, weights: str, name: str, end_id: int | None = None
) -> None:
    """Write a model as a GGUF file; `weights` is one of `WEIGHTS`, `end_id` the token that ends a text."""
    try:
        library: Any = import_module("gguf")
    except ModuleNotFoundError:
        raise InputError(
            "exporting to GGUF needs the gguf package: pip install 'glassgpt[gguf]'"
        ) from None
    require_float32(model)
    config = model.config
    kind = ARCHITECTURES[architecture_for(config, "llama.cpp", lacking=("relu", "relu2")).name]
    if weights == "q8_0" and config.n_embd % Q8_BLOCK:
        raise InputError(
            f"q8_0 rounds rows of a multiple of {Q8_BLOCK}, and model.n_embd is {config.n_embd}; take float32"
        )
    tokens = gguf_tokens(tokenizer, end_id)
    writer = library.GGUFWriter(path, kind)
    try:
        writer.add_name(name)
        _add_sizes(writer, config, kind)
        _add_tokens(writer, tokens, model.vocab_size)
        architecture = getattr(library.MODEL_ARCH, kind.upper())
        names = library.get_tensor_name_map(architecture, config.n_layer)
        q8_0, float32 = library.GGMLQuantizationType.Q8_0, library.GGMLQuantizationType.F32
        for theirs, tensor in gguf_tensors(model, kind).items():
            stored = q8_0 if weights == "q8_0" and _is_rounded(theirs, tensor) else float32
            gguf_name = names.get_name(theirs, try_suffixes=(".weight", ".bias"))
            writer.add_tensor(
                gguf_name, library.quants.quantize(tensor.numpy(), stored), raw_dtype=stored
            )
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def _is_rounded(name: str, weight: Tensor) -> bool:
    return weight.dim() == 2 and weight.size(1) % Q8_BLOCK == 0 and "wpe" not in name


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
                tensors[name] = interleave_halves(
                    tensor, config.n_head if "q_proj" in name else config.kv_heads
                )
    return tensors


def interleave_halves(weight: Tensor, heads: int) -> Tensor:
    """Reorder the rows of each head so that those that rotary positions pair, `i` and `i + D/2`, become neighbors.

    Takes and returns (H D, C), or (H D,) for a bias.
    """
    return weight.view(heads, 2, -1, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


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


def _add_tokens(writer: Any, tokens: GGUFTokens, vocab_size: int) -> None:
    """Add the vocabulary; a model may have more ids than its tokenizer."""
    unused = vocab_size - len(tokens.texts)
    writer.add_tokenizer_model(tokens.model)
    writer.add_token_list(
        [*tokens.texts, *(f"[beyond{index}]".encode() for index in range(unused))]
    )
    writer.add_token_types(tokens.types + [UNUSED] * unused)
    if tokens.unknown_id is not None:
        writer.add_unk_token_id(tokens.unknown_id)
    if tokens.end_id is not None:
        writer.add_eos_token_id(tokens.end_id)
    if tokens.model == "gpt2":
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_merges(tokens.merges)
        writer.add_bos_token_id(tokens.end_id)
        writer.add_add_bos_token(False)


def gguf_tokens(tokenizer: Tokenizer, end_id: int | None = None) -> GGUFTokens:
    """Return a tokenizer in the terms of GGUF, if llama.cpp has one that gives the same ids."""
    if isinstance(tokenizer, BPETokenizer):
        return _merging(tokenizer, tokenizer.to_dict()["tokenizer"], end_id)
    texts = [_escaped(tokenizer.token_bytes(index)) for index in range(tokenizer.vocab_size)]
    unknown = (
        tokenizer.stoi[tokenizer.replacement] if isinstance(tokenizer, CharTokenizer) else None
    )
    assert isinstance(tokenizer, CharTokenizer | ByteTokenizer)
    return GGUFTokens("rwkv", texts, [NORMAL] * len(texts), unknown, end_id)


def _escaped(token: bytes) -> bytes:
    return "".join(f"\\x{byte:02x}" for byte in token).encode()


def _merging(tokenizer: BPETokenizer, content: Mapping[str, Any], end_id: int | None) -> GGUFTokens:
    require_gpt2_words(content, "llama.cpp")
    texts, types = (
        [f"[unused{index}]" for index in range(tokenizer.vocab_size)],
        [UNUSED] * tokenizer.vocab_size,
    )
    for text, index in content["model"]["vocab"].items():
        texts[index], types[index] = text, NORMAL
    for token in content.get("added_tokens") or []:
        texts[token["id"]], types[token["id"]] = (
            token["content"],
            CONTROL if token["special"] else USER_DEFINED,
        )
    if end_id is None:  # llama.cpp would take the token 11
        end_id = content["model"]["vocab"][byte_symbols()[0xFF]]  # a byte that UTF-8 does not have
    return GGUFTokens(
        "gpt2", [text.encode() for text in texts], types, None, end_id, tuple(merges_of(content))
    )
