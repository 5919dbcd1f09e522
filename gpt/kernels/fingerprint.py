"""Say whether the code that would run is the code whose results the kernels compute.

Kernels stand for the definitions of some files. `fingerprint.json` has a hash of the syntax tree of each, without
comments and docstrings; `python -m gpt.kernels.trial` writes it, after it has compared the kernels' numbers with those
of the code. Before kernels are used, the files on disk must have these hashes, the modules in memory must hold
what the files define, and nothing of torch that they call may have been replaced.
"""

import ast
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from gpt.config.sections import TABLES

PACKAGE = Path(__file__).parents[1]
FINGERPRINT = Path(__file__).parent / "fingerprint.json"
TORCH = str(Path(torch.__file__).parent)
CALLS = ("__call__", "_call_impl", "_wrapped_call_impl", "__getattr__", "forward")
"""Methods of modules by which a pass goes."""
TOP_LEVEL = "a statement"
"""Stands for what is neither a definition nor an import: it may replace anything."""

PARTS = {table for tables in TABLES.values() for table in tables}

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
SAMPLING: Scope = {"generation/sampling.py": (), "filters.py": ()}
"""What the engine samples by."""


def changed_code(scope: Scope) -> str | None:
    """Return the first definition that is not what the kernels compute, as part of a message; None: all are."""
    known = recorded()
    for file, names in scope.items():
        path = PACKAGE / file
        module = import_module(f"gpt.{file[:-3].replace('/', '.')}")
        expected: dict[str, Any] = {"__name__": module.__name__}
        try:
            status = path.stat()
            code, found, used = _read(path, status.st_mtime_ns, status.st_size)
            exec(code, expected)
        except (OSError, SyntaxError, ValueError):
            return f"gpt/{file} cannot be read"
        except Exception as error:
            return f"gpt/{file} raises {type(error).__name__}"
        for name in sorted(found.keys() | known[file].keys()):
            if _is_within(name, names, known[file]) and found.get(name) != known[file].get(name):
                return f"{name} of gpt/{file} was edited"
        for name in expected:
            is_other = name.startswith("__") or (names and name in found and name not in names)
            value = vars(module).get(name)
            if f"{module.__name__}:{name}" in PARTS and isinstance(value, dict):  # plugins may have added to it
                value = {key: value[key] for key in expected[name] if key in value}
            if not is_other and not _is_same(value, expected[name]):
                return f"{name} of gpt/{file} was replaced"
        if replaced := next(filter(None, (_replaced(expected, *chain) for chain in sorted(used))), None):
            return replaced
    return _replaced_in_torch()


def _is_within(name: str, names: tuple[str, ...], known: Mapping[str, str]) -> bool:
    """Return whether a part of a file matters: any of a whole file; else those in `names`, and what they may use."""
    first = name.split(".")[0]
    return not names or first in names or name == TOP_LEVEL or (name.startswith("import ") and name in known)


