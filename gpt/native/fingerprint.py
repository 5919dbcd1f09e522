"""Say whether the code that would run is the code whose results the kernels compute.

Kernels stand for the definitions of some files. `fingerprint.json` has a hash of the syntax tree of each, without
comments and docstrings; `python -m gpt.native.trial` writes it, after it has compared the kernels' numbers with those
of the code. Before kernels are used, the files on disk must have these hashes, and the modules in memory must hold what
the files define.
"""

import ast
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

from torch import nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

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
}
"""What the decoding engine computes."""
SAMPLING: Scope = {"generation/sampling.py": (), "config/filters.py": ()}
"""What the engine samples by."""


def changed_code(scope: Scope) -> str | None:
    """Return the first definition that is not what the kernels compute, as part of a message; None: all are."""
    for file, names in scope.items():
        known = recorded()[file]
        try:
            found, defined = _read(PACKAGE, file)
        except Exception as error:
            return f"gpt/{file} raises {type(error).__name__}"
        module = import_module(defined["__name__"])
        for name in sorted(found.keys() | known.keys()):
            matters = not names or name in (*names, TOP_LEVEL) or (name.startswith("import ") and name in known)
            if matters and found.get(name) != known.get(name):
                return f"{name} of gpt/{file} was edited"
        for name, expected in defined.items():
            is_other = name.startswith("__") or (names and name in found and name not in names)
            if not is_other and not _is_same(vars(module).get(name), expected):
                _read.cache_clear()  # it may be for a while, and what was executed meanwhile has it
                return f"{name} of gpt/{file} was replaced"
    return _around_torch()


def _around_torch() -> str | None:
    """Return what torch calls around every module or function, which kernels would leave out; None: nothing."""
    for name, value in vars(nn.modules.module).items():
        if name.startswith("_global_") and "hooks" in name and value:
            return f"torch has {name}"
    modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    return next((f"torch has {mode}" for mode in modes if not isinstance(mode, DeviceContext)), None)


@cache
def recorded() -> dict[str, dict[str, str]]:
    """Return the fingerprint of the code that the kernels were compared with."""
    return dict(json.loads(FINGERPRINT.read_text(encoding="utf-8")))


def current() -> dict[str, dict[str, str]]:
    """Return the fingerprint of the code on disk."""
    return {file: _read(PACKAGE, file)[0] for file in sorted({*DECODING, *SAMPLING})}


@cache  # a file that is edited later is not what this process has in memory
def _read(package: Path, file: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Return a hash of every definition and import of a file, without comments and docstrings; and what it defines."""
    source, parts = (package / file).read_text(encoding="utf-8"), dict[str, list[Any]]()
    for node in ast.parse(source).body:
        for name, part in _named(node):
            parts.setdefault(name, []).append(_as_data(part))
    defined: dict[str, Any] = {"__name__": f"gpt.{file[:-3].replace('/', '.')}"}
    exec(compile(source, file, "exec", dont_inherit=True), defined)
    return {
        name: hashlib.sha256(repr(found).encode()).hexdigest()[:12] for name, found in sorted(parts.items())
    }, defined


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
    if type(found).__qualname__ != type(expected).__qualname__:
        return False
    if isinstance(expected, FunctionType | property):
        names = ("__code__", "__defaults__", "__kwdefaults__", "__wrapped__", "fget")
        return all(_is_same(getattr(found, name, None), getattr(expected, name, None)) for name in names)
    if isinstance(expected, type):
        own, known = vars(found), vars(expected)
        parts = (name for name, part in {**own, **known}.items() if callable(part) or isinstance(part, property))
        return found.__qualname__ == expected.__qualname__ and all(_is_same(own.get(n), known.get(n)) for n in parts)
    if isinstance(expected, dict):  # a plugin may have added to a table
        return all(key in found and _is_same(found[key], value) for key, value in expected.items())
    if is_dataclass(expected):
        return _is_same(vars(found), vars(expected))
    return bool(found == expected) or repr(found) == repr(expected)  # pydantic's fields have no equality
