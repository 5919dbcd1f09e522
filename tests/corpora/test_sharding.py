"""A large corpus becomes shards: the same ones, however often the work was interrupted and however many did it."""

import gzip
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from gpt.config import DataConfig
from gpt.corpora import corpus_text, prepare, shards
from gpt.corpora.tasks import Encode
from gpt.corpora.workers import WorkerLost
from gpt.data import Dataset
from gpt.data.dataset import seal
from gpt.environment import Settings
from gpt.errors import DataError

OFFLINE = Settings(data_dir=None, cache_dir=Path("unused"), offline=True)
LINES = [f"{number} keys, and “{number * 7}” doors: {'é' * (number % 5)}\n" for number in range(300)]
TEXT = "".join(LINES)
TOKENIZERS: list[dict[str, Any]] = [
    {"tokenizer": "char"},
    {"tokenizer": "byte"},
    {"tokenizer": "bpe", "bpe_vocab_size": 300},
]


class Place:
    """A folder of text files beside a data folder."""

    def __init__(self, folder: Path) -> None:
        self.files, self.data = folder / "files", folder / "data"
        self.files.mkdir()
        self.reports: list[str] = []

    def prepare(self, path: str | None = None, force: bool = False, **keys: Any) -> Dataset:
        values = {"source": "file", "path": path or str(self.files), "dir": str(self.data), "workers": 1}
        config = DataConfig.model_validate({**values, "shard_tokens": 1000, **keys})
        return prepare(config, OFFLINE, self.reports.append, force)

    def folder(self) -> Path:
        (folder,) = (self.data / "tokens").iterdir()
        return folder

    def written(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.folder().iterdir()}

    def refusal(self, **keys: Any) -> str:
        with pytest.raises(DataError) as caught:
            self.prepare(**keys)
        left = self.data / "tokens"
        assert not left.exists() or list(left.iterdir()) == []
        return str(caught.value)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(corpus_text, "BLOCK", 700)
    monkeypatch.setattr(shards, "BLOCK", 700)
    return Place(tmp_path)


@pytest.fixture
def text(place: Place) -> Place:
    (place.files / "a.txt").write_text(TEXT, encoding="utf-8", newline="")
    return place


def whole(data: Dataset) -> str:
    splits = [data.train, data.val] + ([] if data.test is None else [data.test])
    return data.tokenizer.decode(np.concatenate([np.asarray(split) for split in splits]))


@pytest.mark.parametrize("keys", TOKENIZERS, ids=lambda keys: keys["tokenizer"])
def test_shards_hold_the_text_and_are_as_long_as_was_asked_for(keys: dict[str, Any], text: Place) -> None:
    data = text.prepare(**keys)
    meta = json.loads((text.folder() / "dataset.json").read_text())
    lengths = [shard["length"] for shard in meta["shards"]]
    assert lengths[:-1] == [1000] * (len(lengths) - 1)
    assert len(lengths) > 3
    assert 0 < lengths[-1] <= 1000
    assert len(data.train) + len(data.val) == sum(lengths)
    assert whole(data) == TEXT
    assert {path.name for path in text.folder().iterdir()} == {
        "dataset.json",
        *(shard["file"] for shard in meta["shards"]),
    }


@pytest.mark.parametrize("keys", TOKENIZERS, ids=lambda keys: keys["tokenizer"])
def test_a_text_is_split_where_it_is_split_without_shards(keys: dict[str, Any], text: Place) -> None:
    sharded = text.prepare(**keys)
    plain = text.prepare(str(text.files / "a.txt"), force=True, shard_tokens=None, **keys)
    assert np.memmap is type(plain.train)
    for split in ("train", "val"):
        ours, theirs = getattr(sharded, split), getattr(plain, split)
        if keys["tokenizer"] != "bpe":
            np.testing.assert_array_equal(np.asarray(ours), theirs)
            assert sharded.fingerprint == plain.fingerprint
        characters = [
            round(data.chars_per_token(tokens) * len(tokens)) for data, tokens in ((sharded, ours), (plain, theirs))
        ]
        assert abs(characters[0] - characters[1]) <= 8  # a token may lie across the border


def test_the_splits_of_text8_are_of_ninety_five_and_five_percent(text: Place) -> None:
    data = text.prepare(val_fraction=0.05, test_fraction=0.05)
    assert data.test is not None
    total = len(TEXT)
    assert (len(data.val), len(data.test)) == (round(total / 20), round(total / 20))
    assert whole(data) == TEXT
    for size in (100_000_000, 1_000_003):
        assert shards_splits(size)["train"][1] == size - 2 * round(size / 20)


def shards_splits(size: int) -> dict[str, tuple[int, int]]:
    from gpt.corpora.sharding import _splits
    from gpt.data.tokenizers import ByteTokenizer

    config = DataConfig(val_fraction=0.05, test_fraction=0.05)
    return _splits(Path(), [shards.Shard("x", size, "", size, 0, 0)], ByteTokenizer(), config)


