"""A corpus is encoded once, as one stream, and split in order.

What ends meanwhile leaves nothing.
"""

import errno
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt.config import DataConfig
from gpt.data import corpus_text, encoding
from gpt.data.dataset import META, TOKENS, Dataset, open_dataset, seal, token_folders, unseal
from gpt.data.preparation import prepare
from gpt.data.tokenizers import ByteTokenizer, Ids, Tokenizer
from gpt.system.environment import Settings
from gpt.system.errors import DataError
from patience import examples

OFFLINE = Settings(data_dir=None, cache_dir=Path("unused"), offline=True)
BPE: dict[str, Any] = {"tokenizer": "bpe", "bpe_vocab_size": 300}
TOKENIZERS: list[dict[str, Any]] = [{"tokenizer": "char"}, {"tokenizer": "byte"}, BPE]
BLOCK = 700
"""Characters that are encoded at a time."""


class Place:
    """A folder of texts, of which one is prepared by default, and a data folder."""

    def __init__(self, folder: Path) -> None:
        self.files, self.data = folder / "files", folder / "data"
        self.text, self.tokens = self.files / "a.txt", self.data / "tokens"
        self.files.mkdir()
        self.reports: list[str] = []

    def write(self, text: str) -> None:
        self.text.write_text(text, encoding="utf-8", newline="")

    def prepare(self, **keys: Any) -> Dataset:
        values = {"source": "file", "path": str(self.text), "dir": str(self.data), **keys}
        return prepare(DataConfig.model_validate(values), OFFLINE, self.reports.append)

    def refusal(self, **keys: Any) -> str:
        with pytest.raises(DataError) as caught:
            self.prepare(**keys)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    def folder(self) -> Path:
        (folder,) = self.tokens.glob("[!.]*")
        return folder

    def written(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.folder().iterdir()}

    def is_empty(self) -> bool:
        return not self.tokens.exists() or list(self.tokens.iterdir()) == []


def whole(data: Dataset) -> str:
    splits = [data.train, data.val] + ([] if data.test is None else [data.test])
    return data.tokenizer.decode(np.concatenate([np.asarray(split) for split in splits]))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def swap(path: Path) -> None:
    """Another order of the same ids, all of them valid."""
    path.write_bytes(path.read_bytes()[::-1])


