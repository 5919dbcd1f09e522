"""Check the parts of a tokenizer.json that change or split a text before its merges.

Only known parts are supported, since somebody else may have written the file: a regular expression
can take a time that doubles with each character, and a replacement can make gigabytes of a line.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gpt.system.errors import DataError, quoted

SPACE = "▁"
"""The character that sentencepiece writes for a space."""
MAX_STEPS = 8
"""Most steps of a normalizer or a pre-tokenizer; those of published models have at most five."""
_END = r"|\s+(?!\S)|\s+"
"""The end of most patterns: white space, whose last character is left to the next word."""
PATTERNS = {
    # GPT-2, as its authors and as tiktoken write it
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+" + _END,
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+" + _END,
    # GPT-4, and nanochat
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]" + _END,
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]" + _END,
    # Llama 3
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+" + _END,
    # Qwen 2 and 3
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+" + _END,
    # GPT-4o
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+" + _END,
    # DeepSeek V3
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+" + _END,
}
"""Published regular expressions by which texts are split into words.

Each takes a time linear in the text.
"""


def require_known_parts(content: Mapping[str, Any]) -> None:
    """Raise DataError if a tokenizer.json has parts that those of published models do not have."""
    # The library marks tokens inside of words with this prefix, and panics if it is too long.
    prefix = content["model"].get("continuing_subword_prefix")
    if prefix:
        raise DataError(
            f"tokens with the prefix {quoted(str(prefix), 40)} inside a word are not supported"
        )
    # The library writes this suffix after each word, so that a long one would take gigabytes.
    suffix = content["model"].get("end_of_word_suffix")
    if suffix:
        raise DataError(
            f"tokens with the suffix {quoted(str(suffix), 40)} at the end of a word "
            "are not supported"
        )
    _require(
        content.get("normalizer"),
        inner="normalizers",
        name="normalizer",
        is_known=_is_known_normalizer,
    )
    splitters = _require(
        content.get("pre_tokenizer"),
        inner="pretokenizers",
        name="pre-tokenizer",
        is_known=_is_known_splitter,
    )
    # Each byte-level step may double the length of the text, and one is enough.
    num_byte_level = [step["type"] for step in splitters].count("ByteLevel")
    if num_byte_level > 1:
        raise DataError("the pre-tokenizer writes bytes as characters more than once")


def _require(
    part: Any, inner: str, name: str, is_known: Callable[[dict[str, Any]], bool]
) -> list[dict[str, Any]]:
    """Return the steps of a part; raise DataError if one is unknown, or if they are too many.

    Args:
        inner: the key under which a `Sequence` lists its steps.
        name: name of the part in messages.
        is_known: whether a step is supported.
    """
    steps: list[dict[str, Any]] = []
    for step in _steps_of(part, inner):
        if not is_known(step):
            raise DataError(
                f"the {name} {quoted(str(step), 100)} is not supported: "
                "only those of published models are"
            )
        steps.append(step)
        # Somebody else may have written the file, and each step takes time for every text.
        if len(steps) > MAX_STEPS:
            raise DataError(f"the {name} has more than {MAX_STEPS} steps")
    return steps


def _steps_of(part: Any, inner: str) -> Iterator[dict[str, Any]]:
    """Yield the steps of a part, including those of a `Sequence` under `inner`, at any depth."""
    if part is None:
        return
    if part["type"] == "Sequence":
        for each in part[inner]:
            yield from _steps_of(each, inner)
    else:
        yield part


def _is_known_normalizer(step: dict[str, Any]) -> bool:
    """Return whether a step normalizes Unicode, or writes `SPACE` before a text or for spaces."""
    match step:
        case {"type": "NFC" | "NFD" | "NFKC" | "NFKD"}:
            return True
        case {"type": "Prepend", "prepend": prepended}:
            return bool(prepended == SPACE)
        case {"type": "Replace", "pattern": {"String": " "}, "content": written}:
            return bool(written == SPACE)
    return False


def _is_known_splitter(step: dict[str, Any]) -> bool:
    """Return whether a step splits by a fixed rule, by a plain string or by one of `PATTERNS`."""
    match step:
        case {"type": "ByteLevel" | "Digits" | "Punctuation"}:
            return True
        case {"type": "Metaspace", "replacement": written}:
            return bool(written == SPACE)
        case {"type": "Split", "pattern": {"String": str()}}:
            return True  # a plain string, which is found in linear time
        case {"type": "Split", "pattern": {"Regex": pattern}}:
            # Some files write CR and LF as themselves in a pattern, others as `\r` and `\n`.
            escaped = pattern.replace("\r", r"\r").replace("\n", r"\n")
            return escaped in PATTERNS
    return False
