"""Tokenizers as the tokenizer.json of the `tokenizers` library, and back."""

from collections.abc import Mapping
from typing import Any

from gpt.data.bpe import BPETokenizer, byte_symbols
from gpt.data.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer
from gpt.data.words import WordTokenizer
from gpt.system.errors import DataError, InputError

GPT2_WORDS = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
"""The pre-tokenizer that splits a text into words as GPT-2 does."""
STRIPPING = ("lstrip", "rstrip", "single_word")
"""Options of an added token that change which characters around it belong to it."""


def to_tokenizer_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the content of a tokenizer.json that gives the same ids and texts.

    A character outside the vocabulary becomes the replacement of `CharTokenizer`, since the
    library cannot raise an error for it.
    """
    if isinstance(tokenizer, CharTokenizer):
        return _without_merges(
            tokenizer.stoi, decoder={"type": "Fuse"}, unknown=tokenizer.replacement
        )
    if isinstance(tokenizer, ByteTokenizer):
        # The library has no tokens of bytes: each byte is written as the symbol GPT-2 gives it.
        vocabulary = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
        byte_level = {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": False,
            "use_regex": False,
        }
        return _without_merges(vocabulary, decoder=byte_level, pre_tokenizer=byte_level)
    if isinstance(tokenizer, BPETokenizer | WordTokenizer):
        return dict(tokenizer.to_dict()["tokenizer"])
    raise InputError(f"a tokenizer of type {tokenizer.to_dict().get('type')} cannot be exported")


def special_token(tokenizer: Tokenizer, index: int) -> str | None:
    """Return the text of a token that transformers may treat as special; None if it may not.

    transformers looks for the text of a special token before it splits a text. That changes no ids
    where the token is a single character, or an added one that is looked for anyway. It would
    change them for a byte: its symbol is a letter, which a text may contain for other bytes.
    """
    if isinstance(tokenizer, CharTokenizer):
        return tokenizer.itos[index] if index < tokenizer.vocab_size else None
    for token in to_tokenizer_json(tokenizer).get("added_tokens") or []:
        if token["id"] == index:
            return str(token["content"])
    return None


def from_tokenizer_json(content: Any) -> Tokenizer:
    """Return the tokenizer that a tokenizer.json describes.

    A `ByteTokenizer` or `CharTokenizer` is recognized by exporting it again: it is the one only if
    that gives the same content.
    """
    try:
        vocabulary = content["model"]["vocab"]
        # A post-processor adds tokens around a text. transformers saves one with every tokenizer,
        # and for those exported here it adds none.
        plain = {**content, "post_processor": None}
        if to_tokenizer_json(ByteTokenizer()) == plain:
            return ByteTokenizer()
        if content["model"]["type"] == "WordLevel":
            return WordTokenizer(plain)
        if all(len(symbol) == 1 for symbol in vocabulary):
            characters = CharTokenizer(vocabulary)
            plain["added_tokens"] = _added_beyond(vocabulary, content)
            if to_tokenizer_json(characters) == plain:
                return characters
    except (TypeError, KeyError):
        raise DataError("tokenizer.json does not describe a tokenizer") from None
    return BPETokenizer(content)


def _added_beyond(vocabulary: Mapping[str, int], content: Mapping[str, Any]) -> list[Any]:
    """Return the added tokens but those that only mark a token of the vocabulary as special."""
    beyond = []
    for token in content.get("added_tokens") or []:
        strips = any(token.get(option) for option in STRIPPING)
        if strips or vocabulary.get(token["content"]) != token["id"]:
            beyond.append(token)
    return beyond


def require_gpt2_words(content: Mapping[str, Any], program: str) -> None:
    """Raise InputError unless a tokenizer.json splits a text into the words of GPT-2.

    Byte pairs have to be merged inside of these words, and nothing else may change the text.
    """
    pre_tokenizer = content.get("pre_tokenizer") or {}
    added_tokens = content.get("added_tokens") or []
    splits_as_gpt2 = all(pre_tokenizer.get(key) == value for key, value in GPT2_WORDS.items())
    changes_text = content.get("normalizer") or content["model"].get("ignore_merges")
    strips = any(token[option] for option in STRIPPING for token in added_tokens)
    if not splits_as_gpt2 or changes_text or strips:
        raise InputError(
            f"{program} has byte pair encoding only with words as of GPT-2, "
            "which is what data.tokenizer=bpe learns; use --to hf"
        )


def merges_of(content: Mapping[str, Any]) -> list[str]:
    """Return the pairs that a tokenizer.json merges, each with a space between its two halves."""
    # Older releases of the library write a pair as one string, newer ones as a list of two.
    merges = []
    for pair in content["model"]["merges"]:
        merges.append(pair if isinstance(pair, str) else " ".join(pair))
    return merges


def _without_merges(
    vocabulary: dict[str, int],
    decoder: dict[str, Any],
    pre_tokenizer: dict[str, Any] | None = None,
    unknown: str | None = None,
) -> dict[str, Any]:
    """Return the content of a tokenizer.json with one token for each symbol of a vocabulary.

    It is byte pair encoding without merges, with every option that the library writes.
    """
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
