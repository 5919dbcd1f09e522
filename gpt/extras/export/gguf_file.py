"""A model with its tokenizer as one GGUF file, which llama.cpp and the programs built on it run."""

import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from gpt.config import ModelConfig, SampleConfig
from gpt.data.bpe import BPETokenizer, byte_symbols
from gpt.data.items import item_ids
from gpt.data.pairs import TURN
from gpt.data.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer
from gpt.data.words import WordTokenizer
from gpt.extras.export.architectures import architecture_for, gpt2_entries
from gpt.extras.export.coverage import unknown_defaults, without_turn
from gpt.extras.export.hugging_face import chat_template, require_float32, weights_with_positions
from gpt.extras.export.tensors import to_theirs
from gpt.extras.export.tokenizer_json import merges_of, require_gpt2_words
from gpt.model import GPT
from gpt.system.errors import InputError

ARCHITECTURES = {
    "GPT2LMHeadModel": "gpt2",
    "LlamaForCausalLM": "llama",
    "Qwen3ForCausalLM": "qwen3",
}
"""Name in GGUF of each architecture of transformers."""
WEIGHTS = ("float32", "q8_0")
"""Formats of the matrices. In q8_0 a value has 8 bits; vectors are always float32."""
Q8_BLOCK = 32
"""Values of a row that share a scale, a float16, in q8_0."""

# Types of tokens, with the numbers that GGUF gives them.
NORMAL = 1
CONTROL = 3
USER_DEFINED = 4
UNUSED = 5


class GGUFTokens(NamedTuple):
    """A vocabulary in the terms of GGUF."""

    model: str  # the algorithm: "rwkv" takes the longest match, "gpt2" merges pairs
    texts: list[bytes]  # the token of each id, in the notation of the algorithm
    types: list[int]  # NORMAL, CONTROL, USER_DEFINED or UNUSED, for each id
    unknown_id: int | None = None  # the token that stands for a character without a token
    end_id: int | None = None  # the token that ends a text; "gpt2" always has one
    merges: tuple[str, ...] = ()  # the pairs to merge, the most frequent one first


def write_gguf(
    path: Path,
    model: GPT,
    tokenizer: Tokenizer,
    weights: str,
    name: str,
    params: SampleConfig | None = None,
) -> None:
    """Write a model and its tokenizer as a GGUF file.

    Args:
        weights: format of the matrices, one of `WEIGHTS`.
        name: name of the model inside the file.
        params: say which tokens begin and end a text; None: none does.

    Raises:
        InputError: gguf is not installed, or llama.cpp cannot run this model or tokenizer.
    """
    try:
        gguf: Any = import_module("gguf")
    except ModuleNotFoundError:
        raise InputError(
            "exporting to GGUF needs the gguf package: pip install 'glassgpt[gguf]'"
        ) from None
    require_float32(model)
    config = model.config
    # GGUF has the architectures of transformers, but no GPT-2 with ReLU or its square.
    architecture = architecture_for(config, "llama.cpp", lacking=("relu", "relu2"))
    kind = ARCHITECTURES[architecture.name]
    if weights == "q8_0" and config.n_embd % Q8_BLOCK != 0:
        raise InputError(
            f"q8_0 rounds rows of a multiple of {Q8_BLOCK}, and model.n_embd is {config.n_embd}; "
            "take float32"
        )
    params = params or SampleConfig()
    tokens = gguf_tokens(tokenizer, params.end_id)

    writer = gguf.GGUFWriter(path, kind)
    try:
        writer.add_name(name)
        _add_sizes(writer, config, kind)
        _add_tokens(writer, tokens, model.vocab_size)
        _add_marks(writer, tokens, tokenizer, params)
        _add_tensors(writer, gguf, model, kind, weights)
        # The format has this order: header, keys and values, tensors.
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def _add_tensors(writer: Any, gguf: Any, model: GPT, kind: str, weights: str) -> None:
    """Add the tensors under their names in GGUF, the matrices in the format `weights`."""
    architecture = getattr(gguf.MODEL_ARCH, kind.upper())
    names = gguf.get_tensor_name_map(architecture, model.config.n_layer)
    for name, tensor in gguf_tensors(model, kind).items():
        dtype = gguf.GGMLQuantizationType.F32
        if weights == "q8_0" and _can_be_rounded(name, tensor):
            dtype = gguf.GGMLQuantizationType.Q8_0
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        stored = gguf.quants.quantize(tensor.numpy(), dtype)
        writer.add_tensor(gguf_name, stored, raw_dtype=dtype)


