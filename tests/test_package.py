"""The package as a whole: its public face, and which part may import which."""

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import gpt

PACKAGE = Path(gpt.__file__).parent

FLOORS = [
    {"errors", "progress", "signals", "files", "filters", "parts", "torch_defaults"},
    {"environment", "config", "processor", "web"},
    {"device", "model", "data", "cache", "distributed", "plugins"},
    {"kernels", "evaluation", "checkpoint", "corpora"},
    {"accounting", "generation"},
    {"inspection", "training"},
    {"api", "serving", "interop"},
    {"cli"},
]
"""From the ground up: a part imports from lower floors and from itself only."""


REACH = {"gpt.training.trainer": 60, "gpt.generation.generator": 58, "gpt.model.gpt": 17}
"""How many files of the package are read for a module at the most, so that it can be understood alone."""


def modules_of(path: Path) -> set[str]:
    """The modules that a file imports."""
    return imported(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def imported(nodes: Iterable[ast.AST]) -> set[str]:
    """The modules that some statements import."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            found |= {node.module or ""} - {"gpt"} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


@cache
def loaded_by(module: str) -> set[str]:
    """The modules of the package that are imported where one is: all but those inside functions, or for types only."""
    body = ast.parse(MODULES[module].read_text(encoding="utf-8")).body
    return imported(statement for node in body for statement in _executed(node)) & MODULES.keys()


def _executed(node: ast.stmt) -> Iterator[ast.stmt]:
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        return
    yield node
    for each in [*getattr(node, "body", ()), *getattr(node, "orelse", ())] * isinstance(node, ast.If | ast.Try):
        yield from _executed(each)


def _parents(module: str) -> list[str]:
    words = module.split(".")
    return [".".join(words[:length]) for length in range(1, len(words))]


def closure_of(module: str) -> set[str]:
    """A module, and all that are loaded with it."""
    found, waiting = set[str](), [module, *_parents(module)]
    while waiting:
        if (each := waiting.pop()) not in found:
            found.add(each)
            waiting += [name for module in loaded_by(each) for name in (module, *_parents(module))]
    return found


def imports_of(path: Path) -> set[str]:
    """The parts of the package that a file imports."""
    return {module.split(".")[1] for module in modules_of(path) if module.startswith("gpt.")}


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
FACADES = {module for module, path in MODULES.items() if path.name == "__init__.py"}
"""What stands for other files."""
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if part_of(path) != "__init__"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_run_down_only(path: Path) -> None:
    part = part_of(path)
    floor = next(number for number, parts in enumerate(FLOORS) if part in parts)
    below = set().union(*FLOORS[:floor], {part})
    assert imports_of(path) <= below


@pytest.mark.parametrize("module", REACH)
def test_the_core_can_be_read_alone(module: str) -> None:
    reached = closure_of(module)
    assert len(reached) <= REACH[module], sorted(reached)
    above = {"serving", "interop", "api", "cli"} | ({"kernels"} if module != "gpt.generation.generator" else set())
    assert not above & {part_of(MODULES[each]) for each in reached}


def test_no_file_needs_itself() -> None:
    """Not even by way of others: within a part too, imports run in one direction."""
    files = {module: loaded_by(module) - FACADES for module in MODULES.keys() - FACADES}
    TopologicalSorter(files).prepare()


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
