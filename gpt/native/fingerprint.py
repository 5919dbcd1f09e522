"""Say whether the code that would run is the code whose results the kernels compute.

Kernels stand for the definitions of some files. `fingerprint.json` has a hash of the syntax tree of each, without
comments and docstrings; `python -m gpt.native.trial` writes it, after it has compared the kernels' numbers with those
of the code. Before kernels are used, the files on disk must have these hashes, and the modules in memory must hold what
the files define.
"""

import ast
import builtins
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from gpt.native.around_torch import changed_torch

PACKAGE = Path(__file__).parents[1]
FINGERPRINT = Path(__file__).parent / "fingerprint.json"
TOP_LEVEL = "a statement"
"""Stands for what is neither a definition nor an import: it may replace anything."""
Scope = Mapping[str, tuple[str, ...]]
"""Definitions by file; none: all of the file."""
TRAINING: Scope = {
    "model/gpt.py": ("Block",),
    "model/attention.py": (),
    "model/layers.py": (),
    "model/positions.py": ("rotate", "rotate_half"),
}
"""What the training kernels compute."""
DECODING: Scope = {
    **TRAINING,
    "model/gpt.py": ("Block", "GPT", "_positions_and_mask", "_biased"),
    "model/positions.py": (),
    "model/quantized.py": ("QuantizedLinear", "BFloat16Linear", "unpack"),
    "generation/runner.py": ("Runner", "TorchRunner"),
}
"""What the decoding engine computes."""
SAMPLING: Scope = {
    "generation/sampling.py": (),
    "config/filters.py": (),
    "generation/tokens.py": ("sample_tokens",),
    "generation/runner.py": ("sample_each",),
}
"""What the engine samples by."""


def changed_code(scope: Scope) -> str | None:
    """Return the first definition that is not what the kernels compute, as part of a message; None: all are."""
    for file, names in scope.items():
        try:
            source = _read(PACKAGE, file)
        except Exception as error:
            return f"gpt/{file} raises {type(error).__name__}"
        if edited := _edited(file, names, source):
            return f"{edited} of gpt/{file} was edited"
        module = import_module(source.module)
        for name in _in_memory(file, names, source):
            in_memory = vars(module).get(name)
            expected = source.defined[name]
            if not _is_same(in_memory, expected):
                _read.cache_clear()  # it may be for a while, and what was executed meanwhile has it
                return f"{name} of gpt/{file} {_how_changed(in_memory, expected)}"
    return changed_torch()


@cache
def _edited(file: str, scope: tuple[str, ...], source: "_Source") -> str | None:
    """Return the first name whose hash is not the one that is recorded, of those that matter."""
    known, found = recorded().get(file, {}), source.hashes
    for name in sorted(found.keys() | known.keys()):
        if found.get(name) != known.get(name) and _matters(name, scope, source, known):
            return name
    return None


@cache
def _in_memory(file: str, scope: tuple[str, ...], source: "_Source") -> list[str]:
    """Return the names of a module that matter, where none was edited."""
    known = recorded().get(file, {})
    matters = {name.removeprefix("import ") for name in known if _matters(name, scope, source, known)}
    return [name for name in source.defined if name in matters]


def _matters(name: str, scope: tuple[str, ...], source: "_Source", known: Mapping[str, str]) -> bool:
    """Return whether kernels stand for a definition or import of a file, of which they compute `scope`.

    A function or import that is new, and not in the place of another, is at most used by what is known, which then
    has another hash itself.
    """
    if name == TOP_LEVEL:
        return True
    bound = name.removeprefix("import ")
    is_new = not {bound, f"import {bound}"} & known.keys()
    if is_new and name in source.inert and not hasattr(builtins, bound):
        return False
    if not scope or bound in scope:
        return True
    return name.startswith("import ") and any(bound in source.used_by.get(each, ()) for each in scope)


@cache
def recorded() -> dict[str, dict[str, str]]:
    """Return the fingerprint of the code that the kernels were compared with."""
    return dict(json.loads(FINGERPRINT.read_text(encoding="utf-8")))


def current() -> dict[str, dict[str, str]]:
    """Return the fingerprint of the code on disk: of what matters to some kernels."""
    found: dict[str, dict[str, str]] = {}
    for scope in (TRAINING, DECODING, SAMPLING):
        for file, names in scope.items():
            source = _read(PACKAGE, file)
            for name, value in source.hashes.items():
                if _matters(name, names, source, source.hashes):
                    found.setdefault(file, {})[name] = value
    return {file: dict(sorted(hashes.items())) for file, hashes in sorted(found.items())}


@dataclass(frozen=True, eq=False)
class _Source:
    """What a file has on disk.

    Attributes:
        module: its name.
        hashes: of every definition and import, without comments and docstrings.
        used_by: names that a definition uses.
        inert: functions and imports, which change nothing unless something else uses them.
        defined: what the file defines when it is executed.
    """

    module: str
    hashes: dict[str, str]
    used_by: dict[str, set[str]]
    inert: set[str]
    defined: dict[str, Any]


