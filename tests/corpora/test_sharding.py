"""Shards hold the text as one stream; what a killed process finished is kept, what is damaged is encoded again."""

import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from filelock import FileLock

from corpora.place import BPE, TOKENIZERS, Place, cut, holding, whole
from gpt.config import DataConfig
from gpt.corpora import sharding, shards
from gpt.corpora.shards import JOURNAL
from gpt.corpora.workers import WorkerLost, map_texts
from gpt.data.dataset import META, seal, unseal
from gpt.data.tokenizers import ByteTokenizer, Tokenizer
from gpt.errors import DataError

LINES = [f"{number} keys, and “{number * 7}” doors: {'é' * (number % 5)}\n" for number in range(300)]
TEXT = "".join(LINES)
SHARDS = {"shard_tokens": 1000}


@pytest.fixture
def text(place: Place) -> Place:
    place.write(TEXT)
    return place


@pytest.mark.parametrize("keys", TOKENIZERS, ids=lambda keys: keys["tokenizer"])
def test_shards_are_as_long_as_was_asked_for_and_a_text_is_split_where_it_is_split_without(
    keys: dict[str, Any], text: Place
) -> None:
    data = text.prepare(**SHARDS, **keys)
    found = json.loads((text.folder() / META).read_text())["shards"]
    lengths = [shard["length"] for shard in found]
    assert len(lengths) > 3
    assert lengths[:-1] == [1000] * (len(lengths) - 1)
    assert 0 < lengths[-1] <= 1000
    assert set(text.written()) == {META, *(shard["file"] for shard in found)}
    assert whole(data) == TEXT
    plain = text.prepare(force=True, **keys)
    assert (data.fingerprint == plain.fingerprint) == (keys is not BPE)
    border = round(data.chars_per_token(data.train) * len(data.train))
    # a token may lie across the border
    assert abs(border - round(plain.chars_per_token(plain.train) * len(plain.train))) <= 8


def test_the_splits_of_text8_are_of_ninety_five_and_five_percent(text: Place) -> None:
    config = DataConfig(val_fraction=0.05, test_fraction=0.05)
    data = text.prepare(val_fraction=0.05, test_fraction=0.05)
    assert data.test is not None
    assert (len(data.val), len(data.test)) == (round(len(TEXT) / 20), round(len(TEXT) / 20))
    assert whole(data) == TEXT
    for size in (100_000_000, 1_000_003):
        one = [shards.Shard("x", size, "", size, 0, 0)]
        assert sharding._splits(Path(), one, ByteTokenizer(), config)["train"][1] == size - 2 * round(size / 20)


def leave_unfinished(text: Place, blocks: int, **keys: Any) -> Path:
    """Encode so many blocks, then end like a killed worker."""

    def killed(tokenizer: Tokenizer, texts: Iterator[str], processes: int) -> Iterator[bytes]:
        yield from map_texts(tokenizer, islice(texts, blocks), 1)
        raise WorkerLost("killed")

    with pytest.MonkeyPatch.context() as context:
        context.setattr(sharding, "map_texts", killed)
        with pytest.raises(WorkerLost):
            text.prepare(**SHARDS, **keys)
    return text.folder()


def written_straight(text: Place, **keys: Any) -> dict[str, bytes]:
    text.prepare(**SHARDS, **keys)
    straight = text.written()
    text.folder().rename(text.data / "straight")
    return straight


@pytest.mark.parametrize("keys", TOKENIZERS, ids=lambda keys: keys["tokenizer"])
@pytest.mark.parametrize("blocks", [0, 1, 4, 9])
def test_work_that_was_killed_ends_with_the_same_shards_and_keeps_the_finished_ones(
    blocks: int, keys: dict[str, Any], text: Place
) -> None:
    straight = written_straight(text, **keys)
    partial = leave_unfinished(text, blocks, **keys)
    assert partial.name.endswith(".partial")
    kept = {path.name: path.stat().st_mtime_ns for path in partial.glob("*.bin")}
    assert (len(kept) > 0) == (blocks > 2)
    text.prepare(**SHARDS, **keys)
    assert text.written() == straight
    assert {name: (text.folder() / name).stat().st_mtime_ns for name in kept} == kept


def edited(old: str, new: str) -> Callable[[Path], object]:
    """Writes something else for the first occurrence of a text, which there has to be."""

    def edit(path: Path) -> None:
        content = path.read_text()
        assert old in content
        path.write_text(content.replace(old, new, 1))

    return edit


