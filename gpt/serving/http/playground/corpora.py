"""The texts that a training can learn from: named corpora, files of the data folder, and a text that was pasted."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from gpt.config.loading import override
from gpt.corpora.locating import SHAKESPEARE, pydocs_text
from gpt.errors import DataError
from gpt.files import write_atomic

PASTED = "pasted-"
TEXT_BYTES = 16 << 20
"""Most bytes of a pasted text."""
MAX_PASTED_BYTES = 256 << 20
"""Most bytes of all pasted texts together."""
MAX_FILES = 200
NAMED = {"shakespeare": 1_115_394, "pydocs": 465_000}
"""Corpora that the configuration knows, and about how many characters they have."""
SHAKESPEARE_VOCABULARY = 65
COUNTED_CHARACTERS = 1 << 26
"""How much of a file, from its beginning, is searched for distinct characters."""


@dataclass(frozen=True)
class Corpus:
    """A text that is there, or that the training gets.

    Attributes:
        source: `shakespeare`, `pydocs`, or `file` for one of the data folder.
        characters: about how many.
        begins: the first characters of a pasted text, which has no name.
    """

    source: str
    file: str | None
    characters: int
    begins: str = ""


class Corpora:
    """The data folder, which may be missing; the methods block, so they are for threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def available(self) -> list[Corpus]:
        """Return the named corpora and the texts of the data folder."""
        return [Corpus(source, None, characters) for source, characters in NAMED.items()] + [
            Corpus("file", name, path.stat().st_size, _beginning(path) if path.name.startswith(PASTED) else "")
            for name, path in self._files()
        ]

    def vocabulary(self, corpus: str) -> int | None:
        """Count the distinct characters of a corpus; None: there is no such corpus, or it is not Unicode."""
        if corpus in NAMED:
            return len(set(pydocs_text())) if corpus == "pydocs" else SHAKESPEARE_VOCABULARY
        path = dict(self._files()).get(corpus)
        return None if path is None else _count_distinct(path, path.stat().st_mtime_ns, path.stat().st_size)

    def overrides(self, corpus: str) -> list[str]:
        """Return the overrides of a configuration that choose a corpus, or raise DataError.

        It is one of `NAMED`, or the name of a file as `available` gives it: no other file is ever looked for.
        """
        if corpus in NAMED:
            return [f"data.source={corpus}", "data.path=null", "data.url=null", "data.sha256=null"]
        path = dict(self._files()).get(corpus)
        if path is None:
            raise DataError(f"there is no corpus {corpus[:100]!r}; put a text file into {self._folder}, or paste it")
        return ["data.source=file", override("data.path", str(path)), "data.url=null", "data.sha256=null"]

    def paste(self, text: str) -> str:
        """Store a text by its hash, so that the same text is the same file, and return its name.

        Raises:
            DataError: it is empty, not Unicode, or too large; or it cannot be written.
        """
        text = text.removeprefix("\ufeff").replace("\r\n", "\n")
        try:
            content = text.encode("utf-8")
        except UnicodeEncodeError:
            raise DataError("the text has half of a surrogate pair, which no file can hold") from None
        if "\0" in text or not text.strip():
            raise DataError("the text is empty" if not text.strip() else "the text has NUL characters: it is not text")
        if len(content) > TEXT_BYTES:
            raise DataError(f"the text has {len(content):,} bytes, more than this server's limit of {TEXT_BYTES:,}")
        path = self._folder / f"{PASTED}{hashlib.sha256(content).hexdigest()[:16]}.txt"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if not path.is_file():
                stored = sum(other.stat().st_size for other in self._folder.glob(f"{PASTED}*.txt"))
                if stored + len(content) > MAX_PASTED_BYTES:
                    raise DataError(f"{self._folder} holds {stored:,} bytes of pasted texts; delete some of {PASTED}*")
                write_atomic(path, content)
        except OSError as error:
            raise DataError(f"cannot write {path}: {error.strerror}") from None
        return path.name

    def _files(self) -> Iterator[tuple[str, Path]]:
        """Yield the text files below the folder; a link that leads out of it is not below it."""
        home = self._folder.resolve()
        known = (SHAKESPEARE.filename, "pydocs-")
        found = sorted(path for path in self._folder.rglob("*.txt") if not path.name.startswith((".", *known)))
        for path in found[:MAX_FILES]:
            name = path.relative_to(self._folder).as_posix()
            if path.resolve().is_relative_to(home) and path.is_file() and name.isprintable():
                yield name, path


@lru_cache
def _count_distinct(path: Path, changed: int, size: int) -> int | None:
    """Count the distinct characters of a file, once as long as it stays as it is."""
    found: set[str] = set()
    try:
        with path.open(encoding="utf-8") as file:
            for _ in range(COUNTED_CHARACTERS >> 20):
                found.update(file.read(1 << 20))
    except (OSError, UnicodeDecodeError):
        return None
    return len(found)


def _beginning(path: Path) -> str:
    with path.open("rb") as file:
        return " ".join(file.read(200).decode("utf-8", errors="ignore").split())[:40]