def holding(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def zeros(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def sparse(path: Path) -> None:
    os.truncate(path, 3 << 30)


def changed(**values: Any) -> Callable[[Path], object]:
    """Writes other values into a JSON file, and the hash with them; None takes one out."""

    def change(path: Path) -> None:
        content = unseal(json.loads(path.read_text())) | values
        path.write_text(
            json.dumps(seal({key: value for key, value in content.items() if value is not None}))
        )

    return change


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(corpus_text, "BLOCK", BLOCK)
    return Place(tmp_path)


LINES = [
    f"{number} keys, and “{number * 7}” doors: {'é' * (number % 5)}\n" for number in range(300)
]
TEXT = "".join(LINES)


@pytest.fixture
def text(place: Place) -> Place:
    place.write(TEXT)
    return place


def test_splits_of_text8_are_ninety_five_and_five_percent(text: Place) -> None:
    data = text.prepare(val_fraction=0.05, test_fraction=0.05)
    assert data.test is not None
    assert (len(data.val), len(data.test)) == (round(len(TEXT) / 20), round(len(TEXT) / 20))
    assert whole(data) == TEXT
    assert text.prepare().test is None
    # Neither 5% nor 90% of this size is a whole number.
    size = 1_000_003
    text.write("a" * size)
    data = text.prepare(val_fraction=0.05, test_fraction=0.05, tokenizer="byte")
    assert len(data.train) == size - 2 * round(size / 20)


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), MemoryError(), OSError(28, "No space left")], ids=repr
)
def test_what_ends_while_it_encodes_leaves_nothing(
    error: BaseException, text: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(tokenizer: Tokenizer, blocks: Iterator[str]) -> Iterator[Ids]:
        yield tokenizer.encode_narrow(next(blocks))
        raise error

    with monkeypatch.context() as context:
        context.setattr(encoding, "_encoded", ends)
        expected, message = (
            (DataError, "^cannot write ") if isinstance(error, OSError) else (type(error), None)
        )
        with pytest.raises(expected, match=message):
            text.prepare()
    assert text.is_empty()
    assert whole(text.prepare()) == TEXT


def test_text_changed_while_it_is_read_is_refused(
    text: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = ByteTokenizer.encode_narrow

    def change(self: ByteTokenizer, block: str) -> Any:
        text.write(TEXT + "more")
        return encode(self, block)

    monkeypatch.setattr(ByteTokenizer, "encode_narrow", change)
    assert "a.txt was changed while it was read; start again" in text.refusal(tokenizer="byte")
    assert text.is_empty()


def test_files_are_joined_by_an_empty_line_or_not_at_all(place: Place) -> None:
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


def test_several_paths_are_split_each_and_share_one_tokenizer(place: Place) -> None:
    texts = {
        str(place.files / name): text
        for name, text in (("b.txt", "".join(LINES[::2])), ("c.txt", "xyz" * 200))
    }
    for path, text in texts.items():
        Path(path).write_text(text, encoding="utf-8")
    data = place.prepare(path=[*texts])
    borders = {text: int(0.9 * len(text)) for text in texts.values()}
    assert data.tokenizer.decode(np.asarray(data.train)) == "".join(
        text[:end] for text, end in borders.items()
    )
    assert data.tokenizer.decode(np.asarray(data.val)) == "".join(
        text[end:] for text, end in borders.items()
    )
    assert np.diff(data.text_ranges).flatten().tolist() == [*borders.values()]
    assert all(
        (folder / META).is_file() for folder in token_folders(place.tokens, data.fingerprint)
    )
    with pytest.raises(
        DataError, match=r"^the train split of text 2 of the 2 in data\.path has 540 tokens"
    ):
        data.check_length(1000)


@given(
    text=st.text(
        st.characters(codec="utf-8", exclude_characters="\r\ufeff\0"), min_size=2, max_size=200
    ).filter(lambda text: len(set(text)) > 1),
    keys=st.sampled_from(TOKENIZERS),
    block=st.integers(1, 60),
    piece=st.integers(1, 30),
    val=st.floats(0.1, 0.9),
)
@examples(0.25)
def test_text_is_split_at_one_place_for_any_pieces_and_blocks(
    text: str, keys: dict[str, Any], block: int, piece: int, val: float
) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(corpus_text, "PIECE", piece),
        patch.object(corpus_text, "BLOCK", block),
    ):
        place = Place(Path(folder))
        place.write(text)
        data = place.prepare(**keys, val_fraction=val)
        ids = data.tokenizer.encode(text)
        assert whole(data) == text
        assert set(place.written()) == {META, TOKENS}
        if keys["tokenizer"] != "bpe":
            assert (
                np.concatenate([np.asarray(data.train), np.asarray(data.val)]).tolist()
                == ids.tolist()
            )
            assert len(data.train) == int(len(ids) * (1 - val))
        else:  # a token may lie across the border
            border = (
                round(data.chars_per_token(data.train) * len(data.train)) if len(data.train) else 0
            )
            assert 0 <= int(len(text) * (1 - val)) - border <= 8


def test_prepared_text_is_not_encoded_again(text: Place) -> None:
    first = text.prepare()
    assert isinstance(first.train, np.memmap)
    assert not first.train.flags.writeable
    assert text.reports == [f"encoded {text.text} into {text.folder()}"]
    written = {path: path.stat().st_mtime_ns for path in text.folder().iterdir()}
    text.text.rename(text.files / "moved.txt")
    second = text.prepare(path=str(text.files / "moved.txt"))
    assert {path: path.stat().st_mtime_ns for path in text.folder().iterdir()} == written
    assert (second.fingerprint, len(text.reports)) == (first.fingerprint, 1)
    (text.folder() / META).rename(text.folder() / "meta.json")
    with pytest.raises(DataError, match=r"are damaged \(dataset.json: No such file"):
        open_dataset(text.folder())
    assert whole(text.prepare(path=str(text.files / "moved.txt"))) == TEXT


def test_older_token_files_are_kept_unless_returns_stand_alone(place: Place) -> None:
    """In their time such a return was a character."""
    place.write(TEXT.replace("\n", "\r\n"))
    lines = place.prepare()
    place.write(TEXT.replace("\n", "\r"))
    returns = place.prepare()
    assert whole(lines) == whole(returns) == TEXT
    with patch("gpt.data.preparation.has_lone_returns", return_value=False):
        assert place.prepare().fingerprint != returns.fingerprint
    place.write(TEXT)
    assert (lines.fingerprint, place.prepare().fingerprint) == (
        "bd5322e17dce1cb7",
        "3df4688549edbe73",
    )


def test_another_text_or_option_gets_other_token_files(text: Place) -> None:
    others: list[dict[str, Any]] = [{"val_fraction": 0.2}, {"test_fraction": 0.2}, *TOKENIZERS]
    prepared = [text.prepare(**keys) for keys in (*others, BPE | {"bpe_vocab_size": 290})]
    text.write(TEXT.replace("keys", "kegs"))
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
def test_characters_per_token_count_only_the_tokens_read(
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
        (
            b"\xef\xbb\xbf",
            {},
            "a.txt has 0 distinct characters; at least 2 are needed to learn from it",
        ),
        (b"\xef\xbb\xbf", {"tokenizer": "byte"}, "has no text in it"),
        (b"a" * 5000, {}, "has 1 distinct characters; at least 2 are needed to learn from it"),
        (b"caf\xe9" * 500, {"tokenizer": "byte"}, "is not UTF-8: byte 3"),
    ],
)
def test_text_without_anything_to_learn_is_refused(
    content: bytes, keys: dict[str, Any], problem: str, place: Place
) -> None:
    place.text.write_bytes(content)
    assert problem in place.refusal(**keys)
    assert place.is_empty()


