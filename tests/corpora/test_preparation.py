"""A corpus is encoded once, whole, and split in order."""

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpora.place import BPE, TOKENIZERS, Place, changed, cut, holding, swap, whole
from gpt.corpora import corpus_text, preparation, sharding
from gpt.data.dataset import META, open_dataset, seal, unseal
from gpt.system.errors import DataError
from patience import examples

TEXT = "Who keeps the keys? asked Ada.\nThe keeper, said Tom.\n" * 20
LONG = "".join(f"{number} keys and {number * 7} doors.\n" for number in range(400))


@pytest.fixture
def text(place: Place) -> Place:
    place.write(TEXT)
    return place


@given(
    text=st.text(st.characters(codec="utf-8", exclude_characters="\r\ufeff\0"), min_size=2, max_size=200).filter(
        lambda text: len(set(text)) > 1
    ),
    keys=st.sampled_from(TOKENIZERS),
    shard=st.integers(1, 5),
    block=st.integers(1, 60),
    piece=st.integers(1, 30),
    val=st.floats(0.1, 0.9),
)
@examples(0.25)
def test_any_cut_into_pieces_blocks_and_shards_gives_the_same_text_split_at_the_same_place(
    text: str, keys: dict[str, Any], shard: int, block: int, piece: int, val: float
) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(corpus_text, "PIECE", piece),
        patch.object(corpus_text, "BLOCK", block),
        patch.object(sharding, "SHARD_BLOCKS", shard),
    ):
        place = Place(Path(folder))
        place.write(text)
        data = place.prepare(**keys, val_fraction=val)
        ids = data.tokenizer.encode(text)
        assert whole(data) == text
        if keys["tokenizer"] != "bpe":
            assert np.concatenate([np.asarray(data.train), np.asarray(data.val)]).tolist() == ids.tolist()
            assert len(data.train) == int(len(ids) * (1 - val))
        else:  # a token may lie across the border
            border = round(data.chars_per_token(data.train) * len(data.train)) if len(data.train) else 0
            assert 0 <= int(len(text) * (1 - val)) - border <= 8


@pytest.mark.parametrize(("size", "dtype"), [(256, "u1"), (257, "u2"), (65_537, "u4")])
def test_tokens_are_mapped_from_disk_in_the_smallest_type(
    size: int, dtype: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_text, "BLOCK", size)
    place.write("".join(chr(0x10000 + index) for index in range(size)))
    data = place.prepare()
    for tokens in (data.train, data.val):
        assert isinstance(tokens, np.memmap)
        assert not tokens.flags.writeable
        assert tokens.dtype == np.dtype(dtype)


def test_what_was_prepared_is_not_encoded_again(text: Place) -> None:
    first = text.prepare()
    assert text.reports == [f"encoded {text.text} into {text.folder()}"]
    assert set(text.written()) == {"shard-000000.bin", META}
    written = {path: path.stat().st_mtime_ns for path in text.folder().iterdir()}
    text.text.rename(text.files / "moved.txt")
    second = text.prepare(path=str(text.files / "moved.txt"))
    assert {path: path.stat().st_mtime_ns for path in text.folder().iterdir()} == written
    assert (second.fingerprint, len(text.reports)) == (first.fingerprint, 1)
    (text.folder() / META).rename(text.folder() / "meta.json")
    with pytest.raises(DataError, match=r"are damaged \(dataset.json: No such file"):
        open_dataset(text.folder())
    assert whole(text.prepare(path=str(text.files / "moved.txt"))) == TEXT


def test_another_text_or_option_gets_other_token_files(text: Place) -> None:
    others: list[dict[str, Any]] = [{"val_fraction": 0.2}, {"test_fraction": 0.2}, *TOKENIZERS]
    prepared = [text.prepare(**keys) for keys in (*others, BPE | {"bpe_vocab_size": 290})]
    text.write(TEXT.replace("Ada", "Tom"))
    prepared.append(text.prepare())
    assert len({data.fingerprint for data in prepared}) == len(prepared)
    assert whole(prepared[0]) == TEXT


@pytest.mark.parametrize(
    ("text", "tokenizer", "train", "val"),
    [
        ("é𝄞" * 50, "char", 1.0, 1.0),
        ("é𝄞" * 50, "byte", 2 / 6, 2 / 6),
        ("a" * 270 + "€" * 10, "byte", 1.0, 1 / 3),
        ("a" * 260 + "€" * 10, "byte", 1.0, 9 / 29),  # a character across the border
    ],
)
def test_characters_per_token_are_those_of_the_tokens_that_are_read(
    text: str, tokenizer: str, train: float, val: float, place: Place
) -> None:
    place.write(text)
    data = place.prepare(tokenizer=tokenizer)
    assert data.chars_per_token(data.train) == pytest.approx(train, abs=0.003)
    assert data.chars_per_token(data.val) == pytest.approx(val, rel=1e-12)


@pytest.mark.parametrize(
    ("content", "keys", "problem"),
    [
        (b"", {}, "a.txt has 0 bytes"),
        (b"\xef\xbb\xbf", {}, "a.txt has 0 distinct characters; there is nothing to learn from it"),
        (b"\xef\xbb\xbf", {"tokenizer": "byte"}, "has no text in it"),
        (b"a" * 5000, {}, "has 1 distinct characters; there is nothing to learn from it"),
        (b"caf\xe9" * 500, {"tokenizer": "byte"}, "is not UTF-8: byte 3"),
    ],
)
def test_a_text_that_nothing_can_be_learned_from_is_refused_and_leaves_nothing(
    content: bytes, keys: dict[str, Any], problem: str, place: Place
) -> None:
    place.text.write_bytes(content)
    assert problem in place.refusal(**keys)
    assert place.is_empty()


