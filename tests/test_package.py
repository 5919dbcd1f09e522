"""The package as a whole: its public face, and which part may import which."""

import ast
from pathlib import Path

import pytest

import gpt

PACKAGE = Path(gpt.__file__).parent

FLOORS = [
    {"errors", "progress", "signals", "filters", "parts", "torch_defaults"},
    {"environment", "files", "config", "processor", "web"},
    {"device", "model", "data", "cache", "distributed", "plugins"},
    {"kernels", "evaluation", "corpora"},
    {"accounting"},
    {"checkpoint", "generation"},
    {"inspection"},
    {"training", "serving", "interop"},
    {"api"},
    {"cli"},
]
"""From the ground up: a part imports from lower floors and from itself only."""


def modules_of(path: Path) -> set[str]:
    """The modules that a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if modules == ["gpt"]:  # `from gpt import model` names the part after the import
            modules = [f"gpt.{alias.name}" for alias in node.names]
        found |= set(modules) | ({alias.name for alias in node.names} if isinstance(node, ast.Import) else set())
    return found


def imports_of(path: Path) -> set[str]:
    """The parts of the package that a file imports."""
    return {module.split(".")[1] for module in modules_of(path) if module.startswith("gpt.")}


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if part_of(path) != "__init__"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_run_down_only(path: Path) -> None:
    part = part_of(path)
    floor = next(number for number, parts in enumerate(FLOORS) if part in parts)
    below = set().union(*FLOORS[:floor], {part})
    assert imports_of(path) <= below


def test_the_package_does_not_import_the_benchmarks() -> None:
    assert [path for path in FILES if "benchmarks" in {name.split(".")[0] for name in modules_of(path)}] == []


def test_every_public_name_is_there_and_documented() -> None:
    for name in gpt.__all__:
        assert getattr(gpt, name).__doc__, name
    assert set(gpt.__all__) <= set(dir(gpt))


def test_type_checkers_see_the_names_that_are_imported_when_they_are_used() -> None:
    tree = ast.parse(Path(gpt.__file__).read_text(encoding="utf-8"))
    imports = [node for block in tree.body if isinstance(block, ast.If) for node in block.body]
    seen = {alias.asname: node.module for node in imports if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == gpt._MODULE_OF
    assert dir(gpt) == sorted(seen)


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        gpt.nonsense  # noqa: B018


def test_edits_are_there_without_another_import() -> None:
    edit = gpt.edits.zero(head=2)
    assert isinstance(edit, gpt.edits.Edit)
    assert edit.head == 2
