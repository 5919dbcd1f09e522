"""Every kind of file gives its text, a piece at a time, or a line that says what is wrong with it."""

import gzip
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from gpt.config import DataConfig
from gpt.corpora import corpus_text, tables, unpacking
from gpt.corpora.corpus_text import CorpusText
from gpt.corpora.source_files import classify
from gpt.errors import DataError

ROWS = ["First “row”.", "", None, "Second\nrow.", "é" * 50]
ROWS_TEXT = "First “row”.\n\nSecond\nrow.\n\n" + "é" * 50
CONFIG = DataConfig(source="file", path="unused")
TEXT = "".join(f"{number} keys and doors.\n" for number in range(5000))


def zstd(data: bytes) -> bytes:
    return pyarrow.Codec("zstd").compress(data, asbytes=True)


def zipped(*contents: bytes, method: int = zipfile.ZIP_DEFLATED, name: str = "txt") -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as archive:
        for number, content in enumerate(contents):
            archive.writestr(f"{number}.{name}", content)
    return packed.getvalue()


def json_lines(rows: list[Any], column: str = "text") -> bytes:
    return "".join(json.dumps({"id": 1, column: row}) + "\n" for row in rows).encode()


def table(rows: list[Any], column: str = "text") -> bytes:
    out = io.BytesIO()
    parquet.write_table(pyarrow.table({"id": list(range(len(rows))), column: rows}), out, row_group_size=2)
    return out.getvalue()


def name_of(value: str | bytes) -> str:
    """Leave bytes out of the names of tests: gzip and zip write the time into them, and all workers need one name."""
    return value if isinstance(value, str) else ""


def read(folder: Path, name: str, content: bytes, **keys: Any) -> str:
    path = folder / name
    path.write_bytes(content)
    config = DataConfig.model_validate({"source": "file", "path": str(path), **keys})
    return "".join(CorpusText([classify(path)], config).pieces())


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", TEXT.encode()),
        ("a.txt.gz", gzip.compress(TEXT.encode())),
        ("two.gz", gzip.compress(TEXT[:999].encode()) + gzip.compress(TEXT[999:].encode())),
        ("a.zst", zstd(TEXT.encode())),
        ("two.zst", zstd(TEXT[:999].encode()) + zstd(TEXT[999:].encode())),
        ("a.zip", zipped(TEXT.encode())),
        ("a.jsonl", json_lines([TEXT])),
        ("a.jsonl.zst", zstd(json_lines([TEXT]))),
        ("a.ndjson.gz", gzip.compress(json_lines([TEXT]))),
        ("a.parquet", table([TEXT])),
    ],
    ids=name_of,
)
def test_every_kind_of_file_gives_its_text(name: str, content: bytes, tmp_path: Path) -> None:
    assert read(tmp_path, name, content) == TEXT


@pytest.mark.parametrize(("name", "pack"), [("a.jsonl", json_lines), ("a.parquet", table)])
def test_rows_are_documents_of_the_column_that_was_named(name: str, pack: Callable[..., bytes], tmp_path: Path) -> None:
    assert read(tmp_path, name, pack(ROWS)) == ROWS_TEXT
    assert read(tmp_path, name, pack(ROWS, "body"), column="body", separator="|") == ROWS_TEXT.replace("\n\n", "|")
    with pytest.raises(DataError, match=r"has the columns id, body, and data\.column is 'text'"):
        read(tmp_path, name, pack(ROWS, "body"))
    with pytest.raises(DataError, match=r"has (a )?int(64)? in column 'text', expected text"):
        read(tmp_path, name, pack([5, 7]))
    assert read(tmp_path, name, pack(["a\r\nb"])) == "a\nb"


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.gz", gzip.compress(TEXT.encode())[:-50], "cannot be unpacked: Compressed file ended"),
        ("a.gz", b"plain text", "cannot be unpacked: Not a gzipped file"),
        ("a.gz", gzip.compress(TEXT.encode())[:50] + b"xxxxx" * 99, "cannot be unpacked: "),
        ("a.zst", zstd(TEXT.encode())[:-50], "cannot be unpacked: Truncated"),
        ("a.zst", zstd(TEXT.encode())[:3], "cannot be unpacked: Truncated"),
        ("a.zst", b"plain text", "cannot be unpacked: "),
        ("a.zst", zstd(b"x") + b"plain text", "cannot be unpacked: "),
        ("a.zip", zipped(TEXT.encode())[:-50], "cannot be unpacked: File is not a zip file"),
        ("a.zip", zipped(b"a", b"b"), "holds 2 files; unpack it"),
        ("a.zip", zipped(), "holds 0 files; unpack it"),
        ("a.parquet", b"plain text", "cannot be read as Parquet: "),
        ("a.parquet", table(ROWS)[:-20], "cannot be read as Parquet: "),
        ("a.jsonl", b"plain text", "a.jsonl:1 is not a JSON object in UTF-8"),
        ("a.jsonl", b'{"text": "a"}\n\n[1]', "a.jsonl:3 is not a JSON object"),
        ("a.jsonl", b'{"text": "caf\xe9"}', "a.jsonl:1 is not a JSON object in UTF-8"),
        ("a.jsonl", b"[" * 100_000, "a.jsonl:1 is not a JSON object"),
        ("a.jsonl", b"[" * 5_000_000, "a.jsonl:1 has more than 4,194,304 values"),
        ("a.jsonl", b'{"\\u001b[2J\\n": 1}', r"has the columns \x1b[2J\n, and"),
        ("a.jsonl", json.dumps({"k" * 99: 1}).encode(), "has the columns " + "k" * 40 + "..., and"),
        ("a.zip", zipped(TEXT.encode(), method=zipfile.ZIP_LZMA), "is not compressed by deflate"),
        ("a.zip", zipped(TEXT.encode(), name="é").replace("é".encode(), b"\xc3\xff"), "a name in it is not UTF-8"),
        ("a.zip", zipped(*[b""] * 30_000), "the list of what is in it has more than 1,048,576 bytes"),
        ("a.jsonl", b'{"text": "\\ud800"}', "row 1 has half of a surrogate pair"),
        ("a.jsonl", b"{}", "has no columns, and data.column is 'text'"),
        ("a.txt.gz", gzip.compress(b"caf\xe9"), "is not UTF-8: byte 3"),
        ("a.txt.gz", gzip.compress("x".encode("utf-16")), "is UTF-16"),
    ],
    ids=name_of,
)
def test_what_is_damaged_or_something_else_is_refused(name: str, content: bytes, problem: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, name, content)
    assert problem in str(caught.value)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_package_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "find_spec", lambda name: None)
    for name in ("a.zst", "a.parquet"):
        with pytest.raises(DataError) as caught:
            read(tmp_path, name, b"")
        assert str(caught.value) == f"{tmp_path / name} needs the pyarrow package: pip install 'glassgpt[corpora]'"


