"""Write token ids as shards: files of equally many tokens, kept when they are finished."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from gpt.corpora.corpus_text import BLOCK
from gpt.data.dataset import seal, unseal
from gpt.data.saved_tokenizer import tokenizer_from_dict
from gpt.data.tokenizers import Ids, Tokenizer
from gpt.errors import DataError
from gpt.files import sha256_of, sync_folder, write_atomic
from gpt.progress import Report

JOURNAL = "shards.json"
"""What is finished, with its hash; replaced after each shard."""

Count = Annotated[int, Field(strict=True, ge=0, lt=2**63)]


@dataclass(frozen=True)
class Shard:
    """A finished file of tokens, and where the text after it begins.

    Attributes:
        file: its name.
        length: tokens.
        sha256: hash of the file.
        chars: characters that begin in it.
        block: number of the block of text in which the next shard begins.
        offset: tokens of that block that are in this or earlier shards.
    """

    file: str
    length: Count
    sha256: str
    chars: Count
    block: Count
    offset: Count


@dataclass(frozen=True)
class _Journal:
    """The options by which blocks become shards, and the shards that are finished."""

    shard_tokens: Count
    block: Count
    tokenizer: dict[str, Any]
    shards: list[Shard]


_JOURNAL = TypeAdapter(_Journal)


class ShardWriter:
    """Writes the shards of a corpus into a folder; another writer in the same folder goes on where this one ended.

    Args:
        folder: exists; for this corpus and these options only.
        shard_tokens: tokens of each shard but the last.
    """

    def __init__(self, folder: Path, shard_tokens: int) -> None:
        self.folder, self.shard_tokens = folder, shard_tokens
        self.damaged = ""
        """A file that is not as it was written, after which everything is encoded again; empty if all are."""
        self.tokenizer: Tokenizer | None = None
        """That of the finished shards, None where nothing has begun."""
        self.finished: list[Shard] = []
        try:
            self._read_journal()
        except (OSError, ValueError, TypeError, RecursionError, DataError) as error:
            self.damaged = "" if isinstance(error, FileNotFoundError) else JOURNAL

    @property
    def position(self) -> tuple[int, int]:
        """The block of text in which what is not finished begins, and the tokens of it that are finished."""
        return (self.finished[-1].block, self.finished[-1].offset) if self.finished else (0, 0)

    @property
    def length(self) -> int:
        return sum(shard.length for shard in self.finished)

    def write(self, encoded: Iterable[Ids], tokenizer: Tokenizer, report: Report) -> None:
        """Write the ids of the blocks from `position` on.

        Raises:
            DataError: the text cannot be read or encoded.
            OSError: the folder cannot be written.
        """
        kept = {JOURNAL, *(shard.file for shard in self.finished)}
        for path in self.folder.iterdir():
            if path.name not in kept and not path.is_dir():  # a filesystem may keep its snapshots there
                path.unlink()
        self._write_journal(tokenizer)
        for shard in self._cut(encoded, tokenizer):
            self.finished.append(shard)
            self._write_journal(tokenizer)
            report(f"{shard.file}: {shard.length:,} tokens")

    def _cut(self, encoded: Iterable[Ids], tokenizer: Tokenizer) -> Iterator[Shard]:
        """Write files of `shard_tokens` tokens, and yield each when it is on disk."""
        block, offset = self.position
        file = self._next_file()
        try:
            for ids in encoded:
                while offset < len(ids):
                    part = ids[offset : offset + self.shard_tokens - file.length]
                    file.write(part, tokenizer.count_chars(part))
                    offset += len(part)
                    if file.length == self.shard_tokens:
                        yield file.finish(block, offset)
                        file = self._next_file()
                block, offset = block + 1, 0
            if file.length:
                yield file.finish(block, 0)
        finally:
            file.discard()

    def _next_file(self) -> "_ShardFile":
        return _ShardFile(self.folder / _file_name(len(self.finished)))

    def _write_journal(self, tokenizer: Tokenizer) -> None:
        journal = _Journal(self.shard_tokens, BLOCK, tokenizer.to_dict(), self.finished)
        write_atomic(self.folder / JOURNAL, json.dumps(seal(asdict(journal))).encode())

    def _read_journal(self) -> None:
        """Take over the shards that are there as they were written; nothing of other options."""
        journal = _JOURNAL.validate_python(unseal(json.loads((self.folder / JOURNAL).read_text(encoding="utf-8"))))
        if (journal.shard_tokens, journal.block) != (self.shard_tokens, BLOCK):
            return
        self.tokenizer = tokenizer_from_dict(journal.tokenizer)
        for number, shard in enumerate(journal.shards):
            path = self.folder / _file_name(number)
            if shard.file != path.name or not path.is_file() or sha256_of(path) != shard.sha256:
                self.damaged = path.name
                return
            self.finished.append(shard)


def _file_name(number: int) -> str:
    return f"shard-{number:06d}.bin"


class _ShardFile:
    """A shard that is being written, under another name until it is finished."""

    def __init__(self, path: Path) -> None:
        self._path, self._temporary = path, path.with_suffix(".tmp")
        self._file = self._temporary.open("wb")
        self._digest = hashlib.sha256()
        self.length = self._chars = 0

    def write(self, ids: Ids, chars: int) -> None:
        data = ids.tobytes()
        self._file.write(data)
        self._digest.update(data)
        self.length += len(ids)
        self._chars += chars

    def finish(self, block: int, offset: int) -> Shard:
        """Flush it to disk and give it its name."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._temporary.replace(self._path)
        sync_folder(self._path.parent)
        return Shard(self._path.name, self.length, self._digest.hexdigest(), self._chars, block, offset)

    def discard(self) -> None:
        with suppress(OSError):  # a full disk does not take what is in the buffer either
            self._file.close()
        self._temporary.unlink(missing_ok=True)
