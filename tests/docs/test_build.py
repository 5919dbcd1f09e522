"""What the builder of the site decides before it executes or writes anything."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docs.site import build
from docs.site.chapters import CHAPTERS, ROOT


def pages(section: Any) -> Iterator[str]:
    """The pages of a section of the site, at any depth."""
    if isinstance(section, str):
        yield section
    for each in section.values() if isinstance(section, dict) else section if isinstance(section, list) else ():
        yield from pages(each)


def test_every_document_has_its_place() -> None:
    listed = list(pages(build.navigation()))
    assert len(listed) == len(set(listed))
    assert {path.name for path in (ROOT / "docs").glob("*.md")} <= set(listed)
    assert {f"book/{path.name}" for path in CHAPTERS} <= set(listed)


def test_the_chapter_that_trains_the_run_comes_before_those_that_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["alone", 'train(name="book")', 'use(name="book")', 'use again(name="book")', "alone"]
    chapters = [tmp_path / f"{number}_x.md" for number in range(len(texts))]
    for path, text in zip(chapters, texts, strict=True):
        path.write_text(text, encoding="utf-8")
    ended: list[Path] = []
    begun: dict[Path, list[Path]] = {}

    def execute(path: Path, work: Path) -> str:
        begun[path] = list(ended)
        ended.append(path)
        return path.stem

    monkeypatch.setattr(build, "execute", execute)
    assert build.execute_all(chapters, tmp_path / "work") == {path: path.stem for path in chapters}
    assert chapters[1] in begun[chapters[2]]
    assert chapters[1] in begun[chapters[3]]
