"""The recipes that ship with the package, found by name from any folder."""

from pathlib import Path

from gpt.config.suggestions import nearest
from gpt.system.errors import ConfigError

_INSTALLED = Path(__file__).parents[1] / "recipes"
RECIPES = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).parents[2] / "configs"
"""A wheel has them inside the package, a clone beside it."""


def recipe_names() -> list[str]:
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def find_recipe(name: str) -> Path:
    """Return the file of a recipe, such as `shakespeare`.

    Raises:
        ConfigError: there is no such recipe; the message names the nearest one.
    """
    known = recipe_names()
    if name not in known:
        file = next((file for file in (f"{name}.yaml", f"{name}.yml") if Path(file).is_file()), None)
        near = f"; did you mean {file}?" if file else nearest(name, known)
        meant = near or f"; expected a file or one of {', '.join(known)}"
        raise ConfigError(f"{name!r} is neither a file nor a recipe{meant}")
    return RECIPES / f"{name}.yaml"


def find_config(source: str | Path) -> Path:
    """Return the configuration file that a path or the name of a recipe means; what is there, is the file.

    Raises:
        ConfigError: see `find_recipe`; or there is no such file, but a recipe of its name.
    """
    path = Path(source)
    if path.is_file():
        return path
    if not path.suffix and path.name == str(source):
        return find_recipe(path.name)
    if not path.exists() and path.stem in recipe_names():
        raise ConfigError(f"{path}: no such configuration file; did you mean the recipe, {path.stem}?")
    return path
