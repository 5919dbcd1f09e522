"""The package as a whole: its public face, and which part may import which."""

import ast
import importlib
import os
import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import gpt

PACKAGE = Path(gpt.__file__).parent

FLOORS = [
    {"system", "filters"},
    {"config", "web"},
    {"device", "model", "data", "distributed", "plugins"},
    {"cache"},
    {"kernels", "evaluation", "checkpoint", "corpora"},
    {"accounting", "generation"},
    {"inspection"},
    {"training"},
    {"api", "serving", "interop"},
    {"cli"},
    {"__main__"},
]
"""From the ground up: a part imports from lower floors and from itself only."""


REACH = {"gpt.training.trainer": 60, "gpt.generation.generator": 21, "gpt.model.gpt": 13}
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


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
FACADES = {module for module, path in MODULES.items() if path.name == "__init__.py"}
"""What stands for other files."""
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if part_of(path) != "__init__"]


@pytest.mark.parametrize("given", [None, "123"])
def test_idle_threads_sleep_soon_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", given or "")
    if given is None:
        monkeypatch.delenv("GOMP_SPINCOUNT")
    importlib.reload(gpt)
    assert os.environ["GOMP_SPINCOUNT"] == (given or "8000")


def test_imports_run_down_only_and_never_to_the_benchmarks() -> None:
    wrong = {}
    for path in FILES:
        part = part_of(path)
        floor = next(number for number, parts in enumerate(FLOORS) if part in parts)
        modules = modules_of(path)
        used = {module.split(".")[1] for module in modules if module.startswith("gpt.")}
        above = used - set().union(*FLOORS[:floor], {part}) | {"benchmarks"} & {name.split(".")[0] for name in modules}
        wrong |= {str(path.relative_to(PACKAGE)): above} if above else {}
    assert wrong == {}


@pytest.mark.parametrize("module", REACH)
def test_the_core_can_be_read_alone(module: str) -> None:
    reached = closure_of(module)
    assert len(reached) <= REACH[module], sorted(reached)
    assert not {"kernels", "serving", "interop", "api", "cli"} & {part_of(MODULES[each]) for each in reached}


def test_no_file_needs_itself() -> None:
    """Not even by way of others: within a part too, imports run in one direction."""
    files = {module: loaded_by(module) - FACADES for module in MODULES.keys() - FACADES}
    TopologicalSorter(files).prepare()


def test_every_extra_that_a_message_names_is_there() -> None:
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {name for path in FILES for name in re.findall(r"glassgpt\[(\w+)\]", path.read_text(encoding="utf-8"))}
    assert len(named) > 3
    assert named <= project["optional-dependencies"].keys()


def test_every_file_in_the_tables_of_the_architecture_is_there() -> None:
    """One may be relative to a folder of the one before it in its row."""
    document = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    missing = []
    for row in re.findall(r"^\|.*", document, re.MULTILINE):
        near = PACKAGE / "room"
        for name in re.findall(r"`([\w/]+\.(?:py|h))`", row):
            places = [folder / name for folder in near.parents if (folder / name).is_file()]
            near, missing = (places[0], missing) if places else (near, [*missing, name])
    assert missing == []


def test_every_public_name_is_there_documented_and_seen_by_type_checkers() -> None:
    for name in gpt.__all__:
        assert getattr(gpt, name).__doc__, name
    tree = ast.parse(Path(gpt.__file__).read_text(encoding="utf-8"))
    imports = [node for block in tree.body if isinstance(block, ast.If) for node in block.body]
    seen = {alias.asname: node.module for node in imports if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == gpt._MODULE_OF
    assert dir(gpt) == sorted(seen)
    assert set(gpt.__all__) <= set(seen)
    assert isinstance(gpt.edits.zero(head=2), gpt.edits.Edit)  # without another import
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        gpt.nonsense  # noqa: B018
