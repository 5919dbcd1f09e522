"""Tokenizers as GGUF has them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from gpt.data.bpe import BPETokenizer
from gpt.data.token_bytes import byte_symbols
from gpt.data.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer
from gpt.interop.tokenizer_json import merges_of, require_gpt2_words

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


def gguf_tokens(tokenizer: Tokenizer, end_id: int | None = None) -> GGUFTokens:
    """Return a tokenizer in the terms of GGUF, if llama.cpp has one that gives the same ids."""
    if isinstance(tokenizer, BPETokenizer):
        return _merging(tokenizer, tokenizer.to_dict()["tokenizer"], end_id)
    texts = [_escaped(tokenizer.token_bytes(index)) for index in range(tokenizer.vocab_size)]
    unknown = tokenizer.stoi[tokenizer.replacement] if isinstance(tokenizer, CharTokenizer) else None
    assert isinstance(tokenizer, CharTokenizer | ByteTokenizer)
    return GGUFTokens("rwkv", texts, [NORMAL] * len(texts), unknown, end_id)


def _escaped(token: bytes) -> bytes:
    return "".join(f"\\x{byte:02x}" for byte in token).encode()


def _merging(tokenizer: BPETokenizer, content: Mapping[str, Any], end_id: int | None) -> GGUFTokens:
    require_gpt2_words(content, "llama.cpp")
    texts, types = [f"[unused{index}]" for index in range(tokenizer.vocab_size)], [UNUSED] * tokenizer.vocab_size
    for text, index in content["model"]["vocab"].items():
        texts[index], types[index] = text, NORMAL
    for token in content.get("added_tokens") or []:
        texts[token["id"]], types[token["id"]] = token["content"], CONTROL if token["special"] else USER_DEFINED
    if end_id is None:  # llama.cpp would take the token 11
        end_id = content["model"]["vocab"][byte_symbols()[0xFF]]  # a byte that UTF-8 does not have
    return GGUFTokens("gpt2", [text.encode() for text in texts], types, None, end_id, tuple(merges_of(content)))
