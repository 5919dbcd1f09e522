"""The configurations that come with this package, by name."""

from pathlib import Path

from gpt.config.suggestions import nearest
from gpt.errors import ConfigError

FOLDER = Path(__file__).parents[2] / "configs"


def shipped_recipe(name: str) -> Path:
    """Return the file of a recipe, such as `shakespeare`.

    Raises:
        ConfigError: there is no such recipe; the message names the nearest one.
    """
    known = sorted(path.stem for path in FOLDER.glob("*.yaml"))
    if name not in known:
        meant = nearest(name, known) or f"; expected a file or one of {', '.join(known)}"
        raise ConfigError(f"{name!r} is neither a file nor a recipe{meant}")
    return FOLDER / f"{name}.yaml"