@cache  # a file that is edited later is not what this process has in memory
def _read(package: Path, file: str) -> _Source:
    source, parts = (package / file).read_text(encoding="utf-8"), dict[str, list[Any]]()
    used_by, others = dict[str, set[str]](), set[str]()
    for node in ast.parse(source).body:
        for name, part in _named(node):
            parts.setdefault(name, []).append(_as_data(part))
            used = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
            used_by.setdefault(name, set()).update(used)
            if not _is_inert(node):
                others.add(name)
    module = f"gpt.{file[:-3].replace('/', '.')}"
    defined: dict[str, Any] = {"__name__": module}
    exec(compile(source, str(package / file), "exec", dont_inherit=True), defined)
    hashes = {name: hashlib.sha256(repr(found).encode()).hexdigest()[:12] for name, found in parts.items()}
    return _Source(module, hashes, used_by, parts.keys() - others, defined)


def _is_inert(node: ast.stmt) -> bool:
    if isinstance(node, ast.FunctionDef):
        return not node.decorator_list
    return isinstance(node, ast.Import | ast.ImportFrom)


def _named(node: ast.stmt) -> Iterator[tuple[str, Any]]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        yield node.name, node
    elif isinstance(node, ast.Import | ast.ImportFrom):
        for alias in node.names:
            yield f"import {alias.asname or alias.name}", (getattr(node, "module", None), alias.name)
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from ((each.id if isinstance(each, ast.Name) else TOP_LEVEL, node) for each in targets)
    elif not _is_docstring(node):
        yield TOP_LEVEL, node


def _is_docstring(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _as_data(node: Any) -> Any:
    """Return a syntax tree as tuples, alike in all versions of Python: without empty fields, which some of them add."""
    if isinstance(node, ast.AST):
        fields = ((name, _as_data(value)) for name, value in ast.iter_fields(node))
        return type(node).__name__, *(field for field in fields if field[1] not in (None, ()))
    return tuple(_as_data(each) for each in node if not _is_docstring(each)) if isinstance(node, list) else node


def _is_same(found: Any, expected: Any) -> bool:
    """Return whether a value in memory is what its file defines, functions and classes by their code."""
    if found is expected:
        return True
    if isinstance(found, CodeType) and isinstance(expected, CodeType):
        return found == expected or _without_lines(found) == _without_lines(expected)
    if type(found).__qualname__ != type(expected).__qualname__:
        return False
    if isinstance(expected, FunctionType | property):
        names = ("__code__", "__defaults__", "__kwdefaults__", "__wrapped__", "fget")
        return all(_is_same(getattr(found, name, None), getattr(expected, name, None)) for name in names)
    if isinstance(expected, type):
        own, known = vars(found), vars(expected)
        parts = [name for name in {**own, **known} if _decides(name, own, known)]
        return found.__qualname__ == expected.__qualname__ and all(_is_same(own.get(n), known.get(n)) for n in parts)
    if isinstance(expected, dict):  # a plugin may have added to a table
        if [key for key in found if key in expected] != list(expected):  # filters apply in their order
            return False
        return all(_is_same(found[key], value) for key, value in expected.items())
    if is_dataclass(expected):
        return _is_same(vars(found), vars(expected))
    return bool(found == expected) or repr(found) == repr(expected)  # pydantic's fields have no equality


def _without_lines(code: CodeType) -> CodeType:
    """Return code that knows no lines, since a comment above it changes nothing."""
    inner = tuple(_without_lines(each) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.replace(co_firstlineno=1, co_linetable=b"", co_consts=inner)


def _decides(name: str, own: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    """Return whether an attribute of a class, in memory or in its file, decides what the class computes."""
    if any(callable(part) or hasattr(type(part), "__get__") for part in (own.get(name), known.get(name))):
        return True
    return not name.startswith("__") and (name in own) != (name in known)


def _how_changed(found: Any, expected: Any) -> str:
    """Return whether a value was replaced, or is what its file defined before an edit."""
    former, now = _codes(found), _codes(expected)
    other = [(former[name], code) for name, code in now.items() if not _is_same(former.get(name, code), code)]
    is_former = bool(other) and all(old.co_filename == code.co_filename for old, code in other)
    return "was edited after it was imported; start again" if is_former else "was replaced"


def _codes(value: Any) -> dict[str, CodeType]:
    """Return the code of a function, or of those of a class or table, by name."""
    if isinstance(value, FunctionType):
        return {value.__qualname__: value.__code__}
    parts: Any = ()
    if isinstance(value, dict):
        parts = value.values()
    elif isinstance(value, type) or is_dataclass(value):
        parts = vars(value).values()
    found: dict[str, CodeType] = {}
    for index, part in enumerate(parts):
        found |= {f"{index} {name}": code for name, code in _codes(part).items()}
    return found
