"""Configuration files, the recipes that ship with the package, names of runs after files, and
overrides.
"""

import hashlib
import itertools
import json
import os
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpt.config.loading import parse_config, read_yaml
from gpt.config.sections import Config, is_name_character
from gpt.config.suggestions import nearest
from gpt.system.errors import ConfigError
from gpt.system.files import text_for_path

_INSTALLED = Path(__file__).parents[1] / "recipes"
RECIPES = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).parents[2] / "configs"
"""A wheel has them inside the package, a clone beside it."""
NAME_BYTES = 200
"""Most bytes of a name that is made from a text: a file's may have 255 with all that is added to
it.
"""
_NOT_READ = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""Characters that YAML refuses, drops or takes for the end of a line, unless they are escaped."""
PLACE_KEYS = {"run.name", "run.dir"}
"""The keys that say which folder a run has."""
_ENDING = re.compile(r"\.[A-Za-z]\w{0,7}$")


@dataclass(frozen=True)
class LoadedConfig:
    """A configuration, and what its file says about the name and the folder of the run.

    Attributes:
        default_name: the name that the file suggests.
        file: None if the configuration comes from no file.
        is_placed: whether `run.name` or `run.dir` was given in the place of the file's.
    """

    config: Config
    default_name: str
    file: Path | None = None
    is_placed: bool = False

    @property
    def name(self) -> str:
        """Return the run's name: `run.name`, or else that of the configuration file."""
        return self.config.run.name or self.default_name

    @property
    def named_config(self) -> Config:
        """Return the configuration with the run's name filled in."""
        run = self.config.run.model_copy(update={"name": self.name})
        return self.config.model_copy(update={"run": run})

    @property
    def run_file(self) -> Path | None:
        """Return the file if it is named as a run's own configuration, and that may be the run
        which is meant.
        """
        is_own = self.file is not None and self.file.name == "config.yaml" and not self.is_placed
        return self.file if is_own else None


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Read a configuration file, or a recipe by its name, and apply `section.key=value` overrides.

    Raises:
        ConfigError: the file is missing or unreadable, or anything in it or the overrides is wrong;
            the message holds one line per problem.
    """
    path = find_config(path)
    given = {override.partition("=")[0].strip() for override in overrides}
    config = parse_config(read_yaml(path), str(path), overrides)
    return LoadedConfig(
        config, to_name(path.stem), path, is_placed=not given.isdisjoint(PLACE_KEYS)
    )


def recipe_names() -> list[str]:
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def find_config(source: str | Path) -> Path:
    """Return the configuration file that a path or the name of a recipe means; what is there, is
    the file.

    Raises: ConfigError: there is no such recipe, or no such file but a recipe of its name; the
        message names the nearest.
    """
    if text := text_for_path(source):
        raise ConfigError(
            f"{text}; give a YAML file, a recipe's name, or in Python a dict of sections"
        )
    path, known = Path(source), recipe_names()
    if path.is_file():
        return path
    if path.suffix or path.name != str(source):
        if not path.exists() and path.stem in known:
            raise ConfigError(
                f"{path}: no such configuration file; did you mean the recipe, {path.stem}?"
            )
        return path
    if path.name not in known:
        file = next(
            (file for file in (f"{path}.yaml", f"{path}.yml") if Path(file).is_file()), None
        )
        near = f"; did you mean {file}?" if file else nearest(path.name, known)
        meant = near or f"; expected a file or one of {', '.join(known)}"
        raise ConfigError(f"{path.name!r} is neither a file nor a recipe{meant}")
    return RECIPES / f"{path}.yaml"


def to_name(text: str) -> str:
    """Return a name for a run that is like a text, see `is_name_character`; a long one ends with a
    hash.
    """
    return _cleaned(text) or "run"


def name_of_text(path: str | Path) -> str:
    """Return a name that is like that of a text: a file without its ending, a folder, or the folder
    of `*.txt`.
    """
    absolute = os.path.abspath(path)  # noqa: PTH100  # without .., which Path.absolute keeps
    *folders, file = Path(absolute).parts
    name = file if os.path.isdir(absolute) else _ENDING.sub("", file) or file  # noqa: PTH112  # a pattern can be long
    return next(filter(None, map(_cleaned, (name, *reversed(folders)))), "run")


def _cleaned(text: str) -> str:
    """Return the name without a fallback; empty where a text has no letter, digit or emoji."""
    text = unicodedata.normalize("NFC", text)
    name = re.sub(
        "-+", "-", "".join(each if is_name_character(each) else "-" for each in text)
    ).strip("-._")
    name = "".join(itertools.dropwhile(lambda each: not is_name_character(each, first=True), name))
    if len(name.encode()) > NAME_BYTES:
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        name = f"{name.encode()[: NAME_BYTES - 9].decode(errors='ignore')}-{digest}"
    return name


def override(key: str, value: Any) -> str:
    """Return the override of a key by a value as JSON has it; YAML reads its text as it is,
    whatever is in it.
    """
    readable = json.dumps(value, ensure_ascii=False)
    return f"{key}={_NOT_READ.sub(lambda found: json.dumps(found[0])[1:-1], readable)}"
