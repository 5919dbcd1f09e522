"""Tokenizers as the tokenizer.json of the `tokenizers` library, and back."""

from collections.abc import Mapping
from typing import Any

from gpt.data.bpe import BPETokenizer, byte_symbols
from gpt.data.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer
from gpt.system.errors import DataError, InputError

GPT2_WORDS = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}


def to_tokenizer_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the content of a tokenizer.json that gives the same ids and texts.

    A character outside the vocabulary becomes the replacement of `CharTokenizer`, since the library has no errors.
    """
    if isinstance(tokenizer, CharTokenizer):
        return _bpe(tokenizer.stoi, decoder={"type": "Fuse"}, unknown=tokenizer.replacement)
    if isinstance(tokenizer, ByteTokenizer):
        symbols = byte_symbols()
        level = {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": False,
            "use_regex": False,
        }
        vocabulary = {symbol: byte for byte, symbol in enumerate(symbols)}
        return _bpe(vocabulary, decoder=level, pre_tokenizer=level)
    if isinstance(tokenizer, BPETokenizer):
        return dict(tokenizer.to_dict()["tokenizer"])
    raise InputError(f"a tokenizer of type {tokenizer.to_dict().get('type')} cannot be exported")


def special_token(tokenizer: Tokenizer, index: int) -> str | None:
    """Return the text of a token by which transformers may know it as a special one; None: it may not.

    transformers looks for the text of a special token before it splits a text. That changes no ids where
    a token is one character, or one that is looked for anyway. A byte has a symbol, which other texts may
    hold as a letter.
    """
    if isinstance(tokenizer, CharTokenizer):
        return tokenizer.itos[index] if index < tokenizer.vocab_size else None
    added = to_tokenizer_json(tokenizer).get("added_tokens") or []
    return next((token["content"] for token in added if token["id"] == index), None)


def from_tokenizer_json(content: Any) -> Tokenizer:
    """Return the tokenizer that a tokenizer.json describes."""
    try:
        vocabulary = content["model"]["vocab"]
        # which adds tokens around a text, none where transformers has saved one of these
        plain = {**content, "post_processor": None}
        if to_tokenizer_json(ByteTokenizer()) == plain:
            return ByteTokenizer()
        if all(len(symbol) == 1 for symbol in vocabulary):
            characters = CharTokenizer(vocabulary)
            if to_tokenizer_json(characters) == plain | {
                "added_tokens": _beyond(vocabulary, content)
            }:
                return characters
    except (TypeError, KeyError):
        raise DataError("tokenizer.json does not describe a tokenizer") from None
    return BPETokenizer(content)


def _beyond(vocabulary: Mapping[str, int], content: Mapping[str, Any]) -> list[Any]:
    """Return the added tokens but for those that only mark a token of the vocabulary as special."""
    beyond = []
    for token in content.get("added_tokens") or []:
        strips = any(token.get(key) for key in ("lstrip", "rstrip", "single_word"))
        if strips or vocabulary.get(token["content"]) != token["id"]:
            beyond.append(token)
    return beyond


def require_gpt2_words(content: Mapping[str, Any], program: str) -> None:
    """Raise InputError unless a tokenizer.json splits a text into words as GPT-2 does, and merges inside of them."""
    splitter, added = content.get("pre_tokenizer") or {}, content.get("added_tokens") or []
    splits = {key: splitter.get(key) for key in GPT2_WORDS} == GPT2_WORDS
    strips = any(token[key] for token in added for key in ("lstrip", "rstrip", "single_word"))
    if not splits or content["model"].get("ignore_merges") or content.get("normalizer") or strips:
        raise InputError(
            f"{program} has byte pair encoding only with words as of GPT-2, which is what data.tokenizer=bpe learns; "
            "use --to hf"
        )


def merges_of(content: Mapping[str, Any]) -> list[str]:
    """Return the pairs that a tokenizer.json merges, each with a space between."""
    return [
        pair if isinstance(pair, str) else " ".join(pair) for pair in content["model"]["merges"]
    ]


def _bpe(
    vocabulary: dict[str, int],
    decoder: dict[str, Any],
    pre_tokenizer: dict[str, Any] | None = None,
    unknown: str | None = None,
) -> dict[str, Any]:
    """Return byte pair encoding without merges: one token for each symbol."""
    model: dict[str, Any] = {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocabulary,
        "merges": [],
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": model,
    }
