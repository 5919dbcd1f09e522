"""Text to ids and back, whatever the text and whatever holds the ids.

Byte pairs are compared with their library.
"""

import json
import time
from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from gpt.data.bpe import BPETokenizer
from gpt.data.bpe_parts import PATTERNS
from gpt.data.saved_tokenizer import tokenizer_from_dict
from gpt.data.token_ids import to_batch, to_list
from gpt.data.tokenizers import MAX_LISTED, ByteTokenizer, CharTokenizer, Tokenizer, smallest_dtype
from gpt.system.errors import DataError, InputError
from patience import PATIENCE
from tiny import CORPUS


def streamed(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """What comes out after each id, and at the end."""
    decoder = tokenizer.stream()
    return [*(decoder.feed(index) for index in ids), decoder.flush()]


@given(text=st.text(min_size=1))
def test_tokenizer_round_trips_texts_and_its_own_json(text: str) -> None:
    chars = CharTokenizer(text)
    data = ByteTokenizer()
    assert bytes(data.encode(text).tolist()) == text.encode("utf-8")
    assert chars.itos == sorted(set(text))
    assert chars.encode(text).tolist() == [chars.itos.index(char) for char in text]
    assert [piece for piece in streamed(data, data.encode(text).tolist()) if piece] == list(text)
    for tokenizer in (chars, data):
        again = tokenizer_from_dict(json.loads(json.dumps(tokenizer.to_dict())))
        assert (type(again), again.to_dict()) == (type(tokenizer), tokenizer.to_dict())
        ids = again.encode(text)
        assert tokenizer.decode(ids) == tokenizer.decode(ids.tolist()) == text
        assert "".join(streamed(tokenizer, ids.tolist())) == text
        assert tokenizer.count_chars(ids) == len(text)
        assert (
            repr(again)
            == f"{type(again).__name__}(vocab_size={len(set(text)) if tokenizer is chars else 256})"
        )


@pytest.mark.parametrize(
    ("vocab_size", "dtype"), [(1, "u1"), (256, "u1"), (257, "u2"), (65536, "u2"), (65537, "u4")]
)
def test_ids_have_the_smallest_unsigned_type_that_holds_them(vocab_size: int, dtype: str) -> None:
    ids = CharTokenizer(map(chr, range(vocab_size))).encode_narrow(chr(vocab_size - 1))
    assert smallest_dtype(vocab_size) == ids.dtype == np.dtype(dtype)
    assert ids.tolist() == [vocab_size - 1]


def test_unknown_characters_are_named_once_with_first_place() -> None:
    with pytest.raises(DataError, match="at least one character"):
        CharTokenizer("")
    with pytest.raises(DataError, match="got 'ignore', expected error, replace or drop"):
        CharTokenizer("abc", unknown="ignore")  # type: ignore[arg-type]
    with pytest.raises(DataError) as caught:
        CharTokenizer("abc\n").encode("abZcé\nZ𝄞Z")
    assert str(caught.value).startswith(
        "characters outside the vocabulary of 4: 'Z' at 2, 'é' at 4, '𝄞' at 7; "
    )
    for count, more in (
        (MAX_LISTED, "; "),
        (MAX_LISTED + 1, " and 1 more; "),
        (500, " and 490 more; "),
    ):
        with pytest.raises(DataError) as caught:
            CharTokenizer("a").encode("".join(chr(0x4E00 + index) for index in range(count)))
        assert str(caught.value).count(" at ") == MAX_LISTED
        assert f" at 9{more}" in str(caught.value)


@pytest.mark.parametrize("text", ["\x00", "`", "b", "é", "\uffff", "𝄞", "\U0010ffff", "\ud800"])
def test_character_outside_the_vocabulary_is_unknown(text: str) -> None:
    with pytest.raises(DataError, match=r"outside the vocabulary of 2: .* at 1;"):
        CharTokenizer("ac").encode(f"a{text}c")
    assert CharTokenizer("ac", unknown="drop").encode(f"a{text}c").tolist() == [0, 1]


@pytest.mark.parametrize(
    ("chars", "expected"),
    # ? where the vocabulary has it, else a space, else its first character.
    [("abc?! ", "a??c"), ("abc! ", "a  c"), ("abc!", "a!!c")],
)
def test_unknown_characters_can_be_replaced(chars: str, expected: str) -> None:
    tokenizer = CharTokenizer(chars, unknown="replace")
    ids = tokenizer.encode_narrow("aé𝄞c")
    assert (tokenizer.decode(ids), ids.dtype) == (expected, np.uint8)


@pytest.mark.parametrize(
    "saved",
    [
        *(
            None,
            [],
            "char",
            3,
            {},
            {"type": "bpe"},
            {"type": ["char"], "chars": ["a"]},
            {"type": "char"},
        ),
        *(
            {"type": "char", "chars": chars}
            for chars in (None, 3, [], ["a", 1], ["a", ""], ["a", "bc"])
        ),
    ],
)
def test_other_json_is_no_tokenizer(saved: object) -> None:
    with pytest.raises(DataError):
        tokenizer_from_dict(saved)


@given(ids=st.lists(st.integers(0, 255) | st.sampled_from(list("é€𝄞".encode())), max_size=30))
def test_stream_of_any_bytes_gives_what_decode_gives(ids: list[int]) -> None:
    assert "".join(streamed(ByteTokenizer(), ids)) == ByteTokenizer().decode(ids)


TOKENIZER = CharTokenizer("abc")
CPU = torch.device("cpu")
READ_ONLY = np.array([0, 2, 1], np.uint8)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    "given",
    [
        "acb",
        [0, 2, 1],
        (0, 2, 1),
        [[0, 2, 1]],
        READ_ONLY,
        TOKENIZER.encode("acb")[None],
        torch.tensor([0, 2, 1]).int(),
    ],
    ids=["text", "list", "tuple", "batch", "array", "encoded", "tensor"],
)
def test_text_in_any_container_is_a_batch_of_one(given: Any) -> None:
    ids = to_batch(given, TOKENIZER, CPU)
    assert ids.dtype == torch.int64
    assert ids.tolist() == [[0, 2, 1]]
    assert to_list(given, TOKENIZER, "reader") == [0, 2, 1]
    # line ends are those of a corpus
    assert to_list("a\r\nb\r", CharTokenizer("\nab"), "reader") == [
        1,
        0,
        2,
        0,
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("abc", "a text needs its tokenizer"),
        (b"abc", "expected a text or token ids, which are integers, got bytes"),
        (TOKENIZER, r"got a tokenizer; swap the two, or pass tokenizer=\.\.\.$"),
        (None, "got NoneType"),
        ([1.5], "got list"),
        (["a"], "got list"),
        ([[1], [1, 2]], "lists of the same length"),
        (torch.tensor([1.0]), "must be integers, not float32"),
        (torch.tensor([True]), "must be integers, not bool"),
        (5, r"got shape \(\)"),
        (torch.zeros(1, 1, 1).long(), r"got shape \(1, 1, 1\)"),
    ],
)
def test_neither_text_nor_ids_is_refused(given: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        to_batch(given, None, CPU)


END = "<|endoftext|>"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def trained(pre_tokenizer: Any, normalizer: Any = None) -> Any:
    """The library's own tokenizer with byte-level tokens: 300 of a small corpus, and two that are
    added.
    """
    library = LibraryTokenizer(BPE())
    library.normalizer, library.pre_tokenizer, library.decoder = (
        normalizer,
        pre_tokenizer,
        decoders.ByteLevel(),
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    library.train_from_iterator(
        [CORPUS], BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    )
    library.add_special_tokens([AddedToken(END), AddedToken("the end")])
    return library


def sentencepiece(normalizer: Any, pre_tokenizer: Any, strips: bool) -> Any:
    """The library's own tokenizer as those of Llama 2, Mistral and Gemma: bytes only where no token
    has a character.
    """
    learning = LibraryTokenizer(BPE(unk_token="<unk>"))
    learning.pre_tokenizer = pre_tokenizers.Metaspace()
    first = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    learning.train_from_iterator(
        [CORPUS], BpeTrainer(vocab_size=400, special_tokens=first, show_progress=False)
    )
    model = json.loads(learning.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    library = LibraryTokenizer(
        BPE(model["vocab"], merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    library.normalizer = normalizer
    library.pre_tokenizer = pre_tokenizer
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    library.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strips else steps)
    library.add_special_tokens([AddedToken(token, normalized=False) for token in first[:3]])
    return library


def split(pattern: str) -> Any:
    words = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


SPACES = normalizers.Replace(" ", "▁")
LIBRARIES = {
    "gpt2": trained(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "llama3": trained(split(LLAMA3)),
    "qwen": trained(split(LLAMA3.replace("{1,3}", "")), normalizers.NFC()),
    "llama2": sentencepiece(
        normalizers.Sequence([normalizers.Prepend("▁"), SPACES]), None, strips=True
    ),
    "mistral": sentencepiece(
        None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False), strips=True
    ),
    "gemma": sentencepiece(SPACES, None, strips=False),
}
TOKENIZERS = {
    name: BPETokenizer(json.loads(library.to_str())) for name, library in LIBRARIES.items()
}
LIBRARY = LIBRARIES["gpt2"]
OURS = TOKENIZERS["gpt2"]
CONTENT: dict[str, Any] = OURS.to_dict()["tokenizer"]
MODEL = CONTENT["model"]
PARTS = [
    *(END, "the end", "<s>", "</s>", "<0x0A>", "  ", " room", "'ll", "\r\n"),
    *("\N{COMBINING ACUTE ACCENT}e", "é", "🎭", "12345"),
]
TEXTS = st.lists(
    st.one_of(st.text(st.characters(exclude_categories=["Cs"])), st.sampled_from(PARTS))
).map("".join)
EVERY_KIND = pytest.mark.parametrize("name", LIBRARIES)


@EVERY_KIND
@given(text=TEXTS)
def test_ids_are_those_of_the_library(name: str, text: str) -> None:
    ours = TOKENIZERS[name]
    library = LIBRARIES[name]
    ids = ours.encode(text)
    assert ids.tolist() == library.encode(text, add_special_tokens=False).ids
    assert ours.decode(ids) == library.decode(ids, skip_special_tokens=False)
    assert ours.count_chars(ids) == len("".join(streamed(ours, ids.tolist())))


@EVERY_KIND
def test_character_appears_with_the_last_of_its_bytes(name: str) -> None:
    ours = TOKENIZERS[name]
    ids = ours.encode("a🎭")[-4:]
    stream = ours.stream()
    assert [stream.feed(index) for index in ids] == ["", "", "", "🎭"]
    assert b"".join(map(ours.token_bytes, ids)) == "🎭".encode()


def test_saved_tokenizer_merges_and_neither_cuts_nor_pads() -> None:
    cut = {"max_length": 3, "stride": 0, "strategy": "LongestFirst", "direction": "Right"}
    again = tokenizer_from_dict({"type": "bpe", "tokenizer": CONTENT | {"truncation": cut}})
    ids = again.encode(CORPUS + END)
    assert ids.tolist() == OURS.encode(CORPUS + END).tolist()
    assert len(ids) < 0.8 * len(CORPUS)
    assert ids.max() < again.vocab_size == LIBRARY.get_vocab_size()


@EVERY_KIND
@given(data=st.data())
def test_any_ids_decode_and_stream_as_in_the_library(name: str, data: st.DataObject) -> None:
    ours = TOKENIZERS[name]
    library = LIBRARIES[name]
    ids = data.draw(st.lists(st.integers(0, ours.vocab_size - 1)))
    text = ours.decode(ids)
    theirs = library.decode(ids, skip_special_tokens=False)
    # A library with tokens of single bytes may count the replacement characters of broken UTF-8
    # differently.
    both_broken = "\ufffd" in text and "\ufffd" in theirs
    assert text == theirs or (both_broken and "<0x00>" in library.get_vocab())
    assert (
        "".join(streamed(ours, ids)).removeprefix(" " if name in ("llama2", "mistral") else "")
        == text
    )


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
UNKNOWN = "is not supported: only those of published models are"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a|a)+$"}}},
            rf"the pre-tokenizer .* {UNKNOWN}",
        ),
        (
            {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": ["a"]}}},
            "not a tokenizer|supported",
        ),
        (
            {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [BYTES, BYTES]}},
            "characters more than once",
        ),
        (
            {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits"}] * 9}},
            "more than 8 steps",
        ),
        ({"pre_tokenizer": {"type": "Metaspace", "replacement": "x" * 100_000}}, UNKNOWN),
        (
            {
                "normalizer": {
                    "type": "Replace",
                    "pattern": {"String": "a"},
                    "content": "b" * 100_000,
                }
            },
            UNKNOWN,
        ),
        (
            {"normalizer": {"type": "Replace", "pattern": {"Regex": "(a|a)+$"}, "content": "▁"}},
            UNKNOWN,
        ),
        ({"normalizer": {"type": "Prepend", "prepend": "b" * 100_000}}, UNKNOWN),
        (
            {
                "normalizer": {
                    "type": "Sequence",
                    "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}],
                }
            },
            UNKNOWN,
        ),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}, UNKNOWN),
        (
            {"model": MODEL | {"end_of_word_suffix": "x" * 100_000}},
            r"the suffix x{40}\.\.\. at the end of a word",
        ),
    ],
    ids=range(11),
)
def test_what_a_text_could_take_hours_or_gigabytes_in_is_not_run(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(DataError, match=message) as caught:
        tokenizer_from_dict({"type": "bpe", "tokenizer": CONTENT | changes})
    assert len(str(caught.value)) < 400


def test_added_special_token_is_exported_and_never_encoded() -> None:
    often = {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 1000,
    }
    often |= {
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}]
    }
    again = BPETokenizer(CONTENT | {"post_processor": often | {"special_tokens": {}}})
    assert again.encode(CORPUS).tolist() == OURS.encode(CORPUS).tolist()
    assert again.to_dict()["tokenizer"]["post_processor"] == often | {"special_tokens": {}}