def _can_be_rounded(name: str, weight: Tensor) -> bool:
    if weight.dim() != 2 or weight.size(1) % Q8_BLOCK != 0:
        return False
    return "wpe" not in name  # llama.cpp does not quantize positions either


def gguf_tensors(model: GPT, kind: str) -> dict[str, Tensor]:
    """Return float32 tensors by their names in transformers, matrices as (out, in).

    GGUF's architecture "llama" rotates neighboring rows, as the original weights of Llama do, so
    the rows of queries and keys are interleaved for it.
    """
    config = model.config
    weights = weights_with_positions(model)
    if kind == "gpt2":
        entries = gpt2_entries(config, "transformer.", transposed=False, bias=True)
        return to_theirs(entries, weights)
    tensors = to_theirs(architecture_for(config).entries(config), weights)
    if kind == "llama":
        for name, tensor in tensors.items():
            if "q_proj" in name:
                tensors[name] = interleave_halves(tensor, config.n_head)
            elif "k_proj" in name:
                tensors[name] = interleave_halves(tensor, config.kv_heads)
    return tensors


def interleave_halves(weight: Tensor, heads: int) -> Tensor:
    """Reorder the rows of each head, so that rows `i` and `i + D/2`, a pair, become neighbors.

    Takes and returns a matrix (H D, C), or a bias (H D,).
    """
    halves = weight.view(heads, 2, -1, *weight.shape[1:])  # (H, 2, D/2, C)
    pairs = halves.transpose(1, 2)  # (H, D/2, 2, C)
    return pairs.reshape(weight.shape)


def _add_sizes(writer: Any, config: ModelConfig, kind: str) -> None:
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.block_size)
    writer.add_embedding_length(config.n_embd)
    writer.add_block_count(config.n_layer)
    writer.add_feed_forward_length(config.mlp_hidden)
    writer.add_head_count(config.n_head)
    if kind == "gpt2":
        writer.add_layer_norm_eps(config.norm_eps)
        return  # the rest is of grouped queries and rotary positions
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_rope_dimension_count(config.head_dim)


def _add_tokens(writer: Any, tokens: GGUFTokens, vocab_size: int) -> None:
    """Add the vocabulary.

    A model may have more ids than its tokenizer, and llama.cpp needs a token for each of them:
    the others are marked as unused.
    """
    unused = vocab_size - len(tokens.texts)
    unused_texts = [f"[beyond{index}]".encode() for index in range(unused)]
    writer.add_tokenizer_model(tokens.model)
    writer.add_token_list(tokens.texts + unused_texts)
    writer.add_token_types(tokens.types + [UNUSED] * unused)
    if tokens.unknown_id is not None:
        writer.add_unk_token_id(tokens.unknown_id)
    if tokens.end_id is not None:
        writer.add_eos_token_id(tokens.end_id)
    if tokens.model == "gpt2":
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_merges(tokens.merges)


