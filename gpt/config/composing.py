"""Compose a configuration in Python: a file, a recipe, a `Config` or a dict, and keywords that replace its values."""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from gpt.config.loading import LoadedConfig, at_line, checked, line_of, parse_document, read_yaml, to_name, validated
from gpt.config.recipes import find_config
from gpt.config.sections import Config, Section
from gpt.config.strict_yaml import Document
from gpt.config.suggestions import did_you_mean, section_class
from gpt.system.errors import ConfigError

Source = str | Path | Config | Mapping[str, Any]
"""A YAML file, the name of a recipe, a configuration, or its sections as dicts."""
MEANT = {"name": "run"}
"""Sections of the keys that several sections have, where one of them is what everybody means."""


def compose_config(source: Source | None = None, keywords: Mapping[str, Any] | None = None) -> LoadedConfig:
    """Return a configuration.

    Args:
        source: see `Source`; None: every value is the default.
        keywords: a section by its name, as a dict of the values to replace; or a value by a key that one section has.

    Raises:
        ConfigError: anything is wrong; the message holds one line per problem.
    """
    origin, document, problems = _read(source)
    data: dict[str, Any] = {
        name: dict(section or {}) if isinstance(section, Mapping | None) else section
        for name, section in document.data.items()
    }
    given = _place(keywords or {}, problems)
    for (section, key), value in given.items():
        target = data.setdefault(section, {})
        if isinstance(target, dict):
            target[key] = value

    def place(key: tuple[str, ...]) -> str:
        return "keyword" if key[:2] in given else at_line(origin, line_of(key, document))

    config = checked(data, origin, problems, place)
    path = Path(origin) if isinstance(source, str | Path) else None
    return LoadedConfig(config, "run" if path is None else to_name(path.stem), None if path is None else path.parent)


def check_section(name: str, values: Mapping[str, Any]) -> tuple[Section | None, list[str]]:
    """Return a section with these values, or a line for each thing that is wrong with them."""
    config, found = validated({name: plain(values)})
    return None if config is None else getattr(config, name), [f"{key[-1]}: {message}" for key, message in found]


def _read(source: Source | None) -> tuple[str, Document, list[str]]:
    """Return what messages call the source, its values, and a line for each key that is given twice."""
    if isinstance(source, str | Path):
        path = find_config(source)
        return str(path), *parse_document(read_yaml(path, "configuration", "my.yaml"), str(path))
    if source is not None and not isinstance(source, Mapping | Config):
        raise ConfigError(f"config is a {type(source).__name__}, expected a file, a recipe's name, a Config or a dict")
    values = {} if source is None else plain(source)
    return "config", Document(values, {}, []), []


def _place(keywords: Mapping[str, Any], problems: list[str]) -> dict[tuple[str, str], Any]:
    """Return the values by section and key; what has no place becomes a problem."""
    sections = {name: list(section_class(name).model_fields) for name in Config.model_fields}
    owners = defaultdict(list)
    for section, keys in sections.items():
        for key in keys:
            owners[key].append(section)
    given: dict[tuple[str, str], Any] = {}
    for name, value in keywords.items():
        value, found = plain(value), owners.get(name, [])
        owner = MEANT.get(name, found[0] if len(found) == 1 else None)
        if name in sections and isinstance(value, dict):
            places = {(name, str(key)): each for key, each in value.items()}
        elif name in sections:
            problems.append(f"keyword: {name}: got {value!r}, expected a dict of its keys, such as {name}=dict(...)")
            continue
        elif owner is not None:
            places = {(owner, name): value}
        elif found:
            ways = " or ".join(f"{section}=dict({name}={value!r})" for section in found)
            problems.append(f"keyword: {name}: is a key of several sections; write {ways}")
            continue
        else:
            problems.append(f"keyword: {name}: unknown{did_you_mean((name,))}")
            continue
        for twice in places.keys() & given.keys():
            problems.append(f"keyword: {'.'.join(twice)}: is given twice; leave one of them out")
        given |= places
    return given


def plain(value: Any) -> Any:
    """Return what YAML would give: sections as dicts, paths as text, scalars of NumPy and torch as Python's."""
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_unset=True)
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, Path):
        return str(value)
    return value.item() if getattr(value, "ndim", None) == 0 else value