def stop_after(count: int) -> Callable[[Encode, str], bytes]:
    """Encodes so many blocks, then ends like a killed worker."""
    done = iter(range(count))
    encode = Encode.__call__

    def call(self: Encode, text: str) -> bytes:
        if next(done, None) is None:
            raise WorkerLost("killed")
        return encode(self, text)

    return call


@pytest.mark.parametrize("keys", TOKENIZERS, ids=lambda keys: keys["tokenizer"])
@pytest.mark.parametrize("blocks", [0, 1, 4, 9])
def test_work_that_was_killed_ends_with_the_same_shards_and_keeps_the_finished_ones(
    blocks: int, keys: dict[str, Any], text: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    text.prepare(**keys)
    straight = text.written()
    shutil.rmtree(text.folder())
    with monkeypatch.context() as patch:
        patch.setattr(Encode, "__call__", stop_after(blocks))
        with pytest.raises(WorkerLost):
            text.prepare(**keys)
    partial = text.folder()
    assert partial.name.endswith(".partial")
    kept = {path.name: path.stat().st_mtime_ns for path in partial.glob("*.bin")}
    assert (len(kept) > 0) == (blocks > 2)
    text.prepare(**keys)
    assert text.written() == straight
    assert {name: (text.folder() / name).stat().st_mtime_ns for name in kept} == kept


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "shard-000001.bin").write_bytes(b"short"),
        lambda folder: (folder / "shard-000001.bin").unlink(),
        lambda folder: (folder / "shard-000007.tmp").write_bytes(b"half"),
        lambda folder: (folder / "shards.jsonl").write_bytes((folder / "shards.jsonl").read_bytes()[:-7]),
        lambda folder: (folder / "shards.jsonl").write_bytes(b""),
        lambda folder: rewrite(folder / "shards.jsonl", r'"offset": [1-9]', '"offset": 0'),
        lambda folder: rewrite(folder / "shards.jsonl", r'"k"', '"@"'),
        lambda folder: rewrite(folder / "shards.jsonl", r"\n.*shard-000001.*\n", "\n"),
        lambda folder: (folder / "shards.jsonl").write_bytes(b"[]\n{}\n"),
        lambda folder: (folder / "shards.jsonl").unlink(),
        lambda folder: edit(folder, b'"block": 4', b'"block": 5'),
        lambda folder: edit(folder, b'"file": "shard-000000', b'"file": "../shard-000000'),
        lambda folder: edit(folder, b'"length": 1000', b'"length": "a"'),
        lambda folder: edit(folder, b'"shard_tokens"', b"[" * 100_000),
        lambda folder: forge(folder, "block", 2**63),
        lambda folder: forge(folder, "chars", 10**400),
        lambda folder: forge(folder, "offset", -1),
    ],
)
def test_what_a_crash_damaged_is_encoded_again(
    damage: Callable[[Path], object], text: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    text.prepare()
    straight = text.written()
    shutil.rmtree(text.folder())
    with monkeypatch.context() as patch:
        patch.setattr(Encode, "__call__", stop_after(9))
        with pytest.raises(WorkerLost):
            text.prepare()
    damage(text.folder())
    text.prepare()
    assert text.written() == straight


def rewrite(path: Path, pattern: str, new: str) -> None:
    """Change what the pattern finds, which it has to."""
    path.write_text(changed := re.sub(pattern, new, path.read_text()))
    assert new in changed


def test_what_is_damaged_is_named(text: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Encode, "__call__", stop_after(9))
        with pytest.raises(WorkerLost):
            text.prepare()
    shard = text.folder() / "shard-000001.bin"
    shard.write_bytes(b"short")
    text.prepare()
    assert f"{shard} is damaged; encoding again from there" in text.reports


def test_force_encodes_again_and_deletes_nothing_while_another_process_prepares(
    text: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    text.prepare()
    straight = text.written()
    (text.folder() / "shard-000001.bin").write_bytes(b"short")
    found, acquire = [], FileLock.acquire

    def note(lock: FileLock, *arguments: Any) -> Any:
        found.append(len(text.written()))
        return acquire(lock, *arguments)

    monkeypatch.setattr(FileLock, "acquire", note)
    text.prepare(force=True)
    assert found == [len(straight)]
    assert text.written() == straight


def test_another_length_of_shards_starts_over(text: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Encode, "__call__", stop_after(9))
        with pytest.raises(WorkerLost):
            text.prepare()
    assert whole(text.prepare(shard_tokens=900)) == TEXT
    assert (text.folder() / "shard-000000.bin").stat().st_size == 900


def test_several_processes_write_what_one_writes(text: Place) -> None:
    text.prepare()
    straight = text.written()
    shutil.rmtree(text.folder())
    text.prepare(workers=2)
    assert text.written() == straight


def test_progress_is_told_for_each_shard_and_what_is_there_is_not_encoded_again(text: Place) -> None:
    text.prepare()
    assert sum(": 1,000 tokens" in line for line in text.reports) >= 4
    before = len(text.reports)
    text.prepare(shard_tokens=500, workers=2)
    assert len(text.reports) == before


def edit(folder: Path, old: bytes, new: bytes) -> None:
    path = folder / "shards.jsonl"
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new, 1))


