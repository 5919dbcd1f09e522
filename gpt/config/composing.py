"""Compose a configuration in Python: a file, a recipe, a `Config` or a dict, and keywords that replace its values."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from gpt.config.loading import compose, parse_document, read_yaml
from gpt.config.sections import SECTIONS, Config
from gpt.config.sources import PLACE_KEYS, LoadedConfig, find_config, to_name
from gpt.config.strict_yaml import Document, Key
from gpt.config.suggestions import did_you_mean
from gpt.system.errors import ConfigError

Source = str | Path | Config | Mapping[str, Any]
"""A YAML file, the name of a recipe, a configuration, or its sections as dicts."""
MEANT = {"name": "run", "seed": "run"}
"""Sections of the keys that several sections have, where one of them is what everybody means."""


def compose_config(source: Source | None = None, keywords: Mapping[str, Any] | None = None) -> LoadedConfig:
    """Return a configuration.

    Args:
        source: see `Source`; None: every value is the default.
        keywords: a section by its name, as a dict of the values to replace; or a value by a key that one section has.

    Raises:
        ConfigError: anything is wrong; the message holds one line per problem.
    """
    if isinstance(source, str | Path):
        path = find_config(source)
        document, problems = parse_document(read_yaml(path), str(path))
        given = _place(keywords or {}, problems)
        config = compose(document, str(path), given, "keyword", problems)
        is_placed = not PLACE_KEYS.isdisjoint(map(".".join, given))
        return LoadedConfig(config, to_name(path.stem), path, is_placed)
    if source is not None and not isinstance(source, Mapping | Config):
        raise ConfigError(f"config is a {type(source).__name__}, expected a file, a recipe's name, a Config or a dict")
    document, problems = Document({} if source is None else _plain(source)), []
    return LoadedConfig(compose(document, "config", _place(keywords or {}, problems), "keyword", problems), "run")


def _place(keywords: Mapping[str, Any], problems: list[str]) -> dict[Key, Any]:
    """Return the values by section and key; what has no place becomes a problem."""
    given: dict[Key, Any] = {}
    for name, value in keywords.items():
        value, found = _plain(value), [section for section, kind in SECTIONS.items() if name in kind.model_fields]
        owner = MEANT.get(name, found[0] if len(found) == 1 else None)
        places: dict[Key, Any] = {}
        if name in SECTIONS and isinstance(value, dict):
            places = {(name, str(key)): each for key, each in value.items()}
        elif name in SECTIONS:
            problems.append(f"keyword: {name}: got {value!r}, expected a dict of its keys, such as {name}=dict(...)")
        elif owner is not None:
            places = {(owner, name): value}
        elif found:
            ways = " or ".join(f"{section}=dict({name}={value!r})" for section in found)
            problems.append(f"keyword: {name}: is a key of several sections; write {ways}")
        else:
            problems.append(f"keyword: {name}: unknown{did_you_mean((name,))}")
        for twice in places.keys() & given.keys():
            problems.append(f"keyword: {'.'.join(twice)}: is given twice; leave one of them out")
        given |= places
    return given


def _plain(value: Any) -> Any:
    """Return what YAML would give: sections as dicts, paths as text, scalars of NumPy and torch as Python's."""
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_unset=True)
    if isinstance(value, Mapping):
        return {_plain(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Path):
        return str(value)
    return value.item() if getattr(value, "ndim", None) == 0 else value
