"""The parts that a configuration chooses by name: those of the package's tables, and those of plugins.

A table is a dict literal beside the parts themselves. Its names are read from the source, since checking a
configuration must not import torch.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class Table(NamedTuple):
    """A table of parts.

    Attributes:
        name: of the dict, in the package and in plugins.
        file: that holds it, in the package.
        key: of the configuration, which names one of the parts.
    """

    name: str
    file: str
    key: str


MLPS = Table("MLPS", "model/layers.py", "model.mlp")
TABLES = (
    Table("ACTIVATIONS", "model/layers.py", "model.mlp"),
    MLPS,
    Table("NORMS", "model/layers.py", "model.norm"),
    Table("POSITIONS", "model/positions.py", "model.position"),
    Table("OPTIMIZERS", "training/optimizers.py", "optim.name"),
)


@dataclass(frozen=True)
class Plugin:
    """A loaded plugin.

    Attributes:
        path: its file.
        sha256: of the file.
        tables: its parts, by table and name.
    """

    path: Path
    sha256: str
    tables: Mapping[str, Mapping[str, Any]]

    def names(self, key: str) -> list[str]:
        return [name for table in TABLES if table.key == key for name in self.tables.get(table.name, {})]


PLUGINS: list[Plugin] = []
"""The plugins of this process, which `gpt.plugins.load_plugins` adds."""


def with_plugins(table: str, shipped: Mapping[str, T]) -> dict[str, T]:
    """Return a table of the package with the parts that plugins add to it."""
    return {**shipped, **{name: part for plugin in PLUGINS for name, part in plugin.tables.get(table, {}).items()}}


def names_of(key: str) -> list[str]:
    """Return the names that a key of the configuration takes, the package's first."""
    own = [name for table in TABLES if table.key == key for name in shipped_names(table)]
    return own + [name for plugin in PLUGINS for name in plugin.names(key)]


def names_in(table: Table) -> list[str]:
    """Return the names in one table, the package's first."""
    return [*shipped_names(table), *(name for plugin in PLUGINS for name in plugin.tables.get(table.name, {}))]


@cache
def shipped_names(table: Table) -> tuple[str, ...]:
    """Return the names of the package's parts in a table, read from its source."""
    source = (Path(__file__).parent / table.file).read_text(encoding="utf-8")
    return next(_keys_of_dicts(ast.parse(source), table.name))


def _keys_of_dicts(tree: ast.Module, name: str) -> Iterator[tuple[str, ...]]:
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if any(isinstance(target, ast.Name) and target.id == name for target in targets) and isinstance(
            value, ast.Dict
        ):
            yield tuple(key.value for key in value.keys if isinstance(key, ast.Constant) and isinstance(key.value, str))
