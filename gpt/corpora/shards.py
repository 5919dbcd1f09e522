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

JOURNAL = "shards.jsonl"
"""What is finished: the tokenizer and the length of a shard, then a line for each shard; each line has its hash."""

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
        self._header, self.finished = self._read_journal()

    @property
    def tokenizer(self) -> Tokenizer | None:
        """That of the finished shards, None where nothing has begun."""
        return tokenizer_from_dict(self._header["tokenizer"]) if self._header else None

    @property
    def position(self) -> tuple[int, int]:
        """The block of text in which what is not finished begins, and the tokens of it that are finished."""
        return (self.finished[-1].block, self.finished[-1].offset) if self.finished else (0, 0)

    @property
    def length(self) -> int:
        """Tokens that are finished."""
        return sum(shard.length for shard in self.finished)

    def write(self, encoded: Iterable[Ids], tokenizer: Tokenizer, report: Report) -> None:
        """Write the ids of the blocks from `position` on.

        Raises:
            DataError: the text cannot be read or encoded.
            OSError: the folder cannot be written.
        """
        self._begin(tokenizer)
        for shard in self._cut(encoded, tokenizer):
            self.finished.append(shard)
            self._append(shard)
            report(f"{self.folder / shard.file}: {shard.length:,} tokens")

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

    def _begin(self, tokenizer: Tokenizer) -> None:
        """Write the journal anew, since its last line may be cut short, and delete what is not finished."""
        for path in self.folder.glob("*.tmp"):
            path.unlink()
        self._header = {"shard_tokens": self.shard_tokens, "block": BLOCK, "tokenizer": tokenizer.to_dict()}
        lines = [_to_line(self._header), *(_to_line({"shard": asdict(shard)}) for shard in self.finished)]
        write_atomic(self.folder / JOURNAL, "".join(lines).encode())

    def _append(self, shard: Shard) -> None:
        with (self.folder / JOURNAL).open("a", encoding="utf-8") as file:
            file.write(_to_line({"shard": asdict(shard)}))
            file.flush()
            os.fsync(file.fileno())

    def _read_journal(self) -> tuple[dict[str, Any], list[Shard]]:
        """Return the first line and the shards that are there as they were written; nothing of other options."""
        try:
            whole = (self.folder / JOURNAL).read_text(encoding="utf-8").rpartition("\n")[0]  # a kill may cut a line
            header, *lines = whole.splitlines()
            begun = _from_line(header)
            if (begun["shard_tokens"], begun["block"]) != (self.shard_tokens, BLOCK):
                return {}, []
            tokenizer_from_dict(begun["tokenizer"])
        except FileNotFoundError:
            return {}, []
        except _UNREADABLE:
            self.damaged = JOURNAL
            return {}, []
        finished: list[Shard] = []
        for line in lines:
            self.damaged = JOURNAL
            try:
                shard = _SHARD.validate_python(_from_line(line)["shard"])
                if shard.file != _file_name(len(finished)):
                    break
                self.damaged = shard.file
                if sha256_of(self.folder / shard.file) != shard.sha256:
                    break
            except _UNREADABLE:
                break
            finished.append(shard)
            self.damaged = ""
        return begun, finished


_SHARD = TypeAdapter(Shard)
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, RecursionError, DataError)


def _file_name(number: int) -> str:
    return f"shard-{number:06d}.bin"


def _to_line(content: dict[str, Any]) -> str:
    return json.dumps(seal(content)) + "\n"


def _from_line(line: str) -> dict[str, Any]:
    """Return what `_to_line` wrote; raise ValueError where it was changed, or is of a version without hashes."""
    sealed = json.loads(line)
    if not isinstance(sealed, dict) or "sha256" not in sealed:
        raise ValueError("a line without a hash")
    return unseal(sealed)


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
        """Delete it unless it is finished."""
        with suppress(OSError):  # a full disk does not take what is in the buffer either
            self._file.close()
        self._temporary.unlink(missing_ok=True)
