"""Compose a configuration in Python: a file, a recipe, a `Config` or a dict, and keywords.

Keywords replace values of the others.
"""

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
DEFAULT_SECTION = {"name": "run", "seed": "run"}
"""The section of a key that several sections have, where everybody means the one of the run."""


def compose_config(
    source: Source | None = None, keywords: Mapping[str, Any] | None = None
) -> LoadedConfig:
    """Return a configuration.

    Args:
        source: see `Source`; None: every value is the default.
        keywords: a section by its name, as a dict of the values to replace; or a value by a key
            that one section has.

    Raises:
        ConfigError: anything is wrong; the message holds one line per problem.
    """
    given, problems = _read_keywords(keywords or {})
    if isinstance(source, str | Path):
        path = find_config(source)
        document, problems_of_file = parse_document(read_yaml(path), str(path))
        problems = [*problems_of_file, *problems]
        config = compose(document, str(path), given, "keyword", problems)
        keys = {".".join(key) for key in given}
        return LoadedConfig(config, to_name(path.stem), path, is_placed=bool(keys & PLACE_KEYS))
    if source is not None and not isinstance(source, Mapping | Config):
        raise ConfigError(
            f"config is a {type(source).__name__}, expected a file, a recipe's name, a Config or a "
            "dict"
        )
    sections = {} if source is None else _plain(source)
    config = compose(Document(sections), "config", given, "keyword", problems)
    return LoadedConfig(config, "run")


def _read_keywords(keywords: Mapping[str, Any]) -> tuple[dict[Key, Any], list[str]]:
    """Return the values of keywords by section and key, and what is wrong with the others."""
    given: dict[Key, Any] = {}
    problems: list[str] = []
    for name, raw_value in keywords.items():
        value = _plain(raw_value)
        values: dict[Key, Any] = {}
        if name in SECTIONS and isinstance(value, dict):
            values = {(name, str(key)): each for key, each in value.items()}
        elif name in SECTIONS:
            problems.append(
                f"keyword: {name}: got {value!r}, expected a dict of its keys, "
                f"such as {name}=dict(...)"
            )
        else:
            section = _section_of(name)
            if section is None:
                problems.append(_without_section(name, value))
            else:
                values = {(section, name): value}
        for twice in values.keys() & given.keys():
            key = ".".join(twice)
            problems.append(f"keyword: {key}: is given twice; leave one of them out")
        given |= values
    return given, problems


def _sections_with(name: str) -> list[str]:
    return [section for section, kind in SECTIONS.items() if name in kind.model_fields]


def _section_of(name: str) -> str | None:
    """Return the section that a key alone means; None if no section has it, or several have."""
    sections = _sections_with(name)
    if name in DEFAULT_SECTION:
        return DEFAULT_SECTION[name]
    return sections[0] if len(sections) == 1 else None


def _without_section(name: str, value: Any) -> str:
    """Return what is wrong with a key whose section is not clear."""
    sections = _sections_with(name)
    if not sections:
        return f"keyword: {name}: unknown{did_you_mean((name,))}"
    ways = " or ".join(f"{section}=dict({name}={value!r})" for section in sections)
    return f"keyword: {name}: is a key of several sections; write {ways}"


def _plain(value: Any) -> Any:
    """Return what YAML would give: sections as dicts, paths as text, numbers as Python's.

    NumPy and torch have scalars of their own, which have no dimensions.
    """
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_unset=True)
    if isinstance(value, Mapping):
        return {_plain(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Path):
        return str(value)
    return value.item() if getattr(value, "ndim", None) == 0 else value