def test_split_shorter_than_one_window_is_refused(place: Place) -> None:
    place.write(TEXT[:50])
    data = place.prepare()
    data.check_length(4)
    for block_size, problem in (
        (
            5,
            (
                "the val split has 5 tokens, fewer than block_size + 1 = 6; use more text, a "
                "smaller model.block_size"
            ),
        ),
        (1999, "the train split has 45 tokens, fewer than block_size + 1 = 2,000; "),
    ):
        with pytest.raises(DataError, match=f"^{re.escape(problem)}"):
            data.check_length(block_size)


DAMAGES_OF_FINISHED: list[tuple[str, Callable[[Path], object]]] = [
    *((TOKENS, damage) for damage in (cut, swap, Path.unlink)),
    *((TOKENS, other_file) for other_file in (pipe, zeros)),
    *((META, damage) for damage in (cut, sparse, holding(b"[" * 2_000_000))),
    *((META, holding(content)) for content in (b"", b"\xff\xfe", b"[]", b"{}", b"null")),
    (META, lambda path: path.write_text(path.read_text().replace('"k"', '"K"'))),
    *((META, changed(dtype=dtype)) for dtype in (None, "nonsense", ["u1"], "<u4")),
    *((META, changed(length=length)) for length in (None, 0, "x", 10**400)),
    (META, changed(splits={"train": [0, 10**9], "val": [0, 1]})),
    *(
        (META, changed(splits=splits))
        for splits in ({"train": [0, 10]}, {"train": "ab", "val": "cd"})
    ),
    *(
        (META, changed(splits={"train": train, "val": [5, len(TEXT)]}))
        for train in ([5, 5], [0, 4], [0, 6], [0, 5.0])
    ),
    (META, changed(sha256="0")),
    *(
        (META, changed(tokenizer=saved))
        for saved in (None, {"type": "bpe"}, {"type": "char", "chars": []})
    ),
]


@pytest.mark.parametrize(("name", "damage"), DAMAGES_OF_FINISHED)
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


@pytest.mark.parametrize("name", [META, TOKENS])
@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_token_files_that_cannot_be_read_are_not_called_damaged(
    name: str, number: int, text: Place
) -> None:
    """They may be whole, so that nobody is told to delete them."""
    text.prepare()
    file = text.folder() / name
    system_open = os.open

    def refuse(path: Any, *arguments: Any, **keys: Any) -> int:
        if Path(path) == file:
            raise OSError(number, os.strerror(number), str(path))
        return system_open(path, *arguments, **keys)

    with patch("os.open", refuse):
        said = text.refusal()
    assert said == f"cannot read the token files in {file.parent}: {name}: {os.strerror(number)}"
    assert whole(text.prepare()) == TEXT


@pytest.mark.parametrize(("place_of", "name"), [(encoding, "_write"), (Path, "rename")])
def test_work_of_another_process_is_taken(
    place_of: Any, name: str, text: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether that ends before this one has written or just before it would move its own into
    place.
    """
    written: set[int] = set()
    call = getattr(place_of, name)

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(place_of, name, call)
        text.prepare()
        written.update(path.stat().st_mtime_ns for path in text.folder().iterdir())
        return call(*arguments)

    monkeypatch.setattr(place_of, name, overtaken)
    assert whole(text.prepare()) == TEXT
    assert {path.stat().st_mtime_ns for path in text.folder().iterdir()} == written