def _add_marks(writer: Any, tokens: GGUFTokens, tokenizer: Tokenizer, params: SampleConfig) -> None:
    """Add the token that begins a text, and the template of questions and answers."""
    is_byte_pairs = tokens.model == "gpt2"
    begin_id = params.begin_id
    if begin_id is None and is_byte_pairs:
        begin_id = tokens.end_id  # llama.cpp would take token 11, whatever that is here
    if begin_id is not None:
        writer.add_bos_token_id(begin_id)
        # llama.cpp adds this token to a prompt only where the tokenizer is of byte pairs. With
        # another one, "true" would take the token off the text that the chat template writes, and
        # nothing would add it again. A model that was trained without such a token gets none.
        writer.add_add_bos_token(is_byte_pairs and params.begin_id is not None)
    if TURN in params.stop:
        # The mark of another question ends an answer too: the "end of turn" of llama.cpp.
        writer.add_eot_token_id(item_ids("pairs", tokenizer).turn)
        writer.add_chat_template(chat_template())


def not_in_file(tokenizer: Tokenizer, params: SampleConfig) -> list[str]:
    """Return the sampling defaults that a file of `write_gguf` loses, wholly or in part."""
    lost = unknown_defaults(without_turn(params), {"begin_id", "end_id"})
    # The chat template writes the mark, and llama.cpp adds it to a prompt of byte pairs.
    writes_mark = TURN in params.stop or isinstance(tokenizer, BPETokenizer)
    if params.begin_id is not None and not writes_mark:
        mark = json.dumps(tokenizer.decode([params.begin_id]))
        lost.append(
            f"sample.begin_id={params.begin_id} before a prompt, which llama.cpp adds for byte "
            f"pairs alone (begin a prompt with {mark})"
        )
    return lost


def gguf_tokens(tokenizer: Tokenizer, end_id: int | None = None) -> GGUFTokens:
    """Return a vocabulary with which llama.cpp gives the same ids as a tokenizer.

    Characters and bytes are found by the longest match, byte pairs by merges.

    Raises:
        InputError: llama.cpp would split a text into other tokens.
    """
    if isinstance(tokenizer, BPETokenizer):
        return _byte_pair_tokens(tokenizer, end_id)
    if isinstance(tokenizer, WordTokenizer):
        # By the longest match, the only one that it has for whole tokens, "there" with a known
        # "the" would be two tokens.
        raise InputError("llama.cpp has no tokenizer of words (data.tokenizer=word); use --to hf")
    assert isinstance(tokenizer, CharTokenizer | ByteTokenizer)
    texts = [_escape(tokenizer.token_bytes(index)) for index in range(tokenizer.vocab_size)]
    types = [NORMAL] * len(texts)
    unknown_id = None  # every byte has a token
    if isinstance(tokenizer, CharTokenizer):
        unknown_id = tokenizer.stoi[tokenizer.replacement]
    return GGUFTokens("rwkv", texts, types, unknown_id, end_id)


def _escape(token: bytes) -> bytes:
    """Write every byte of a token as an escape, such as `\\x0a`, which "rwkv" reads back."""
    return "".join(f"\\x{byte:02x}" for byte in token).encode()


def _byte_pair_tokens(tokenizer: BPETokenizer, end_id: int | None) -> GGUFTokens:
    content: Mapping[str, Any] = tokenizer.to_dict()["tokenizer"]
    require_gpt2_words(content, "llama.cpp")
    vocabulary: Mapping[str, int] = content["model"]["vocab"]

    # Ids that the tokenizer leaves out keep a placeholder.
    texts = [f"[unused{index}]" for index in range(tokenizer.vocab_size)]
    types = [UNUSED] * tokenizer.vocab_size
    for text, index in vocabulary.items():
        texts[index] = text
        types[index] = NORMAL
    for token in content.get("added_tokens") or []:
        texts[token["id"]] = token["content"]
        types[token["id"]] = CONTROL if token["special"] else USER_DEFINED

    if end_id is None:
        # Without an end, llama.cpp would end a text at token 11. UTF-8 has no byte 0xFF, so that
        # a text never contains this token.
        end_id = vocabulary[byte_symbols()[0xFF]]
    encoded = [text.encode() for text in texts]
    return GGUFTokens("gpt2", encoded, types, None, end_id, tuple(merges_of(content)))