def test_a_split_shorter_than_one_window_is_refused(place: Place) -> None:
    place.write(TEXT[:50])
    data = place.prepare()
    data.check_length(4)
    for block_size, problem in (
        (5, "the val split has 5 tokens, fewer than block_size + 1 = 6; use more text, a smaller model.block_size"),
        (1999, "the train split has 45 tokens, fewer than block_size + 1 = 2,000; "),
    ):
        with pytest.raises(DataError, match=f"^{re.escape(problem)}"):
            data.check_length(block_size)


DAMAGES: list[tuple[str, Callable[[Path], object]]] = [
    *(("shard-000000.bin", damage) for damage in (cut, swap, Path.unlink)),
    (META, cut),
    *((META, holding(content)) for content in (b"", b"\xff\xfe", b"[]", b"{}", b"null")),
    (META, lambda path: path.write_text(path.read_text().replace('"k"', '"K"'))),
    *((META, changed(dtype=dtype)) for dtype in (None, "nonsense", ["u1"], "<u4")),
    *((META, changed(shards=shards)) for shards in (None, [], [{"file": "shard-000000.bin"}])),
    (META, changed(splits={"train": [0, 10**9], "val": [0, 1]})),
    *((META, changed(splits=splits)) for splits in ({"train": [0, 10]}, {"train": "ab", "val": "cd"})),
    *((META, changed(splits={"train": train, "val": [5, len(TEXT)]})) for train in ([5, 5], [0, 4], [0, 6], [0, 5.0])),
    (META, changed(shards=[{"file": "shard-000000.bin", "length": 10**400, "sha256": "0"}])),
    *((META, changed(tokenizer=saved)) for saved in (None, {"type": "bpe"}, {"type": "char", "chars": []})),
]


@pytest.mark.parametrize(("name", "damage"), DAMAGES)
def test_damaged_token_files_are_refused_with_what_to_do(
    name: str, damage: Callable[[Path], object], text: Place
) -> None:
    text.prepare()
    folder = text.folder()
    damage(folder / name)
    said = text.refusal()
    assert said.startswith(f"the token files in {folder} are damaged (")
    assert said.endswith("delete that folder and start again")
    shutil.rmtree(folder)
    assert whole(text.prepare()) == TEXT


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), OSError(28, "No space left")], ids=repr)
def test_a_crash_in_the_middle_leaves_nothing_half_written(
    error: BaseException, text: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_off(*arguments: object) -> Iterator[Any]:
        yield np.zeros(3, np.uint16)
        raise error

    with monkeypatch.context() as context:
        context.setattr(sharding, "_encoded", break_off)
        with pytest.raises(DataError if isinstance(error, OSError) else type(error)) as caught:
            text.prepare(**BPE)
    assert not isinstance(error, OSError) or str(caught.value).startswith(f"cannot write {text.tokens}")
    (partial,) = text.tokens.iterdir()
    assert partial.name.endswith(".partial")
    assert [path.name for path in partial.iterdir()] == [sharding.JOURNAL]
    assert whole(text.prepare(**BPE)) == TEXT


def test_what_another_process_prepares_meanwhile_is_waited_for_and_taken(
    text: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquire = sharding.FileLock.acquire

    def overtaken(lock: sharding.FileLock, *arguments: Any) -> Any:
        monkeypatch.setattr(sharding.FileLock, "acquire", acquire)
        text.prepare()
        written.update(path.stat() for path in text.folder().iterdir())
        return acquire(lock, *arguments)

    written: set[Any] = set()
    monkeypatch.setattr(sharding.FileLock, "acquire", overtaken)
    assert whole(text.prepare()) == TEXT
    assert {path.stat().st_mtime_ns for path in text.folder().iterdir()} == {found.st_mtime_ns for found in written}


def test_folders_and_files_that_cannot_be_used_are_told_and_kept(text: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse = Mock(side_effect=PermissionError(13, "Permission denied"))
    said = text.refusal(dir=str(text.text))
    assert said.startswith(f"cannot write {text.text / 'tokens'}")
    assert said.endswith("or set data.dir to another folder")
    with monkeypatch.context() as context:
        context.setattr(Path, "rename", refuse)
        assert "Permission denied" in text.refusal()
    assert whole(text.prepare()) == TEXT
    monkeypatch.setattr(preparation, "sha256_of", refuse)
    assert text.refusal() == f"cannot read {text.text}: Permission denied"


def test_byte_pairs_are_learned_and_fewer_than_characters(place: Place) -> None:
    place.write(LONG)
    chars, pairs = place.prepare(), place.prepare(**BPE)
    assert pairs.tokenizer.vocab_size == 300
    assert len(pairs.train) < 0.7 * len(chars.train)
    assert pairs.chars_per_token(pairs.val) == len(chars.val) / len(pairs.val)


def test_byte_pairs_without_their_library_are_refused(text: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpt.data.bpe.find_spec", lambda name: None)
    assert "needs the tokenizers package: pip install 'glassgpt[bpe]'" in text.refusal(tokenizer="bpe")
    assert text.is_empty()


def test_a_changed_vocabulary_is_refused() -> None:
    sealed = seal({"tokenizer": {"type": "char", "chars": ["a", "b"]}})
    assert seal(unseal(sealed)) == sealed
    for broken in ({**sealed, "tokenizer": {"type": "char", "chars": ["a", "c"]}}, unseal(sealed)):
        with pytest.raises(ValueError, match="another sha256"):
            unseal(broken)