@lru_cache(maxsize=32)
def _read(path: Path, modified: int, size: int) -> tuple[CodeType, dict[str, str], set[tuple[str, ...]]]:
    """Return the code of a file, the hashes of its definitions, and the dotted names that it uses."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    chains = (_chain(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return compile(source, str(path), "exec", dont_inherit=True), hashes(tree), set(filter(None, chains))


@cache
def recorded() -> dict[str, dict[str, str]]:
    """Return the fingerprint of the code that the kernels were compared with."""
    return dict(json.loads(FINGERPRINT.read_text(encoding="utf-8")))


def current() -> dict[str, dict[str, str]]:
    """Return the fingerprint of the code on disk."""
    files = sorted({*TRAINING, *DECODING, *SAMPLING})
    return {file: hashes(ast.parse((PACKAGE / file).read_text(encoding="utf-8"))) for file in files}


def hashes(tree: ast.Module) -> dict[str, str]:
    """Return a hash of every definition, method and import of a file, whose comments and docstrings do not matter."""
    parts: dict[str, list[Any]] = {}
    for node in tree.body:
        for name, part in _parts(node):
            parts.setdefault(name, []).append(_as_data(part))
    return {name: hashlib.sha256(repr(found).encode()).hexdigest()[:12] for name, found in sorted(parts.items())}


def _parts(node: ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node, ast.ClassDef):
        methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
        yield from ((f"{node.name}.{method.name}", method) for method in methods)
        rest: list[ast.stmt] = [each for each in node.body if each not in methods]
        yield node.name, ast.ClassDef(node.name, node.bases, node.keywords, rest, node.decorator_list)
    elif isinstance(node, ast.FunctionDef):
        yield node.name, node
    elif isinstance(node, ast.Import | ast.ImportFrom):
        for alias in node.names:
            one = ast.ImportFrom(node.module, [alias], node.level) if isinstance(node, ast.ImportFrom) else alias
            yield f"import {alias.asname or alias.name}", one
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
    if isinstance(node, list):
        return tuple(_as_data(each) for each in node if not _is_docstring(each))
    return node if node is not Ellipsis else "..."


def _chain(node: ast.Attribute) -> tuple[str, ...] | None:
    """Return a dotted name such as `nn.functional.embedding`, and None for an attribute of something computed."""
    if isinstance(node.value, ast.Name):
        return node.value.id, node.attr
    before = _chain(node.value) if isinstance(node.value, ast.Attribute) else None
    return None if before is None else (*before, node.attr)


def _is_same(found: Any, expected: Any) -> bool:
    """Return whether a value in memory is what its file defines, functions and classes by their code."""
    if found is expected:
        return True
    if type(found).__qualname__ != type(expected).__qualname__:
        return False
    if isinstance(expected, FunctionType):
        inner = ([cell.cell_contents for cell in function.__closure__ or ()] for function in (found, expected))
        parts = ((one.__code__, one.__defaults__, one.__kwdefaults__) for one in (found, expected))
        return next(parts) == next(parts) and all(
            isinstance(one, type) or _is_same(one, other)
            for one, other in zip(*inner, strict=True)  # super()'s class
        )
    if isinstance(expected, type):
        known, own = vars(expected), vars(found)
        return found.__qualname__ == expected.__qualname__ and all(
            name in own and name in known and _is_same(own[name], known[name])
            for name in own.keys() | known.keys()
            if callable(own.get(name, known.get(name))) or isinstance(own.get(name), property | staticmethod)
        )
    if isinstance(expected, property):
        return _is_same(found.fget, expected.fget)
    if isinstance(expected, staticmethod):
        return _is_same(found.__func__, expected.__func__)
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(_is_same, found, expected))
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(_is_same(found[key], expected[key]) for key in expected)
    if isinstance(expected, bool | int | float | str | frozenset):
        return bool(found == expected)
    return not is_dataclass(expected) or _is_same(vars(found), vars(expected))


def _replaced(values: Mapping[str, Any], *chain: str) -> str | None:
    """Return that a dotted name of torch is not torch's own; None if it is, or is another's."""
    owner, name = values.get(chain[0]), chain[0]
    for attribute in chain[1:]:
        if not (isinstance(owner, ModuleType) and owner.__name__.split(".")[0] == "torch"):
            return None
        owner, name = getattr(owner, attribute, None), attribute
    return None if _is_torchs(owner, name) else f"{'.'.join(chain)} was replaced"


def _is_torchs(value: Any, name: str) -> bool:
    """Return whether a function is torch's, and that of this name; other values are not looked at."""
    if isinstance(value, FunctionType):
        return value.__code__.co_filename.startswith(TORCH) and value.__name__ == name
    return not isinstance(value, BuiltinFunctionType) or value.__name__.strip("_") == name.strip("_")


def _replaced_in_torch() -> str | None:
    """Return what of the modules and tensors of torch is not torch's own, or calls something else as well."""
    for kind in (nn.Module, nn.Linear, nn.Embedding, nn.LayerNorm, nn.Dropout, nn.Identity, torch.Tensor):
        for name, value in vars(kind).items():
            # other packages add methods of new names
            matters = name in CALLS or (
                kind is torch.Tensor and (name[:2] == "__" or hasattr(torch._C.TensorBase, name))
            )
            if matters and isinstance(value, FunctionType) and not value.__code__.co_filename.startswith(TORCH):
                return f"{kind.__name__}.{name} of torch was replaced"
            called = value.__code__.co_names if name == "forward" and isinstance(value, FunctionType) else ()
            for owner, each in ((owner, each) for owner in (F, torch) for each in called):
                if not _is_torchs(vars(owner).get(each), each):
                    return f"{owner.__name__}.{each} was replaced"
    for name, value in vars(torch.nn.modules.module).items():
        if name.startswith("_global_") and "hooks" in name and value:
            return f"torch has {name}"
    modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    return next((f"torch has {mode}" for mode in modes if not isinstance(mode, DeviceContext)), None)
