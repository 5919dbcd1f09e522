"""Plugins: Python files with parts of their own, in tables of the same names as the package's.

A file such as

    import torch.nn.functional as F

    ACTIVATIONS = {"mish": F.mish}

is loaded by `--plugin FILE` or `load_plugins`, and a configuration can then name `mish`. See docs/changing.md.
"""

import hashlib
import re
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from gpt.config import Config
from gpt.errors import CheckpointError, ConfigError, GPTWarning, first_line, quoted
from gpt.parts import PLUGINS, TABLES, Plugin, names_of, shipped_names

KEYS = sorted({table.key for table in TABLES})


def load_plugins(paths: str | Path | Sequence[str | Path]) -> None:
    """Load plugins into this process; one that is loaded already is loaded again only if its file has changed.

    Args:
        paths: Python files, or one.

    Raises:
        ConfigError: one cannot be read or run, has no parts, or has one that cannot be used.
    """
    for path in map(Path, [paths] if isinstance(paths, str | Path) else paths):
        content = _read(path)
        sha256 = hashlib.sha256(content).hexdigest()
        present = next((plugin for plugin in PLUGINS if plugin.path.resolve() == path.resolve()), None)
        if present is not None and present.sha256 == sha256:
            continue
        module = _run(path, _compile(path, content))
        others = [plugin for plugin in PLUGINS if plugin is not present]
        PLUGINS[:] = [*others, Plugin(path, sha256, _tables(path, module, others))]


def plugin_options() -> list[str]:
    """Return the options by which another command loads the plugins of this process."""
    return [word for plugin in PLUGINS for word in ("--plugin", str(plugin.path.resolve()))]


def used_plugins(config: Config) -> list[dict[str, Any]]:
    """Return file name, hash and parts of each plugin that a configuration uses, as JSON values for a checkpoint."""
    leaves, used = config.leaves(), []
    for plugin in PLUGINS:
        if parts := {key: leaves[key] for key in KEYS if leaves[key] in plugin.names(key)}:
            used.append({"file": plugin.path.name, "sha256": plugin.sha256, "parts": parts})
    return used


def require_plugins(recorded: Any) -> None:
    """Check that the plugins which a checkpoint records are loaded, and warn of those whose file has changed.

    Args:
        recorded: result of `used_plugins`, as it was read; None where a checkpoint has none.

    Raises:
        CheckpointError: one is missing; the message names the option that loads it.
    """
    try:
        entries = [(str(each["file"]), str(each["sha256"]), dict(each["parts"])) for each in recorded or []]
    except (TypeError, KeyError, ValueError):
        raise CheckpointError("state.json is damaged: what it says of plugins cannot be read") from None
    for file, sha256, parts in entries:
        name = quoted(Path(file).name)  # never a path, which somebody would be told to run
        for key, value in parts.items():
            if value not in names_of(str(key)):
                raise CheckpointError(f"{quoted(f'{key}: {value}')} comes from the plugin {name}; pass --plugin {name}")
        if any(plugin.path.name == file and plugin.sha256 != sha256 for plugin in PLUGINS):
            warnings.warn(f"the plugin {name} has changed since the checkpoint was saved", GPTWarning, stacklevel=2)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such plugin") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder; a plugin is a Python file") from None
    except OSError as error:
        raise ConfigError(f"cannot read the plugin {path}: {error.strerror}") from None


def _compile(path: Path, content: bytes) -> CodeType:
    try:
        return compile(content, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:  # ValueError: a NUL character
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        what = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ConfigError(f"{path}{line}: the plugin is not Python: {quoted(what)}") from None


def _run(path: Path, code: CodeType) -> ModuleType:
    """Return the module that the file defines; it is found in `sys.modules`, as dataclasses need it."""
    module = ModuleType(f"gpt_plugin_{re.sub(r'[^A-Za-z0-9_]', '_', path.stem)}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    try:
        exec(code, vars(module))
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        where = f"{path}:{lines[-1]}" if lines else str(path)
        raise ConfigError(f"{where}: the plugin raises {type(error).__name__}: {first_line(error)}") from error
    return module


def _tables(path: Path, module: ModuleType, others: Sequence[Plugin]) -> dict[str, Mapping[str, Any]]:
    """Return the checked tables of a plugin.

    Raises:
        ConfigError: see `load_plugins`.
    """
    found = {table.name: getattr(module, table.name) for table in TABLES if hasattr(module, table.name)}
    if not any(found.values()):
        tables = ", ".join(table.name for table in TABLES)
        raise ConfigError(f"{path}: the plugin has no parts; it needs one of the tables {tables}")
    taken: dict[str, set[str]] = {key: set() for key in KEYS}
    for table in TABLES:
        parts = found.get(table.name, {})
        if not isinstance(parts, dict):
            raise ConfigError(f"{path}: {table.name} is of type {type(parts).__name__}, expected a dict by name")
        for name, part in parts.items():
            if problem := _problem(name, part):
                raise ConfigError(f"{path}: {table.name}: {problem}")
            owner = next((f"the plugin {other.path}" for other in others if name in other.names(table.key)), None)
            if any(name in shipped_names(each) for each in TABLES if each.key == table.key) or name in taken[table.key]:
                owner = "gpt"
            if owner is not None:
                raise ConfigError(f"{path}: {table.name}: {name} is a name of {owner} already; choose another")
            taken[table.key].add(name)
    return found


def _problem(name: Any, part: Any) -> str | None:
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        return f"{name!r} is no name; expected small letters, digits and _"
    return None if callable(part) else f"{name} is of type {type(part).__name__}, expected a function or a class"
