"""Plugins: Python files that add components of their own to the tables of the package.

A file such as

    import torch.nn.functional as F

    from gpt.model.layers import ACTIVATIONS

    ACTIVATIONS["mish"] = F.mish

is run by `--plugin FILE` or `load_plugins`; then a configuration can name `mish`. See
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
"""The largest size of a plugin's file, so that a wrong path cannot fill the memory."""


@dataclass(frozen=True)
class Plugin:
    """A loaded plugin."""

    path: Path
    sha256: str  # of the file
    names: dict[str, list[str]]  # of the components that it added, by table


PLUGINS: dict[Path, Plugin] = {}
"""The plugins of this process, by their resolved paths."""
Components = dict[str, Any]
"""A table of the package: classes and functions by the names that a configuration gives them."""


def load_plugins(paths: str | Path | Sequence[str | Path]) -> None:
    """Load plugins into this process.

    A plugin that is loaded already is loaded again only if its file has changed.
    """
    if isinstance(paths, str | Path):
        _load(Path(paths))
        return
    for path in paths:
        _load(Path(path))


def _load(path: Path) -> None:
    """Run a plugin, unless it is loaded already; record its hash and the names that it adds."""
    content = _read(path)
    resolved_path = path.resolve()
    sha256 = hashlib.sha256(content).hexdigest()
    if resolved_path in PLUGINS and PLUGINS[resolved_path].sha256 == sha256:
        return
    unload_plugin(resolved_path)  # an earlier version of the file may be loaded
    tables: dict[str, Components] = {}
    for tables_of_key in TABLES.values():
        for table in tables_of_key:
            tables[table] = resolve_name(table)
    # The plugin changes the tables themselves. The copies show what it changes, and undo it.
    copies = {table: dict(components) for table, components in tables.items()}
    try:
        _run(path, content)
        added_names = _added_names(path, tables, copies)
    except (Exception, SystemExit) as error:
        # A plugin that fails, or calls `sys.exit`, must leave no components behind. Other modules
        # hold the tables, so these are restored in place.
        for table, components in tables.items():
            components.clear()
            components.update(copies[table])
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(_error_of_plugin(path, error)) from error
    PLUGINS[resolved_path] = Plugin(path, sha256, added_names)


def _read(path: Path) -> bytes:
    text_message = text_for_path(path)
    if text_message is not None:
        raise ConfigError(f"{text_message}; give a plugin's file")
    try:
        return read_file(path, MAX_BYTES)
    except OSError as error:
        raise ConfigError(f"cannot read the plugin {path}: {error.strerror}") from None


def _added_names(
    path: Path, tables: dict[str, Components], before: dict[str, Components]
) -> dict[str, list[str]]:
    """Return the names that a plugin has added, by table.

    Args:
        tables: the tables, after the plugin was run.
        before: copies of the tables from before the plugin was run.

    Raises:
        ConfigError: the plugin has replaced or removed a name, has added no name, or has added one
            that another table of the same key has too.
    """
    for table, components in before.items():
        for name, component in components.items():
            if name not in tables[table]:
                raise ConfigError(f"{path}: the plugin removes {name}; leave it registered")
            if tables[table][name] is not component:
                raise ConfigError(f"{path}: {name} is already registered; choose another name")
    for key in TABLES:
        # A key may have several tables: `model.mlp` has one of activations and one of classes. A
        # name in both would be ambiguous.
        names = names_of(key)
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(
                    f"{path}: {name} is already registered for {key}; choose another name"
                )
    added_names = {}
    for table, components in tables.items():
        added_names[table] = [name for name in components if name not in before[table]]
    if not any(added_names.values()):
        example = 'from gpt.model.layers import ACTIVATIONS; ACTIVATIONS["mish"] = F.mish'
        raise ConfigError(f"{path}: the plugin adds no parts; write for example {example}")
    return added_names


def _error_of_plugin(path: Path, error: BaseException) -> str:
    """Return the message about an error of a plugin, with the line of its file that caused it."""
    frames = traceback.extract_tb(error.__traceback__)
    line_numbers = [frame.lineno for frame in frames if frame.filename == str(path)]
    place = f"{path}:{line_numbers[-1]}" if line_numbers else str(path)
    return f"{place}: the plugin raises {type(error).__name__}: {first_line(error)}"


def _run(path: Path, content: bytes) -> None:
    module = ModuleType(f"gpt_plugin_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # `dataclass` looks up the module of a class there
    exec(compile(content, str(path), "exec", dont_inherit=True), vars(module))


def unload_plugin(resolved_path: Path) -> None:
    """Remove the components that a plugin has added, if the plugin is loaded."""
    if resolved_path not in PLUGINS:
        return
    plugin = PLUGINS.pop(resolved_path)
    for table, names in plugin.names.items():
        components = resolve_name(table)
        for name in names:
            del components[name]


def plugin_options() -> list[str]:
    """Return the options by which another command loads the plugins of this process."""
    options = []
    for resolved_path in PLUGINS:
        options += ["--plugin", str(resolved_path)]
    return options


def used_plugins(config: Config) -> list[dict[str, Any]]:
    """Return a record of each plugin that a configuration uses, as JSON values for a checkpoint.

    A record has the name and the hash of the plugin's file and, in `parts`, the names of the used
    components by the keys that name them. Of several loss terms of one plugin only the last is
    recorded, which is enough to tell that the plugin is needed.
    """
    values = config.leaves()
    records = []
    for plugin in PLUGINS.values():
        parts = {}
        for key, tables in TABLES.items():
            # `train.loss_terms` is a dict of weights by name; every other key has one name.
            value = values[key]
            used_names = list(value) if isinstance(value, dict) else [value]
            added_names = []
            for table in tables:
                added_names += plugin.names[table]
            for name in used_names:
                if name in added_names:
                    parts[key] = name
        if parts:
            records.append({"file": plugin.path.name, "sha256": plugin.sha256, "parts": parts})
    return records


def require_plugins(recorded: Any) -> None:
    """Check that all components of plugins that a checkpoint uses are registered.

    Warn about each plugin whose file has changed since the checkpoint was saved.

    Args:
        recorded: the result of `used_plugins` as it was read from a file, which may be damaged;
            None if the checkpoint records no plugins.

    Raises:
        CheckpointError: a component is missing, or the record is damaged.
    """
    for file, sha256, parts in _read_records(recorded or []):
        # The message tells the user to run a file of this name. The folder is left out, so that a
        # damaged or hostile checkpoint cannot make the user run a file in another folder.
        name = quoted(Path(file).name)
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
    """Return the file, the hash and the parts of each record of `used_plugins`.

    Raise CheckpointError if the records are damaged.
    """
    parsed = []
    # Damaged records may be any JSON values, for which these conversions raise different errors.
    try:
        for record in records:
            parsed.append((str(record["file"]), str(record["sha256"]), dict(record["parts"])))
    except (TypeError, KeyError, ValueError):
        raise CheckpointError(
            "state.json is damaged: what it says of plugins cannot be read"
        ) from None
    return parsed
