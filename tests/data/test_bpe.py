"""Byte pair encoding, compared with what the library itself makes of ids."""

import json
import unicodedata
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from gpt.data.bpe import BPETokenizer
from gpt.data.saved_tokenizer import tokenizer_from_dict
from gpt.inspection.views.tokens import labels_of
from gpt.system.errors import DataError
from tiny import CORPUS

END = "<|endoftext|>"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def trained(pre_tokenizer: Any, normalizer: Any = None) -> Any:
    """The library's own tokenizer with byte-level tokens: 300 of a small corpus, and two that are added."""
    library = LibraryTokenizer(BPE())
    library.normalizer, library.pre_tokenizer, library.decoder = normalizer, pre_tokenizer, decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    library.train_from_iterator([CORPUS], BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False))
    library.add_special_tokens([AddedToken(END), AddedToken("the end")])
    return library


def sentencepiece(normalizer: Any, pre_tokenizer: Any, strips: bool) -> Any:
    """The library's own tokenizer as those of Llama 2, Mistral and Gemma: bytes only where no token has a character."""
    learning = LibraryTokenizer(BPE(unk_token="<unk>"))
    learning.pre_tokenizer = pre_tokenizers.Metaspace()
    first = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    learning.train_from_iterator([CORPUS], BpeTrainer(vocab_size=400, special_tokens=first, show_progress=False))
    model = json.loads(learning.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    library = LibraryTokenizer(BPE(model["vocab"], merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    library.normalizer, library.pre_tokenizer = normalizer, pre_tokenizer
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    library.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strips else steps)
    library.add_special_tokens([AddedToken(token, normalized=False) for token in first[:3]])
    return library


def split(pattern: str) -> Any:
    words = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


SPACES = normalizers.Replace(" ", "▁")
LIBRARIES = {
    "gpt2": trained(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "llama3": trained(split(LLAMA3)),
    "qwen": trained(split(LLAMA3.replace("{1,3}", "")), normalizers.NFC()),
    "llama2": sentencepiece(normalizers.Sequence([normalizers.Prepend("▁"), SPACES]), None, strips=True),
    "mistral": sentencepiece(None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False), strips=True),
    "gemma": sentencepiece(SPACES, None, strips=False),
}
TOKENIZERS = {name: BPETokenizer(json.loads(library.to_str())) for name, library in LIBRARIES.items()}
LIBRARY, OURS = LIBRARIES["gpt2"], TOKENIZERS["gpt2"]
CONTENT: dict[str, Any] = OURS.to_dict()["tokenizer"]
MODEL = CONTENT["model"]
PARTS = [
    *(END, "the end", "<s>", "</s>", "<0x0A>", "  ", " room", "'ll", "\r\n"),
    *("\N{COMBINING ACUTE ACCENT}e", "é", "🎭", "12345"),
]
TEXTS = st.lists(st.one_of(st.text(st.characters(exclude_categories=["Cs"])), st.sampled_from(PARTS))).map("".join)
EVERY_KIND = pytest.mark.parametrize("name", LIBRARIES)


@EVERY_KIND
@given(text=TEXTS)
def test_ids_are_those_of_the_library(name: str, text: str) -> None:
    ours, library = TOKENIZERS[name], LIBRARIES[name]
    ids = ours.encode(text)
    assert ids.tolist() == library.encode(text, add_special_tokens=False).ids
    assert ours.decode(ids) == library.decode(ids, skip_special_tokens=False)


@EVERY_KIND
@given(text=TEXTS.filter(lambda text: "▁" not in text and "<" not in text))
def test_a_text_comes_back(name: str, text: str) -> None:
    ours = TOKENIZERS[name]
    text = unicodedata.normalize("NFC", text) if name == "qwen" else text
    text = text.lstrip(" ") if name == "mistral" else text  # Metaspace adds a space only where there is none
    ids = ours.encode(text)
    assert ours.decode(ids) == text
    assert ours.count_chars(ids) == len(text) + (name in ("llama2", "mistral") and text != "")  # a space before it


@EVERY_KIND
def test_a_character_appears_with_the_last_of_its_bytes(name: str) -> None:
    ours = TOKENIZERS[name]
    ids, stream = ours.encode("a🎭")[-4:], ours.stream()
    assert [stream.feed(index) for index in ids] == ["", "", "", "🎭"]
    assert b"".join(map(ours.token_bytes, ids)) == "🎭".encode()


def test_a_saved_tokenizer_merges_and_neither_cuts_nor_pads() -> None:
    cut = {"max_length": 3, "stride": 0, "strategy": "LongestFirst", "direction": "Right"}
    again = tokenizer_from_dict({"type": "bpe", "tokenizer": CONTENT | {"truncation": cut}})
    ids = again.encode(CORPUS + END)
    assert ids.tolist() == OURS.encode(CORPUS + END).tolist()
    assert len(ids) < 0.8 * len(CORPUS)
    assert ids.max() < again.vocab_size == LIBRARY.get_vocab_size()


@EVERY_KIND
@given(data=st.data())
def test_any_ids_decode_and_stream_as_in_the_library(name: str, data: st.DataObject) -> None:
    ours, library = TOKENIZERS[name], LIBRARIES[name]
    ids = data.draw(st.lists(st.integers(0, ours.vocab_size - 1)))
    text = ours.decode(ids)
    theirs = library.decode(ids, skip_special_tokens=False)
    assert text == theirs or ("\ufffd" in text and "\ufffd" in theirs and "<0x00>" in library.get_vocab())
    stream = ours.stream()
    streamed = "".join([*map(stream.feed, ids), stream.flush()])
    assert streamed.removeprefix(" " if name in ("llama2", "mistral") else "") == text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decoder": {"type": "Metaspace"}}, "byte-level, as of GPT-2.*; the decoder is Metaspace"),
        ({"decoder": {"type": "Sequence", "decoders": []}}, "only byte pair encoding on bytes"),
        *(({"decoder": other}, "not a tokenizer") for other in (None, "x", [1])),
        ({"model": {"type": "BPE", "continuing_subword_prefix": "long enough"}}, "with the prefix long enough"),
        ({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}, "254 of the 256 bytes have no token"),
        ({"model": MODEL | {"vocab": MODEL["vocab"] | {"☃": len(MODEL["vocab"]) + 1}}}, "'☃' is not made of bytes"),
        ({"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}, "only byte pair encoding"),
        ({"model": {"type": "BPE", "vocab": {"a": 300_000_000}, "merges": []}}, "10,000,000 ids are supported"),
    ],
)
def test_other_tokenizers_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        BPETokenizer(CONTENT | changes)
    with pytest.raises(DataError, match=r"'\\udcff' at 1 is not a character"):
        OURS.encode("a\udcff")


def test_only_a_panic_of_the_library_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its Rust code panics on some files, by an exception that cannot be imported and that no `Exception` is."""
    panic = type("PanicException", (BaseException,), {})
    library = Mock(from_str=Mock(side_effect=[panic("out of range"), KeyboardInterrupt]))
    monkeypatch.setattr("tokenizers.Tokenizer", library)
    with pytest.raises(DataError, match=r"^not a tokenizer: out of range$"):
        BPETokenizer(CONTENT)
    with pytest.raises(KeyboardInterrupt):
        BPETokenizer(CONTENT)


def test_labels_name_parts_of_characters_by_their_bytes() -> None:
    for ours in (TOKENIZERS["gpt2"], TOKENIZERS["llama2"]):
        assert labels_of(ours, ours.encode("a 🎭")[-4:]) == ["f0", "9f", "8e", "ad"]
        the = int(ours.encode("Who keeps the")[-1])
        assert labels_of(ours, [the, ours.vocab_size]) == ["␣the", f"#{ours.vocab_size}"]
