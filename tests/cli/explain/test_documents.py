"""The pages in docs/ are those that `make docs` makes."""

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.conftest import Call
from gpt.cli import explain, train

ROOT = Path(__file__).parents[3]
NUMBER = re.compile(r"-?\d+\.\d+")
PROGRAMS = {"scripts/train.py": train.main, "scripts/explain.py": explain.main}


def recipe(target: str) -> list[list[str]]:
    """The Python commands of a target of the Makefile, without the interpreter."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    block = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", text, re.MULTILINE)
    assert block is not None
    commands = [shlex.split(line) for line in block.group(1).splitlines()]
    return [arguments for program, *arguments in commands if program.endswith("python")]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the commands of `make docs` have run."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "docs").mkdir()
    (folder / "configs").mkdir()
    shutil.copy(ROOT / "LICENSE", folder)
    shutil.copy(ROOT / "configs/reference_shapes.yaml", folder / "configs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for program, *arguments in recipe("docs"):
            assert PROGRAMS[program](arguments) == 0
    return folder / "docs"


def test_the_walk_has_the_words_and_shapes_of_a_new_run(made: Path) -> None:
    committed = (ROOT / "docs/one_character.md").read_text(encoding="utf-8")
    again = (made / "one_character.md").read_text(encoding="utf-8")
    assert NUMBER.sub("x", committed) == NUMBER.sub("x", again), "docs/ is stale: make docs"


def test_the_walk_has_the_numbers_of_a_new_run(made: Path) -> None:
    """Processors round differently, and training carries that on: hence the tolerance."""
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "docs/one_character.md", made / "one_character.md")]
    committed, again = ([float(number) for number in NUMBER.findall(page)] for page in pages)
    assert committed == pytest.approx(again, abs=0.05, rel=0.05), "docs/ is stale: make docs"


def test_the_formulas_are_those_of_the_code(made: Path) -> None:
    assert (made / "mathematics.md").read_bytes() == (ROOT / "docs/mathematics.md").read_bytes()


def test_a_walk_goes_to_standard_output_or_a_file(here: Path, tmp_path: Path, run: Call) -> None:
    page = run("explain walk --checkpoint runs/tiny --prompt 'It was'").out
    run(f"explain walk --checkpoint runs/tiny --prompt 'It was' --output {tmp_path}/walk.md")
    assert (tmp_path / "walk.md").read_text(encoding="utf-8") == page
    assert "| character | `I` | `t` | `␣` | `w` | `a` | `s` |" in page


def test_a_picture_is_a_page(here: Path, tmp_path: Path, run: Call) -> None:
    assert (
        run(f"explain picture --checkpoint runs/tiny --prompt 'It was' --html {tmp_path}/it.html").out
        == f"{tmp_path}/it.html\n"
    )
    page = (tmp_path / "it.html").read_text(encoding="utf-8")
    assert '"labels":["I","t","\\u2423","w","a","s"]' in page
    assert '"parts":["embedding","position","attn","mlp"]' in page


def test_a_page_that_cannot_be_written_is_one_line(here: Path, refuse: Callable[..., str]) -> None:
    assert "cannot write missing/page.md" in refuse("explain mathematics --output missing/page.md")
