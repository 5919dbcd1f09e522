"""Plugins: Python files that add parts of their own to the tables of the package.

A file such as

    import torch.nn.functional as F

    from gpt.model.layers import ACTIVATIONS

    ACTIVATIONS["mish"] = F.mish

is run by `--plugin FILE` or `load_plugins`, and a configuration can then name `mish`. See docs/changing.md.
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
from gpt.config.sections import TABLES, names_of
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
"""The plugins of this process."""


def load_plugins(paths: str | Path | Sequence[str | Path]) -> None:
    """Load plugins into this process; one that is loaded already is loaded again only if its file has changed."""
    for path in map(Path, [paths] if isinstance(paths, str | Path) else paths):
        if text := text_for_path(path):
            raise ConfigError(f"{text}; give a plugin's file")
        try:
            content = read_file(path, MAX_BYTES)
        except OSError as error:
            raise ConfigError(f"cannot read the plugin {path}: {error.strerror}") from None
        place, sha256 = path.resolve(), hashlib.sha256(content).hexdigest()
        if place in PLUGINS and PLUGINS[place].sha256 == sha256:
            continue
        unload_plugin(place)
        tables = {table: resolve_name(table) for each in TABLES.values() for table in each}
        before = {table: dict(parts) for table, parts in tables.items()}
        try:
            _run(path, content)
            for table, parts in before.items():
                if taken := [name for name, part in parts.items() if tables[table].get(name) is not part]:
                    raise ConfigError(f"{path}: {taken[0]} is a name already; choose another")
            for key in TABLES:
                names = names_of(key)
                if taken := [name for name in names if names.count(name) > 1]:
                    raise ConfigError(f"{path}: {taken[0]} is a name of {key} already; choose another")
            added = {table: [name for name in parts if name not in before[table]] for table, parts in tables.items()}
            if not any(added.values()):
                example = 'from gpt.model.layers import ACTIVATIONS; ACTIVATIONS["mish"] = F.mish'
                raise ConfigError(f"{path}: the plugin adds no parts; write for example {example}")
        except (Exception, SystemExit) as error:
            for table, parts in tables.items():
                parts.clear()
                parts.update(before[table])
            if isinstance(error, ConfigError):
                raise
            lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
            where = f"{path}:{lines[-1]}" if lines else str(path)
            raise ConfigError(f"{where}: the plugin raises {type(error).__name__}: {first_line(error)}") from error
        PLUGINS[place] = Plugin(path, sha256, added)


def _run(path: Path, content: bytes) -> None:
    module = ModuleType(f"gpt_plugin_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses need it
    exec(compile(content, str(path), "exec", dont_inherit=True), vars(module))


def unload_plugin(place: Path) -> None:
    """Take the parts of a plugin out of the tables, if it is loaded."""
    if place in PLUGINS:
        for table, names in PLUGINS.pop(place).names.items():
            for name in names:
                del resolve_name(table)[name]


def plugin_options() -> list[str]:
    """Return the options by which another command loads the plugins of this process."""
    return [word for place in PLUGINS for word in ("--plugin", str(place))]


def used_plugins(config: Config) -> list[dict[str, Any]]:
    """Return file name, hash and parts of each plugin that a configuration uses, as JSON values for a checkpoint."""
    leaves, used = config.leaves(), []
    for plugin in PLUGINS.values():
        names = {key: [name for table in tables for name in plugin.names[table]] for key, tables in TABLES.items()}
        values = {key: leaves[key] if isinstance(leaves[key], dict) else [leaves[key]] for key in names}
        if parts := {key: name for key, added in names.items() for name in values[key] if name in added}:
            used.append({"file": plugin.path.name, "sha256": plugin.sha256, "parts": parts})
    return used


def require_plugins(recorded: Any) -> None:
    """Check that the plugins which a checkpoint records are loaded, and warn of those whose file has changed.

    `recorded` is the result of `used_plugins`, as it was read; None where a checkpoint has none.
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
        if any(plugin.path.name == file and plugin.sha256 != sha256 for plugin in PLUGINS.values()):
            warnings.warn(f"the plugin {name} has changed since the checkpoint was saved", GPTWarning, stacklevel=2)