@pytest.mark.parametrize(("name", "pack"), [("a.gz", gzip.compress), ("a.zst", zstd), ("a.zip", zipped)])
def test_a_file_that_expands_beyond_what_is_allowed_is_stopped_early(
    name: str, pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    bomb = pack(b"a" * (40 << 20))
    assert len(bomb) < 100_000
    with pytest.raises(DataError, match=r"more than data.max_bytes 2,000,000 bytes of text; raise data\.max_bytes"):
        read(tmp_path, name, bomb, max_bytes=2_000_000)


def test_a_line_a_row_a_group_and_a_footer_that_memory_should_not_hold_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "MAX_LINE_BYTES", 1000)
    assert read(tmp_path, "a.jsonl", json_lines(["a" * 970])) == "a" * 970
    with pytest.raises(DataError, match=r"a\.jsonl:2 is longer than 1,000 bytes"):
        read(tmp_path, "a.jsonl", json_lines(["a", "a" * 1000]))
    content = table(["ab" * 900])
    with pytest.raises(DataError, match=r"row 1 is longer than 1,000 bytes"):
        read(tmp_path, "a.parquet", content)
    with pytest.raises(DataError, match=r"says to have [\d,]+ bytes in a group of rows, more than data.max_bytes 999;"):
        read(tmp_path, "a.parquet", content, max_bytes=999)
    monkeypatch.setattr(tables, "MAX_FOOTER", 200)
    with pytest.raises(DataError, match=r"describes itself in [\d,]+ bytes; write it with larger row groups"):
        read(tmp_path, "a.parquet", content)


def test_blocks_are_of_equal_length_whatever_the_pieces_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_text, "BLOCK", 700)
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "a.jsonl").write_bytes(json_lines([line + "\n" for line in TEXT.splitlines()]))
    config = DataConfig(source="file", path="unused", separator="")
    blocks = [list(CorpusText([classify(tmp_path / name)], config).blocks()) for name in ("a.txt", "a.jsonl")]
    assert blocks[0] == blocks[1]
    assert {len(block) for block in blocks[0][:-1]} == {700}
    assert "".join(blocks[0]) == TEXT


def test_progress_adds_up_to_the_size_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(TEXT.encode())
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
    corpus = CorpusText([classify(path) for path in sorted(tmp_path.iterdir())], CONFIG)
    seen: list[int] = []
    list(corpus.pieces(seen.append))
    assert 0.9 * corpus.size < sum(seen) <= corpus.size
    assert min(seen) >= 0


def test_byte_pairs_of_a_large_corpus_are_learned_from_blocks_all_over_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_text, "BLOCK", 1000)
    monkeypatch.setattr(corpus_text, "SAMPLE", 20_000)
    (tmp_path / "a.txt").write_text(TEXT)
    corpus = CorpusText([classify(tmp_path / "a.txt")], CONFIG)
    assert "".join(corpus.sample()) == TEXT
    monkeypatch.setattr(corpus_text, "IN_ONE_FILE", 1000)
    monkeypatch.setattr(corpus_text, "SAMPLED", 300)
    sample = list(corpus.sample())
    step = -(-len(TEXT) // 20_000)
    assert "".join(sample) == "".join(list(corpus.blocks())[::step])
    assert max(map(len, sample)) == 300
    assert step > 3
