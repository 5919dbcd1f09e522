"""Find configuration files and the recipes of the package, and name runs after files."""

import hashlib
import json
import os
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpt.config.loading import parse_config, read_yaml
from gpt.config.names import is_name_character
from gpt.config.sections import Config
from gpt.config.suggestions import nearest
from gpt.system.errors import ConfigError
from gpt.system.files import text_for_path

_INSTALLED = Path(__file__).parents[1] / "recipes"
RECIPES = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).parents[2] / "configs"
"""The folder of the recipes: inside the package in a wheel, and beside the package in a clone."""
MAX_NAME_BYTES = 200
"""Length in bytes of the longest name that is made from a text.

The name of a file may have 255 bytes on common filesystems. The rest is left for what is added to
a run's name, such as the number of a second run.
"""
_HASH_DIGITS = 8
"""Digits of the hash at the end of a name that was too long."""
_NOT_READ = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""Characters that YAML refuses, drops or takes for the end of a line, unless they are escaped."""
PLACE_KEYS = {"run.name", "run.dir"}
"""The keys that say which folder a run has."""
_ENDING = re.compile(r"\.[A-Za-z]\w{0,7}$")
"""The ending of a file's name, such as .txt; `notes 3.5` has no ending."""


@dataclass(frozen=True)
class LoadedConfig:
    """A configuration, and what its file says about the name and the folder of the run.

    Attributes:
        default_name: the run's name if the configuration has none.
        file: the file that was read; None if the configuration comes from no file.
        has_other_place: whether `run.name` or `run.dir` was overridden, so that the run may have
            another folder than the file says.
    """

    config: Config
    default_name: str
    file: Path | None = None
    has_other_place: bool = False

    @property
    def name(self) -> str:
        """Return the run's name: `run.name`, or else the default name."""
        return self.config.run.name or self.default_name

    @property
    def named_config(self) -> Config:
        """Return the configuration with the run's name filled in."""
        run = self.config.run.model_copy(update={"name": self.name})
        return self.config.model_copy(update={"run": run})

    @property
    def run_file(self) -> Path | None:
        """Return the file if it may be the config.yaml that a run has in its own folder.

        Return None if the name or the folder of the run was overridden: then another run is meant.
        """
        is_config_yaml = self.file is not None and self.file.name == "config.yaml"
        return self.file if is_config_yaml and not self.has_other_place else None


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Read a configuration file, or a recipe by its name, and apply `section.key=value` overrides.

    Raises:
        ConfigError: the file is missing or unreadable, or anything in it or the overrides is wrong;
            the message holds one line per problem.
    """
    file = find_config(path)
    overridden_keys = {override.partition("=")[0].strip() for override in overrides}
    config = parse_config(read_yaml(file), str(file), overrides)
    has_other_place = not overridden_keys.isdisjoint(PLACE_KEYS)
    return LoadedConfig(config, to_name(file.stem), file, has_other_place)


def recipe_names() -> list[str]:
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def find_config(source: str | Path) -> Path:
    """Return the configuration file that a path or the name of a recipe means.

    A file that exists is preferred to a recipe of the same name. A missing path with a folder or an
    ending is returned as it is; `read_yaml` reports it.

    Raises:
        ConfigError: the source is a name without a file or a recipe, a missing file with the name
            of a recipe, or a text in place of a path.
    """
    text_message = text_for_path(source)
    if text_message is not None:
        raise ConfigError(
            f"{text_message}; give a YAML file, a recipe's name, or in Python a dict of sections"
        )
    path = Path(source)
    recipes = recipe_names()
    if path.is_file():
        return path
    # A recipe is given by its name alone, without a folder or an ending.
    may_be_recipe = path.name == str(source) and not path.suffix
    if not may_be_recipe:
        if not path.exists() and path.stem in recipes:
            raise ConfigError(
                f"{path}: no such configuration file; did you mean the recipe {path.stem}?"
            )
        return path
    if path.name not in recipes:
        hint = _file_meant(path) or nearest(path.name, recipes)
        if not hint:
            hint = f"; expected a file or one of {', '.join(recipes)}"
        raise ConfigError(f"{path.name!r} is neither a file nor a recipe{hint}")
    return RECIPES / f"{path}.yaml"


def _file_meant(path: Path) -> str:
    """Return `; did you mean ...?` with the YAML file whose ending was left out, or else ""."""
    for file in (f"{path}.yaml", f"{path}.yml"):
        if Path(file).is_file():
            return f"; did you mean {file}?"
    return ""


def to_name(text: str) -> str:
    """Return a run's name that resembles a text; a long name is cut, and ends with a hash."""
    return _cleaned(text) or "run"


def name_of_text(path: str | Path) -> str:
    """Return a name for a run that trains on a text, from the path of the text.

    The name is that of the file without its ending, or that of the folder. A pattern such as
    `*.txt` has no name, and gives that of its folder. If no part of the path has a letter, digit or
    emoji, the name is `run`.
    """
    # `Path.absolute` would keep the .. in a path.
    absolute = os.path.abspath(path)  # noqa: PTH100
    *folders, name = Path(absolute).parts
    # Path.is_dir would raise an error for a pattern that is longer than a file name.
    if not os.path.isdir(absolute):  # noqa: PTH112
        name = _ENDING.sub("", name) or name  # a file may be called just .txt
    # The nearest part of the path that gives a name is taken.
    for part in (name, *reversed(folders)):
        cleaned = _cleaned(part)
        if cleaned:
            return cleaned
    return "run"


def _cleaned(text: str) -> str:
    """Return the name of a run most like a text; "" if it has no letter, digit or emoji.

    Characters that a name cannot have become hyphens.
    """
    text = unicodedata.normalize("NFC", text)
    hyphenated = "".join(char if is_name_character(char) else "-" for char in text)
    name = re.sub("-+", "-", hyphenated).strip("-._")
    # `strip` may have left a combining mark at the beginning, which no name can have there.
    while name and not is_name_character(name[0], first=True):
        name = name[1:]
    encoded = name.encode()
    if len(encoded) <= MAX_NAME_BYTES:
        return name
    # The hash keeps two long names with the same beginning apart.
    ending = "-" + hashlib.sha256(encoded).hexdigest()[:_HASH_DIGITS]
    beginning = encoded[: MAX_NAME_BYTES - len(ending)]
    # A character of several bytes may be cut in two: `ignore` leaves out its first half.
    return beginning.decode(errors="ignore") + ending


def override(key: str, value: Any) -> str:
    """Return the override `key=value` with the value as JSON, from which YAML reads that value."""
    readable = json.dumps(value, ensure_ascii=False)
    return f"{key}={_NOT_READ.sub(_escape, readable)}"


def _escape(found: re.Match[str]) -> str:
    """Return a character of a JSON string as an escape, such as `\\u2028`."""
    return json.dumps(found[0])[1:-1]  # without the quotes around the string
