"""Compose a configuration in Python: a file, a recipe, a `Config` or a dict, and keywords.

Keywords replace the values of the file, the recipe, the `Config` or the dict.
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
"""The section that is meant by a key alone, for keys that other sections have too."""


def compose_config(
    source: Source | None = None, keywords: Mapping[str, Any] | None = None
) -> LoadedConfig:
    """Compose a configuration from a source and the keywords that replace some of its values.

    Args:
        source: where the values come from, see `Source`; None means that each has its default.
        keywords: sections, each with a dict of its new values, and keys that only one section has,
            each with its new value.

    Raises:
        ConfigError: anything is wrong; the message holds one line per problem.
    """
    replacements, problems = _read_keywords(keywords or {})
    if isinstance(source, str | Path):
        path = find_config(source)
        document, problems_of_file = parse_document(read_yaml(path), str(path))
        problems = [*problems_of_file, *problems]
        config = compose(document, str(path), replacements, "keyword", problems)
        # The config.yaml in the folder of a run stands for that run, unless a keyword gives the run
        # another name or folder.
        replaced_keys = {".".join(key) for key in replacements}
        has_other_place = not replaced_keys.isdisjoint(PLACE_KEYS)
        return LoadedConfig(config, to_name(path.stem), path, has_other_place)
    if source is not None and not isinstance(source, Mapping | Config):
        raise ConfigError(
            f"config is a {type(source).__name__}, expected a file, a recipe's name, a Config or a "
            "dict"
        )
    sections = {} if source is None else _to_plain(source)
    # The lines of a `Document`, which messages give, stay empty: these sections come from no file.
    config = compose(Document(sections), "config", replacements, "keyword", problems)
    return LoadedConfig(config, default_name="run")


def _read_keywords(keywords: Mapping[str, Any]) -> tuple[dict[Key, Any], list[str]]:
    """Return the values of keywords by section and key, and a message for each wrong keyword."""
    replacements: dict[Key, Any] = {}
    problems: list[str] = []
    for name, raw_value in keywords.items():
        value = _to_plain(raw_value)
        # A keyword gives one value, or several if it is the name of a section.
        new_values: dict[Key, Any] = {}
        if name in SECTIONS and isinstance(value, dict):
            for key, value_of_key in value.items():
                new_values[name, str(key)] = value_of_key
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
                new_values[section, name] = value
        # A key may be given alone and, by mistake, in the dict of its section too.
        for key in new_values:
            if key in replacements:
                dotted = ".".join(key)
                problems.append(f"keyword: {dotted}: is given twice; leave one of them out")
        replacements |= new_values
    return replacements, problems


def _sections_with(name: str) -> list[str]:
    return [section for section, model in SECTIONS.items() if name in model.model_fields]


def _section_of(name: str) -> str | None:
    """Return the section that a key alone means; None if no section or several have the key."""
    sections = _sections_with(name)
    if name in DEFAULT_SECTION:
        return DEFAULT_SECTION[name]
    return sections[0] if len(sections) == 1 else None


def _without_section(name: str, value: Any) -> str:
    """Return the message about a key for which `_section_of` finds no section."""
    sections = _sections_with(name)
    if not sections:
        return f"keyword: {name}: unknown{did_you_mean((name,))}"
    keywords = " or ".join(f"{section}=dict({name}={value!r})" for section in sections)
    return f"keyword: {name}: is a key of several sections; write {keywords}"


def _to_plain(value: Any) -> Any:
    """Convert a value to the types that YAML gives: dicts, lists, text and Python's numbers."""
    if isinstance(value, BaseModel):
        # Keys that were not set stay unset, so that `dump_config` can still leave them out.
        return value.model_dump(exclude_unset=True)
    if isinstance(value, Mapping):
        return {_to_plain(key): _to_plain(element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain(element) for element in value]
    if isinstance(value, Path):
        return str(value)
    # Arrays and tensors without dimensions are numbers of NumPy and torch, which `item` converts.
    is_scalar = getattr(value, "ndim", None) == 0
    return value.item() if is_scalar else value