def forged(**values: Any) -> Callable[[Path], object]:
    """Changes the first shard in the journal, and the hash with it."""

    def forge(path: Path) -> None:
        journal = unseal(json.loads(path.read_text()))
        journal["shards"][0] |= values
        path.write_text(json.dumps(seal(journal)))

    return forge


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("shard-000001.bin", holding(b"short")),
        ("shard-000001.bin", Path.unlink),
        ("shard-000007.tmp", holding(b"half")),
        *((JOURNAL, damage) for damage in (cut, holding(b""), holding(b"[]\n"), Path.unlink)),
        (JOURNAL, edited('"offset": ', '"offset": 1')),
        (JOURNAL, edited('"k"', '"@"')),
        (JOURNAL, edited('"shard_tokens": ', '"shard_tokens": ' + "[" * 100_000)),
        *((JOURNAL, forged(**{key: value})) for key, value in (("block", 2**63), ("chars", 10**400), ("offset", -1))),
        *((JOURNAL, forged(**{key: value})) for key, value in (("file", "../shard-000000"), ("length", "a"))),
    ],
)
def test_what_a_crash_damaged_is_encoded_again_and_named(
    name: str, damage: Callable[[Path], object], text: Place
) -> None:
    straight = written_straight(text)
    partial = leave_unfinished(text, 9)
    damage(partial / name)
    text.prepare(**SHARDS)
    assert text.written() == straight
    is_named = any("is damaged; encoding again from there" in line for line in text.reports)
    assert is_named == (name.endswith(".bin") or (name == JOURNAL and damage is not Path.unlink))


def test_force_encodes_again_and_deletes_nothing_while_another_process_prepares(
    text: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    text.prepare(**SHARDS)
    straight, found, acquire = text.written(), [], FileLock.acquire
    (text.folder() / "shard-000001.bin").write_bytes(b"short")
    monkeypatch.setattr(FileLock, "acquire", lambda *given: (found.append(len(text.written())), acquire(*given))[1])
    text.prepare(force=True, **SHARDS)
    assert found == [len(straight)]
    assert text.written() == straight


def test_another_length_of_shards_starts_over_unless_they_are_finished(text: Place) -> None:
    leave_unfinished(text, 9)
    assert whole(text.prepare(shard_tokens=90_000)) == TEXT
    assert sorted(text.written()) == [META, "shard-000000.bin"]
    before = len(text.reports)
    text.prepare(shard_tokens=500, workers=2)
    assert len(text.reports) == before


def test_several_processes_write_what_one_writes_and_each_shard_is_told(text: Place) -> None:
    straight = written_straight(text)
    assert sum(": 1,000 tokens" in line for line in text.reports) >= 4
    text.prepare(workers=2, **SHARDS)
    assert text.written() == straight


def test_a_text_that_is_changed_while_it_is_read_is_refused(text: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = ByteTokenizer.encode_narrow

    def change(self: ByteTokenizer, block: str) -> Any:
        text.write(TEXT + "more")
        return encode(self, block)

    monkeypatch.setattr(ByteTokenizer, "encode_narrow", change)
    for keys in ({}, SHARDS):
        text.write(TEXT)
        assert "a.txt was changed while it was read; start again" in text.refusal(tokenizer="byte", **keys)
        assert text.is_empty()


def test_a_full_disk_keeps_what_is_finished(text: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    straight = written_straight(text)
    finish, left = shards._ShardFile.finish, iter(range(3))

    def refuse(*arguments: Any) -> Any:
        if next(left, None) is None:
            raise OSError(28, "No space left on device")
        return finish(*arguments)

    with monkeypatch.context() as context:
        context.setattr(shards._ShardFile, "finish", refuse)
        with pytest.raises(DataError, match=r"cannot write .*: No space left on device; .* keeps what is finished"):
            text.prepare(**SHARDS)
    assert len(list(text.folder().glob("*.bin"))) == 3
    text.prepare(**SHARDS)
    assert text.written() == straight


def test_a_journal_that_cannot_be_written_again_is_kept_and_so_are_folders(
    text: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = leave_unfinished(text, 9)
    (folder / ".snapshot").mkdir()
    before = (folder / JOURNAL).read_bytes()
    with monkeypatch.context() as context:
        context.setattr(shards, "write_atomic", Mock(side_effect=OSError(28, "No space left on device")))
        assert "No space left on device" in text.refusal(**SHARDS)
    assert (folder / JOURNAL).read_bytes() == before
    assert (folder / ".snapshot").is_dir()


def test_files_are_joined_in_order_with_a_separator_and_a_bad_one_leaves_nothing(place: Place) -> None:
    texts = ["".join(LINES[number::3]) for number in range(3)]
    for number, content in enumerate(texts):
        (place.files / f"{number}.txt").write_text(content, encoding="utf-8")
    (place.files / ".hidden").write_text("no")
    (place.files / "empty.txt").write_text("")
    files = {"path": str(place.files), **SHARDS}
    (place.files / "z.txt").write_bytes(b"\xff" * 3000)
    assert "z.txt is not UTF-8" in place.refusal(tokenizer="byte", **files)
    assert "data.sha256 is the hash of one file" in place.refusal(sha256="0" * 64, **files)
    assert place.is_empty()
    (place.files / "z.txt").unlink()
    assert whole(place.prepare(**files)) == "\n\n".join(texts)
    assert whole(place.prepare(separator="¶", tokenizer="byte", **files)) == "¶".join(texts)
    assert whole(place.prepare(path=str(place.files / "[01].*"))) == "\n\n".join(texts[:2])
