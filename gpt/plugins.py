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

from gpt.config import Config, SamplingParams
from gpt.config.fields import renew_filter_fields
from gpt.errors import CheckpointError, ConfigError, GPTWarning, first_line, quoted
from gpt.filters import Filter
from gpt.parts import PLUGINS, TABLES, Plugin, names_of

FILTERS = "FILTERS"


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
        plugin = Plugin(path, sha256, _tables(path, module, others))
        PLUGINS[:] = [*others, plugin]
        renew_filter_fields()
        Config.model_rebuild(force=True)


def plugin_options() -> list[str]:
    """Return the options by which another command loads the plugins of this process."""
    return [word for plugin in PLUGINS for word in ("--plugin", str(plugin.path.resolve()))]


def used_plugins(config: Config) -> list[dict[str, Any]]:
    """Return file name, hash and parts of each plugin that a configuration uses, as JSON values for a checkpoint."""
    leaves, used = config.leaves(), []
    for plugin in PLUGINS:
        chosen = {table.key for table in TABLES if leaves.get(table.key) in plugin.tables.get(table.name, {})}
        filters = {
            f"sample.{name}"
            for name, part in plugin.tables.get(FILTERS, {}).items()
            if leaves[f"sample.{name}"] != part.off
        }
        if parts := {key: leaves[key] for key in sorted(chosen | filters)}:
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
            if not _is_known(str(key), value):
                what = quoted(f"{key}" if str(key).startswith("sample.") else f"{key}: {value}")
                raise CheckpointError(f"{what} comes from the plugin {name}; pass --plugin {name}")
        if any(plugin.path.name == file and plugin.sha256 != sha256 for plugin in PLUGINS):
            warnings.warn(f"the plugin {name} has changed since the checkpoint was saved", GPTWarning, stacklevel=2)


def _is_known(key: str, value: Any) -> bool:
    section, _, name = key.partition(".")
    return name in SamplingParams.model_fields if section == "sample" else value in names_of(key)


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
    taken: dict[str, set[str]] = {}
    for table in TABLES:
        parts = found.get(table.name, {})
        if not isinstance(parts, dict):
            raise ConfigError(f"{path}: {table.name} is of type {type(parts).__name__}, expected a dict by name")
        for name, part in parts.items():
            if problem := _problem(table.name, name, part):
                raise ConfigError(f"{path}: {table.name}: {problem}")
            owner = next((f"the plugin {other.path}" for other in others if name in other.names(table.key)), None)
            if _is_shipped(table.key, name) or name in taken.get(table.key, ()):
                owner = "gpt"
            if owner is not None:
                raise ConfigError(f"{path}: {table.name}: {name} is a name of {owner} already; choose another")
            taken.setdefault(table.key, set()).add(name)
    return found


def _is_shipped(key: str, name: str) -> bool:
    own = {each for plugin in PLUGINS for each in plugin.names(key)}
    names = [*SamplingParams.model_fields, "greedy"] if key == "sample.*" else names_of(key)
    return name in set(names) - own


def _problem(table: str, name: Any, part: Any) -> str | None:
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        return f"{name!r} is no name; expected small letters, digits and _"
    if table != FILTERS:
        return None if callable(part) else f"{name} is of type {type(part).__name__}, expected a function or a class"
    if not isinstance(part, Filter):
        return f"{name} is of type {type(part).__name__}, expected a gpt.filters.Filter"
    if not callable(part.apply):
        return f"{name} applies {part.apply!r}, expected a function of logits and a value"
    if type(getattr(part.field, "default", None)) not in (int, float):
        return f"{name} needs a pydantic.Field whose default is a number, the one that keeps all tokens"
    return None
