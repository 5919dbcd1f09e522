"""Shards hold the text as one stream; what a killed process finished is kept."""

import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corpora.place import BLOCK, BPE, TOKENIZERS, Place, cut, holding, swap, whole
from gpt.config import DataConfig
from gpt.corpora import sharding
from gpt.data.dataset import META
from gpt.data.tokenizers import ByteTokenizer, Ids, Tokenizer
from gpt.system.errors import DataError

LINES = [f"{number} keys, and “{number * 7}” doors: {'é' * (number % 5)}\n" for number in range(300)]
TEXT = "".join(LINES)
SHARDS = -(-len(TEXT) // (2 * BLOCK))


@pytest.fixture
def text(place: Place) -> Place:
    place.write(TEXT)
    return place


@pytest.mark.parametrize("keys", TOKENIZERS, ids=lambda keys: keys["tokenizer"])
def test_shards_are_of_equally_many_blocks_and_give_the_text_split_at_the_same_characters(
    keys: dict[str, Any], text: Place
) -> None:
    data = text.prepare(**keys)
    names = [f"shard-{number:06d}.bin" for number in range(SHARDS)]
    assert SHARDS > 4
    assert set(text.written()) == {META, *names}
    first = np.frombuffer(text.written()[names[0]], data.train.dtype)
    assert data.tokenizer.decode(first) == TEXT[: 2 * BLOCK]
    assert whole(data) == TEXT
    if keys is BPE:  # a token may lie across the border
        border = round(data.chars_per_token(data.train) * len(data.train))
        assert 0 <= int(len(TEXT) * 0.9) - border <= 8


def test_the_splits_of_text8_are_of_ninety_five_and_five_percent(text: Place) -> None:
    config = DataConfig(val_fraction=0.05, test_fraction=0.05)
    data = text.prepare(val_fraction=0.05, test_fraction=0.05)
    assert data.test is not None
    assert (len(data.val), len(data.test)) == (round(len(TEXT) / 20), round(len(TEXT) / 20))
    assert whole(data) == TEXT
    for size in (100_000_000, 1_000_003):
        tokens = np.broadcast_to(np.uint8(0), size)
        assert sharding._splits(tokens, ByteTokenizer(), config)["train"][1] == size - 2 * round(size / 20)


def leave_unfinished(text: Place, blocks: int, error: BaseException, **keys: Any) -> Path:
    """Encode so many blocks, then end."""
    encoded = sharding._encoded

    def killed(tokenizer: Tokenizer, texts: Iterator[str]) -> Iterator[Ids]:
        yield from encoded(tokenizer, islice(texts, blocks))
        raise error

    with pytest.MonkeyPatch.context() as context:
        context.setattr(sharding, "_encoded", killed)
        with pytest.raises((type(error), DataError)):
            text.prepare(**keys)
    return text.folder()


def written_straight(text: Place, **keys: Any) -> dict[str, bytes]:
    text.prepare(**keys)
    straight = text.written()
    text.folder().rename(text.data / "straight")
    return straight


@pytest.mark.parametrize("keys", TOKENIZERS, ids=lambda keys: keys["tokenizer"])
@pytest.mark.parametrize("blocks", [0, 1, 4, 9])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")], ids=["killed", "full"])
def test_work_that_was_ended_goes_on_to_the_same_shards_and_keeps_the_finished_ones(
    blocks: int, error: BaseException, keys: dict[str, Any], text: Place
) -> None:
    straight = written_straight(text, **keys)
    partial = leave_unfinished(text, blocks, error, **keys)
    assert partial.name.endswith(".partial")
    kept = {path.name: path.stat().st_mtime_ns for path in partial.glob("*.bin")}
    assert len(kept) == blocks // 2
    assert list(partial.glob(".*")) == []
    text.prepare(**keys)
    assert text.written() == straight
    assert {name: (text.folder() / name).stat().st_mtime_ns for name in kept} == kept


def swap_pair(path: Path) -> None:
    """Give two pairs of characters each other's id, in valid JSON."""
    content = path.read_text()
    vocabulary = json.loads(content)["tokenizer"]["tokenizer"]["model"]["vocab"]
    first, second = list(vocabulary)[-2:]
    for name, number in ((first, vocabulary[second]), (second, vocabulary[first])):
        content = content.replace(f"{json.dumps(name)}: {vocabulary[name]}", f"{json.dumps(name)}: {number}")
    assert content != path.read_text()
    path.write_text(content)


DAMAGES: list[tuple[str, Callable[[Path], object]]] = [
    *(("shard-000001.bin", damage) for damage in (swap, cut, Path.unlink)),
    *(("journal.json", damage) for damage in (swap_pair, cut, Path.unlink)),
    *(("journal.json", holding(content)) for content in (b"", b"\xff", b"[]", b"null")),
    (".shard-000004.bin.abcdefgh.tmp", Path.mkdir),
]


@pytest.mark.parametrize(("name", "damage"), DAMAGES)
def test_what_was_damaged_since_is_made_anew(name: str, damage: Callable[[Path], object], text: Place) -> None:
    straight = written_straight(text, **BPE)
    damage(leave_unfinished(text, 9, KeyboardInterrupt(), **BPE) / name)
    text.prepare(**BPE)
    assert text.written() == straight


def test_byte_pairs_that_were_learned_stay(text: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    straight = written_straight(text, **BPE)
    leave_unfinished(text, 4, KeyboardInterrupt(), **BPE)
    monkeypatch.setattr("gpt.corpora.corpus_text.learn_bpe", lambda *arguments: pytest.fail("learned again"))
    text.prepare(**BPE)
    assert text.written() == straight


def test_a_text_that_is_changed_while_it_is_read_is_refused(text: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = ByteTokenizer.encode_narrow

    def change(self: ByteTokenizer, block: str) -> Any:
        text.write(TEXT + "more")
        return encode(self, block)

    monkeypatch.setattr(ByteTokenizer, "encode_narrow", change)
    assert "a.txt was changed while it was read; start again" in text.refusal(tokenizer="byte")
    assert text.is_empty()


def test_files_are_joined_in_order_by_an_empty_line_and_a_bad_one_leaves_nothing(place: Place) -> None:
    texts = ["".join(LINES[number::3]) for number in range(3)]
    for number, content in enumerate(texts):
        (place.files / f"{number}.txt").write_text(content, encoding="utf-8")
    (place.files / ".hidden").write_text("no")
    (place.files / "empty.txt").write_text("")
    files = {"path": str(place.files)}
    (place.files / "z.txt").write_bytes(b"\xff" * 3000)
    assert "z.txt is not UTF-8" in place.refusal(tokenizer="byte", **files)
    assert place.is_empty()
    (place.files / "z.txt").unlink()
    assert whole(place.prepare(**files)) == "\n\n".join(texts)
    assert whole(place.prepare(path=str(place.files / "[01].*"))) == "\n\n".join(texts[:2])