def forge(folder: Path, key: str, value: int) -> None:
    """Change a number of the first shard in the journal, and the hash with it."""
    path = folder / "shards.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    shard = json.loads(lines[1])["shard"] | {key: value}
    lines[1] = json.dumps(seal({"shard": shard})) + "\n"
    path.write_text("".join(lines))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def changed(**values: Any) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        meta = json.loads(path.read_text()) | values
        del meta["sha256"]  # as old versions wrote it
        path.write_text(json.dumps(meta))

    return change


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("shard-000002.bin", cut),
        ("shard-000002.bin", lambda path: path.write_bytes(path.read_bytes()[::-1])),
        ("shard-000000.bin", Path.unlink),
        ("dataset.json", cut),
        ("dataset.json", lambda path: path.write_text(path.read_text().replace('"k"', '"K"'))),
        ("dataset.json", changed(shards=[])),
        ("dataset.json", changed(shards=None)),
        ("dataset.json", changed(shards=[{"file": "shard-000000.bin"}])),
        ("dataset.json", changed(splits={"train": [0, 10**9], "val": [0, 1]})),
        ("dataset.json", changed(splits={"train": [0, 10]})),
        ("dataset.json", changed(splits={"train": "ab", "val": "cd"})),
        ("dataset.json", changed(tokenizer={"type": "other"})),
        ("dataset.json", changed(dtype="<u4")),
    ],
)
def test_damaged_shards_are_refused_with_what_to_do(name: str, damage: Callable[[Path], object], text: Place) -> None:
    text.prepare()
    folder = text.folder()
    damage(folder / name)
    with pytest.raises(DataError) as caught:
        text.prepare()
    assert str(caught.value).startswith(f"the token files in {folder} are damaged (")
    assert "\n" not in str(caught.value)
    text.prepare(force=True)


def test_a_text_that_is_changed_while_it_is_read_is_refused(text: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = Encode.__call__

    def change(self: Encode, block: str) -> bytes:
        (text.files / "a.txt").write_text(TEXT + "more", encoding="utf-8")
        return encode(self, block)

    monkeypatch.setattr(Encode, "__call__", change)
    assert "a.txt was changed while it was read; start again" in text.refusal(tokenizer="byte")


def test_a_full_disk_keeps_what_is_finished(text: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    text.prepare()
    straight = text.written()
    shutil.rmtree(text.folder())
    finish, count = shards._ShardFile.finish, iter(range(3))

    def refuse(*arguments: Any) -> Any:
        if next(count, None) is None:
            raise OSError(28, "No space left on device")
        return finish(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(shards._ShardFile, "finish", refuse)
        with pytest.raises(DataError, match=r"cannot write .*: No space left on device; .* keeps what is finished"):
            text.prepare()
    assert len(list(text.folder().glob("*.bin"))) == 3
    text.prepare()
    assert text.written() == straight


def documents(place: Place, count: int = 3) -> Iterator[Path]:
    for number in range(count):
        path = place.files / f"{number}.txt"
        path.write_text("".join(LINES[number::count]), encoding="utf-8")
        yield path


def test_files_are_joined_in_order_with_a_separator(place: Place) -> None:
    texts = [path.read_text(encoding="utf-8") for path in documents(place)]
    (place.files / ".hidden").write_text("no")
    (place.files / "empty.txt").write_text("")
    assert whole(place.prepare()) == "\n\n".join(texts)
    assert whole(place.prepare(separator="¶", tokenizer="byte")) == "¶".join(texts)
    assert whole(place.prepare(str(place.files / "[01].*"))) == "\n\n".join(texts[:2])


def test_a_compressed_text_gives_the_tokens_of_the_text(text: Place) -> None:
    first = text.prepare()
    packed = text.files.parent / "a.txt.gz"
    packed.write_bytes(gzip.compress(TEXT.encode()))
    second = text.prepare(str(packed))
    np.testing.assert_array_equal(np.asarray(second.train), np.asarray(first.train))


@pytest.mark.parametrize(
    ("content", "keys", "problem"),
    [
        (b"caf\xe9" * 500, {}, "is not UTF-8: byte 3"),
        (b"", {}, "all files of"),
        (b"\xef\xbb\xbf", {"tokenizer": "byte"}, "has no text in it"),
        (b"a" * 5000, {}, "has 1 distinct characters; there is nothing to learn from it"),
        (b"ab\r\n", {}, "has CRLF (Windows) line ends"),
        (b"ab" * 50, {"max_bytes": 99}, "has 100 bytes, more than data.max_bytes 99"),
        (b"ab" * 50, {"sha256": "0" * 64}, "data.sha256 is the hash of one file"),
    ],
)
def test_what_is_no_text_is_refused_and_leaves_nothing(
    content: bytes, keys: dict[str, Any], problem: str, place: Place
) -> None:
    (place.files / "a.txt").write_bytes(content)
    assert problem in place.refusal(**keys)


def test_a_bad_file_at_the_end_leaves_nothing(text: Place) -> None:
    (text.files / "z.txt").write_bytes(b"\xff" * 3000)
    assert "z.txt is not UTF-8" in text.refusal(tokenizer="byte")