def test_each_known_pattern_takes_a_time_linear_in_the_text() -> None:
    parts = [
        " ",
        "\n",
        " \n",
        "A",
        "a",
        "\N{COMBINING ACUTE ACCENT}A",
        "中",
        "1",
        "!",
        "'s",
        "\t",
        "ǅ",
        "/",
    ]
    began = time.monotonic()
    for pattern in PATTERNS:
        splitter = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        for part in parts:
            splitter.pre_tokenize_str(part * 20_000 + "x")
    assert time.monotonic() - began < PATIENCE


def test_failure_of_the_library_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    panic = type("PanicException", (BaseException,), {})
    for error in (panic("retry-limit-in-match"), RuntimeError("retry-limit-in-match")):
        monkeypatch.setattr(OURS, "_tokenizer", Mock(encode_batch_fast=Mock(side_effect=error)))
        with pytest.raises(DataError, match=r"^the tokenizer fails: retry-limit-in-match$"):
            OURS.encode("a")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decoder": {"type": "Metaspace"}}, "byte-level, as of GPT-2.*; the decoder is Metaspace"),
        ({"decoder": {"type": "Sequence", "decoders": []}}, "only byte pair encoding on bytes"),
        *(({"decoder": other}, "not a tokenizer") for other in (None, "x", [1])),
        (
            {"model": {"type": "BPE", "continuing_subword_prefix": "long enough"}},
            "with the prefix long enough",
        ),
        (
            {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}},
            "254 of the 256 bytes have no token",
        ),
        (
            {"model": MODEL | {"vocab": MODEL["vocab"] | {"☃": len(MODEL["vocab"]) + 1}}},
            "'☃' is not made of bytes",
        ),
        (
            {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}},
            "only byte pair encoding",
        ),
        (
            {"model": {"type": "BPE", "vocab": {"a": 300_000_000}, "merges": []}},
            "10,000,000 ids are supported",
        ),
    ],
)
def test_other_tokenizers_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        BPETokenizer(CONTENT | changes)
