"""Plugins: Python files that add parts of their own to the tables of the package.

A file such as

    import torch.nn.functional as F

    from gpt.model.layers import ACTIVATIONS

    ACTIVATIONS["mish"] = F.mish

is run by `--plugin FILE` or `load_plugins`, and a configuration can then name `mish`. See
docs/changing.md.
"""

import hashlib
import sys
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

from gpt.config import Config
from gpt.config.components import TABLES, names_of
from gpt.system.errors import CheckpointError, ConfigError, GPTWarning, first_line, quoted
from gpt.system.files import read_file, text_for_path

MAX_BYTES = 16 << 20


@dataclass(frozen=True)
class Plugin:
    """A loaded plugin: its file, the file's hash, and the names that it added, by table."""

    path: Path
    sha256: str
    names: dict[str, list[str]]


PLUGINS: dict[Path, Plugin] = {}
"""The plugins of this process, by their resolved paths."""
Components = dict[str, Any]
"""A table of the package: classes and functions by the names that a configuration can have."""


def load_plugins(paths: str | Path | Sequence[str | Path]) -> None:
    """Load plugins into this process.

    One that is loaded already is loaded again only if its file has changed.
    """
    for path in [paths] if isinstance(paths, str | Path) else paths:
        _load(Path(path))


def _load(path: Path) -> None:
    """Run a plugin, and record its hash and the names that it has added."""
    content = _read(path)
    place = path.resolve()
    sha256 = hashlib.sha256(content).hexdigest()
    if place in PLUGINS and PLUGINS[place].sha256 == sha256:
        return
    unload_plugin(place)
    tables: dict[str, Components] = {}
    for names_of_tables in TABLES.values():
        for table in names_of_tables:
            tables[table] = resolve_name(table)
    before = {table: dict(components) for table, components in tables.items()}
    try:
        _run(path, content)
        added = _added_names(path, tables, before)
    except (Exception, SystemExit) as error:
        # A plugin that fails half way must leave nothing behind.
        for table, components in tables.items():
            components.clear()
            components.update(before[table])
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(_error_of_plugin(path, error)) from error
    PLUGINS[place] = Plugin(path, sha256, added)


def _read(path: Path) -> bytes:
    if text := text_for_path(path):
        raise ConfigError(f"{text}; give a plugin's file")
    try:
        return read_file(path, MAX_BYTES)
    except OSError as error:
        raise ConfigError(f"cannot read the plugin {path}: {error.strerror}") from None


def _added_names(
    path: Path, tables: dict[str, Components], before: dict[str, Components]
) -> dict[str, list[str]]:
    """Return the names that a plugin has added, by table.

    Raises:
        ConfigError: it has replaced or removed a name, or added one that is ambiguous, or none.
    """
    for table, components in before.items():
        for name, component in components.items():
            if name not in tables[table]:
                raise ConfigError(f"{path}: the plugin removes {name}; leave it registered")
            if tables[table][name] is not component:
                raise ConfigError(f"{path}: {name} is already registered; choose another name")
    for key in TABLES:
        # A key may look into several tables, as `model.mlp` does into activations and classes.
        names = names_of(key)
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(
                    f"{path}: {name} is already registered for {key}; choose another name"
                )
    added = {}
    for table, components in tables.items():
        added[table] = [name for name in components if name not in before[table]]
    if not any(added.values()):
        example = 'from gpt.model.layers import ACTIVATIONS; ACTIVATIONS["mish"] = F.mish'
        raise ConfigError(f"{path}: the plugin adds no parts; write for example {example}")
    return added


def _error_of_plugin(path: Path, error: BaseException) -> str:
    """Return what a plugin raises, and the last line of its file that led there."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    place = f"{path}:{lines[-1]}" if lines else str(path)
    return f"{place}: the plugin raises {type(error).__name__}: {first_line(error)}"


def _run(path: Path, content: bytes) -> None:
    module = ModuleType(f"gpt_plugin_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses need it
    exec(compile(content, str(path), "exec", dont_inherit=True), vars(module))


def unload_plugin(place: Path) -> None:
    """Unregister what a plugin has added, if it is loaded."""
    if place not in PLUGINS:
        return
    plugin = PLUGINS.pop(place)
    for table, names in plugin.names.items():
        components = resolve_name(table)
        for name in names:
            del components[name]


def plugin_options() -> list[str]:
    """Return the options by which another command loads the plugins of this process."""
    options = []
    for place in PLUGINS:
        options += ["--plugin", str(place)]
    return options


def used_plugins(config: Config) -> list[dict[str, Any]]:
    """Return a record of each plugin that a configuration uses, as JSON values for a checkpoint.

    It has the file's name and hash, and a name that the plugin added, by the key that has it. Of
    several loss terms the last one is recorded, which is enough to tell that the plugin is needed.
    """
    values = config.leaves()
    records = []
    for plugin in PLUGINS.values():
        parts = {}
        for key, tables in TABLES.items():
            # the names of loss terms are the keys of a dict of their weights
            value = values[key]
            names = list(value) if isinstance(value, dict) else [value]
            added = [name for table in tables for name in plugin.names[table]]
            for name in names:
                if name in added:
                    parts[key] = name
        if parts:
            records.append({"file": plugin.path.name, "sha256": plugin.sha256, "parts": parts})
    return records


def require_plugins(recorded: Any) -> None:
    """Check that the plugins which a checkpoint records are loaded.

    Warn of those whose file has changed.

    Args:
        recorded: the result of `used_plugins`, as it was read, and perhaps damaged; None where a
            checkpoint has no plugins.
    """
    for file, sha256, parts in _read_records(recorded or []):
        name = quoted(Path(file).name)  # never a path, which somebody would be told to run
        for key, value in parts.items():
            if value not in names_of(str(key)):
                part = quoted(f"{key}: {value}")
                raise CheckpointError(f"{part} comes from the plugin {name}; pass --plugin {name}")
        for plugin in PLUGINS.values():
            if plugin.path.name == file and plugin.sha256 != sha256:
                warnings.warn(
                    f"the plugin {name} has changed since the checkpoint was saved",
                    GPTWarning,
                    stacklevel=2,
                )


def _read_records(records: Any) -> list[tuple[str, str, dict[Any, Any]]]:
    """Return file, hash and parts of each record; raise CheckpointError if they are damaged."""
    found = []
    try:
        for record in records:
            found.append((str(record["file"]), str(record["sha256"]), dict(record["parts"])))
    except (TypeError, KeyError, ValueError):
        raise CheckpointError(
            "state.json is damaged: what it says of plugins cannot be read"
        ) from None
    return found
