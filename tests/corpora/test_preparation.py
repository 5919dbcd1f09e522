"""A corpus is encoded once, whole, and split in order."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpt.config import DataConfig
from gpt.corpora import encoding, preparation, prepare
from gpt.data import ByteTokenizer, CharTokenizer, Dataset, dataset, open_dataset
from gpt.data.dataset import seal, unseal
from gpt.environment import Settings
from gpt.errors import DataError

OFFLINE = Settings(data_dir=None, cache_dir=Path("unused"), offline=True)
TEXT = "Who keeps the keys? asked Ada.\nThe keeper, said Tom.\n" * 20


class Place:
    """A text file with a data folder beside it."""

    def __init__(self, folder: Path) -> None:
        self.text, self.data = folder / "text.txt", folder / "data"
        self.tokens = self.data / "tokens"
        self.reports: list[str] = []
        self.write(TEXT)

    def write(self, text: str) -> None:
        self.text.write_text(text, encoding="utf-8", newline="")

    def prepare(self, force: bool = False, **keys: Any) -> Dataset:
        values = {"source": "file", "path": str(self.text), "dir": str(self.data), **keys}
        return prepare(DataConfig.model_validate(values), OFFLINE, self.reports.append, force)

    def refusal(self, **keys: Any) -> str:
        with pytest.raises(DataError) as caught:
            self.prepare(**keys)
        return str(caught.value)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def whole(data: Dataset) -> str:
    return data.tokenizer.decode(np.concatenate([data.train, data.val]))


@pytest.mark.parametrize("length", [10, 11, 19, 101, 1003, 1060])
def test_the_first_nine_tenths_are_for_training_and_the_rest_in_order_for_validation(length: int, place: Place) -> None:
    place.write(TEXT[:length])
    data = place.prepare()
    assert (len(data.train), len(data.val)) == (int(0.9 * length), length - int(0.9 * length))
    assert data.tokenizer.decode(data.train) == TEXT[: int(0.9 * length)]
    assert data.tokenizer.decode(data.val) == TEXT[int(0.9 * length) : length]


def test_another_share_can_be_held_out(place: Place) -> None:
    assert len(place.prepare(val_fraction=0.25).val) == len(TEXT) / 4


@pytest.mark.parametrize(
    ("text", "tokenizer", "dtype"),
    [
        (TEXT, "char", "u1"),
        (TEXT, "byte", "u1"),
        ("".join(chr(0x4E00 + index) for index in range(256)), "char", "u1"),
        ("".join(chr(0x4E00 + index) for index in range(257)), "char", "u2"),
        ("".join(chr(0x10000 + index) for index in range(65_537)), "char", "u4"),
    ],
    ids=["char", "byte", "256 characters", "257 characters", "65537 characters"],
)
def test_tokens_are_mapped_from_disk_in_the_smallest_type(text: str, tokenizer: str, dtype: str, place: Place) -> None:
    place.write(text)
    data = place.prepare(tokenizer=tokenizer)
    for name in ("train", "val"):
        tokens = getattr(data, name)
        assert isinstance(tokens, np.memmap)
        assert not tokens.flags.writeable
        assert tokens.dtype == np.dtype(dtype)
        assert (place.tokens / data.fingerprint / f"{name}.bin").stat().st_size == tokens.nbytes
    assert whole(data) == text


def test_the_vocabulary_is_that_of_the_whole_text(place: Place) -> None:
    place.write("ab" * 50 + "z")
    data = place.prepare()
    assert isinstance(data.tokenizer, CharTokenizer)
    assert data.tokenizer.itos == ["a", "b", "z"]
    assert isinstance(place.prepare(tokenizer="byte").tokenizer, ByteTokenizer)


def test_a_text_of_many_pieces_is_one_sequence(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpt.corpora.text.PIECE", 7)
    text = "Ünïcödé €𝄞\r\n" * 50
    place.write(text)
    assert whole(place.prepare(newlines="keep")) == text
    assert whole(place.prepare(newlines="lf", tokenizer="byte")) == text.replace("\r\n", "\n")


def test_what_was_prepared_is_not_encoded_again(place: Place) -> None:
    first = place.prepare()
    folder = place.tokens / first.fingerprint
    assert place.reports == [f"encoded {place.text} into {folder}"]
    written = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert set(written) == {"train.bin", "val.bin", "dataset.json"}
    second = place.prepare()
    assert len(place.reports) == 1
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == written
    assert (second.fingerprint, whole(second), second.tokenizer.to_dict()) == (
        first.fingerprint,
        whole(first),
        first.tokenizer.to_dict(),
    )


def test_force_encodes_again(place: Place) -> None:
    folder = place.tokens / place.prepare().fingerprint
    (folder / "train.bin").write_bytes(b"damaged")
    data = place.prepare(force=True)
    assert len(place.reports) == 2
    assert whole(data) == TEXT
    assert [path.name for path in place.tokens.iterdir()] == [data.fingerprint]


@pytest.mark.parametrize(
    "keys", [{"tokenizer": "byte"}, {"newlines": "lf"}, {"newlines": "keep"}, {"val_fraction": 0.2}], ids=str
)
def test_another_option_gets_other_token_files(keys: dict[str, Any], place: Place) -> None:
    first, second = place.prepare(), place.prepare(**keys)
    assert first.fingerprint != second.fingerprint
    assert {path.name for path in place.tokens.iterdir()} == {first.fingerprint, second.fingerprint}


def test_another_text_of_the_same_length_gets_other_token_files(place: Place) -> None:
    first = place.prepare()
    place.write(TEXT.replace("Ada", "Tom"))
    second = place.prepare()
    assert first.fingerprint != second.fingerprint
    assert whole(second) == TEXT.replace("Ada", "Tom")
    assert whole(first) == TEXT


def test_what_does_not_change_the_tokens_does_not_encode_again(place: Place) -> None:
    first = place.prepare()
    moved = place.text.rename(place.text.with_name("moved.txt"))
    assert place.prepare(path=str(moved), max_bytes=10_000).fingerprint == first.fingerprint
    assert len(place.reports) == 1


@pytest.mark.parametrize(
    ("text", "tokenizer", "train", "val"),
    [
        (TEXT, "char", 1.0, 1.0),
        (TEXT, "byte", 1.0, 1.0),
        ("é𝄞" * 50, "char", 1.0, 1.0),
        ("é𝄞" * 50, "byte", 2 / 6, 2 / 6),
        ("a" * 270 + "€" * 10, "byte", 1.0, 1 / 3),
        ("a" * 260 + "€" * 10, "byte", 1.0, 9 / 29),
    ],
    ids=["char", "byte", "wide char", "wide byte", "splits differ", "a character across the border"],
)
def test_characters_per_token_are_those_of_the_tokens_that_are_read(
    text: str, tokenizer: str, train: float, val: float, place: Place
) -> None:
    place.write(text)
    data = place.prepare(tokenizer=tokenizer)
    assert data.chars_per_token(data.train) == pytest.approx(train, abs=0.003)
    assert data.chars_per_token(data.val) == pytest.approx(val, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "keys", "problem"),
    [
        ("", {}, "text.txt is empty"),
        ("\ufeff", {}, "text.txt has 0 distinct characters; there is nothing to learn from it"),
        ("\ufeff", {"tokenizer": "byte"}, "text.txt has no text in it"),
        ("a", {}, "text.txt has 1 distinct characters; there is nothing to learn from it"),
        ("a" * 1000, {}, "text.txt has 1 distinct characters; there is nothing to learn from it"),
        ("a\r\nb", {}, "text.txt has CRLF (Windows) line ends"),
        ("abc", {"max_bytes": 2}, "text.txt has 3 bytes, more than data.max_bytes 2"),
    ],
)
def test_a_text_that_nothing_can_be_learned_from_is_refused_and_leaves_nothing(
    text: str, keys: dict[str, Any], problem: str, place: Place
) -> None:
    place.write(text)
    assert problem in place.refusal(**keys)
    assert not place.tokens.exists() or list(place.tokens.iterdir()) == []


def test_a_one_character_text_as_bytes_is_too_short_for_a_window(place: Place) -> None:
    place.write("a")
    data = place.prepare(tokenizer="byte")
    assert (len(data.train), len(data.val), data.chars_per_token(data.val)) == (0, 1, 1.0)
    with pytest.raises(DataError, match="the train split has 0 tokens"):
        data.check_length(1)


@pytest.mark.parametrize(
    ("block_size", "problem"),
    [
        (5, "the val split has 5 tokens, fewer than block_size + 1 = 6; use more text, a smaller model.block_size"),
        (44, "the val split has 5 tokens, fewer than block_size + 1 = 45; "),
        (1999, "the train split has 45 tokens, fewer than block_size + 1 = 2,000; "),
    ],
)
def test_a_split_shorter_than_one_window_is_refused(block_size: int, problem: str, place: Place) -> None:
    place.write(TEXT[:50])
    data = place.prepare()
    data.check_length(4)
    with pytest.raises(DataError) as caught:
        data.check_length(block_size)
    assert str(caught.value).startswith(problem)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def swap(path: Path) -> None:
    """Another order of the same ids, all of them valid."""
    path.write_bytes(path.read_bytes()[::-1])


def changed(**values: Any) -> Callable[[Path], None]:
    """Writes other values into a JSON file; None takes one out."""

    def change(path: Path) -> None:
        content = json.loads(path.read_text()) | values
        path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))

    return change


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("train.bin", cut),
        ("val.bin", cut),
        ("train.bin", swap),
        ("val.bin", swap),
        ("train.bin", Path.unlink),
        ("val.bin", Path.unlink),
        ("dataset.json", cut),
        ("dataset.json", lambda path: path.write_bytes(b"")),
        ("dataset.json", lambda path: path.write_bytes(b"\xff\xfe")),
        ("dataset.json", lambda path: path.write_text("[]")),
        ("dataset.json", lambda path: path.write_text("null")),
        ("dataset.json", changed(dtype=None)),
        ("dataset.json", changed(dtype="nonsense")),
        ("dataset.json", changed(dtype=["u1"])),
        ("dataset.json", changed(dtype="<u2")),
        ("dataset.json", changed(train="many")),
        ("dataset.json", changed(train=3)),
        ("dataset.json", changed(train={"length": 3, "sha256": "0"})),
        ("dataset.json", changed(train={"length": 3})),
        ("dataset.json", changed(val=None)),
        ("dataset.json", changed(tokenizer=None)),
        ("dataset.json", changed(tokenizer={"type": "bpe"})),
        ("dataset.json", changed(tokenizer={"type": "char", "chars": []})),
    ],
)
def test_damaged_token_files_are_refused_with_what_to_do(
    name: str, damage: Callable[[Path], object], place: Place
) -> None:
    folder = place.tokens / place.prepare().fingerprint
    damage(folder / name)
    for said in (place.refusal(), _refusal_to_open(folder)):
        assert said.startswith(f"the token files in {folder} are damaged (")
        assert said.endswith("delete that folder and start again")
    shutil.rmtree(folder)
    assert whole(place.prepare()) == TEXT


def _refusal_to_open(folder: Path) -> str:
    with pytest.raises(DataError) as caught:
        open_dataset(folder)
    return str(caught.value)


def test_a_folder_without_its_description_or_with_one_from_before_there_were_hashes_is_encoded_again(
    place: Place,
) -> None:
    folder = place.tokens / place.prepare().fingerprint
    (folder / "dataset.json").rename(folder / "meta.json")
    assert "are damaged" in _refusal_to_open(folder)
    assert whole(place.prepare()) == TEXT


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), MemoryError(), OSError(28, "No space left on device")], ids=repr
)
@pytest.mark.parametrize("force", [False, True])
def test_a_crash_in_the_middle_of_encoding_leaves_nothing_half_written(
    error: BaseException, force: bool, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_off(_: Path, __: str) -> Iterator[str]:
        yield TEXT[:100]
        raise error

    if force:
        place.prepare(tokenizer="byte")
    with monkeypatch.context() as patch:
        patch.setattr(encoding, "read_pieces", break_off)
        with pytest.raises(DataError if isinstance(error, OSError) else type(error)):
            place.prepare(force, tokenizer="byte")
    assert len(list(place.tokens.iterdir())) == force  # what was there before
    assert whole(place.prepare(tokenizer="byte")) == TEXT


def test_a_full_disk_is_told_with_the_folder(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(encoding, "sync_file", refuse)
    assert place.refusal().startswith(f"cannot write {place.tokens}")
    assert list(place.tokens.iterdir()) == []


def test_two_processes_may_encode_the_same_text_at_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    read_pieces = encoding.read_pieces

    def overtaken(source: Path, newlines: str) -> Iterator[str]:
        monkeypatch.setattr(encoding, "read_pieces", read_pieces)
        place.prepare()  # the other process, which is faster
        yield from read_pieces(source, newlines)

    monkeypatch.setattr(encoding, "read_pieces", overtaken)
    data = place.prepare()
    assert whole(data) == TEXT
    assert [path.name for path in place.tokens.iterdir()] == [data.fingerprint]


def test_a_data_folder_that_cannot_be_written_is_told(place: Place) -> None:
    said = place.refusal(dir=str(place.text))
    assert said.startswith(f"cannot write {place.text / 'tokens'}")
    assert said.endswith(": Not a directory; set data.dir to another folder")


def test_a_text_that_cannot_be_read_is_told(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(preparation, "sha256_of", refuse)
    assert place.refusal() == f"cannot read {place.text}: Permission denied"


def test_token_files_that_cannot_be_replaced_are_told_and_kept(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, to: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    folder = place.tokens / place.prepare().fingerprint
    monkeypatch.setattr(Path, "rename", refuse)
    assert place.refusal(force=True) == f"cannot write {folder}: Permission denied; set data.dir to another folder"
    assert whole(open_dataset(folder)) == TEXT


@pytest.mark.parametrize("keys", [{}, {"shard_tokens": 100}], ids=str)
def test_who_opens_a_corpus_that_is_replaced_meanwhile_gets_one_or_the_other(
    keys: dict[str, int], place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, unsealed = place.tokens / place.prepare().fingerprint, dataset.unseal

    def replace_after(sealed: dict[str, Any]) -> dict[str, Any]:
        monkeypatch.setattr(dataset, "unseal", unsealed)
        place.prepare(force=True, **keys)
        return unsealed(sealed)

    monkeypatch.setattr(dataset, "unseal", replace_after)
    assert whole(open_dataset(folder)) == TEXT
    assert (folder / "val.bin").exists() == (not keys)


def test_nothing_is_deleted_before_what_replaces_it_is_written(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, write_tokens = place.tokens / place.prepare().fingerprint, encoding._write_tokens

    def read_after_writing(*arguments: Any) -> dict[str, Any]:
        meta = write_tokens(*arguments)
        assert whole(open_dataset(folder)) == TEXT
        return meta

    monkeypatch.setattr(encoding, "_write_tokens", read_after_writing)
    assert whole(place.prepare(force=True)) == TEXT


def test_pythons_documentation_becomes_a_dataset_without_a_network(place: Place) -> None:
    config = DataConfig(source="pydocs", dir=str(place.data))
    data = prepare(config, OFFLINE, place.reports.append)
    text = next(place.data.glob("pydocs-*.txt")).read_text(encoding="utf-8")
    assert whole(data) == text
    assert len(data.train) == int(0.9 * len(text))
    assert data.tokenizer.vocab_size == len(set(text))
    data.check_length(256)


LONG = "".join(f"{number} keys and {number * 7} doors.\n" for number in range(400))


def test_byte_pairs_are_learned_and_both_splits_hold_the_characters_that_they_would_hold_otherwise(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpt.corpora.text.PIECE", 1000)  # the boundary lies within a piece
    place.write(LONG)
    chars, pairs = place.prepare(), place.prepare(tokenizer="bpe", bpe_vocab_size=300)
    assert pairs.tokenizer.vocab_size == 300
    assert len(pairs.train) < 0.7 * len(chars.train)
    for split in ("train", "val"):
        tokens = getattr(pairs, split)
        assert pairs.tokenizer.decode(tokens) == chars.tokenizer.decode(getattr(chars, split))
        assert pairs.chars_per_token(tokens) == len(getattr(chars, split)) / len(tokens)


@pytest.mark.parametrize("length", [1, 2, 9, 10, 11, 50])
def test_short_texts_of_byte_pairs_are_split_at_the_same_character(length: int, place: Place) -> None:
    place.write(TEXT[:length])
    data = place.prepare(tokenizer="bpe")
    assert data.tokenizer.decode(data.train) == TEXT[: int(0.9 * length)]
    assert data.tokenizer.decode(data.val) == TEXT[int(0.9 * length) : length]


def test_another_vocabulary_of_byte_pairs_gets_other_token_files(place: Place, tmp_path: Path) -> None:
    place.write(LONG)
    small, large = (place.prepare(tokenizer="bpe", bpe_vocab_size=size) for size in (300, 310))
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(small.tokenizer.to_dict()["tokenizer"]), encoding="utf-8")
    loaded = place.prepare(tokenizer="bpe", tokenizer_file=str(file))
    assert len({small.fingerprint, large.fingerprint, loaded.fingerprint}) == 3
    np.testing.assert_array_equal(loaded.train, small.train)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot read"),
        ("{", "is not a tokenizer.json"),
        ("[]", "is not a tokenizer.json"),
        ("{}", "not a tokenizer"),
        ("[" * 100_000, "is not a tokenizer.json"),
    ],
)
def test_a_file_that_is_no_tokenizer_is_refused(
    content: str | None, problem: str, place: Place, tmp_path: Path
) -> None:
    file = tmp_path / "tokenizer.json"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    assert problem in place.refusal(tokenizer="bpe", tokenizer_file=str(file))
    assert not place.tokens.exists() or not list(place.tokens.iterdir())


def test_byte_pairs_without_their_library_are_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpt.data.bpe.find_spec", lambda name: None)
    assert "needs the tokenizers package: pip install 'gpt[bpe]'" in place.refusal(tokenizer="bpe")


def test_a_changed_vocabulary_is_refused_and_one_without_a_hash_is_of_an_old_version() -> None:
    sealed = seal({"tokenizer": {"type": "char", "chars": ["a", "b"]}})
    assert unseal(sealed) == unseal(unseal(sealed))
    with pytest.raises(ValueError, match="another sha256"):
        unseal({**sealed, "tokenizer": {"type": "char", "chars": ["a", "c"]}})
