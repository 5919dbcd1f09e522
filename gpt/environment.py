"""The environment variables this package reads, all in one place."""

import os
from dataclasses import dataclass
from pathlib import Path

from gpt.errors import ConfigError

_TRUE = {"1", "true", "yes", "on"}


@dataclass(frozen=True)
class Settings:
    """The values of the environment variables.

    Attributes:
        data_dir: folder with corpora, from `GPT_DATA_DIR`; None when unset or empty.
        cache_dir: folder for files that can be rebuilt, such as compiled kernels; from `XDG_CACHE_HOME`, else ~/.cache.
        offline: never use the network, from `GPT_OFFLINE` (1, true, yes, on).
        processor: class of processors to compute for, from `GPT_PROCESSOR`; None: this machine's best.
        api_key: key that a server requires of its clients, from `GPT_API_KEY`; None when unset or empty.
    """

    data_dir: Path | None
    cache_dir: Path
    offline: bool
    processor: str | None = None
    api_key: str | None = None


def read_settings(offline: bool = False) -> Settings:
    """Read the environment, once; callers pass the result on. `offline=True` overrides the environment.

    Raises:
        ConfigError: a folder begins with `~` or `~user`, and there is no such home folder.
    """
    data_dir = os.environ.get("GPT_DATA_DIR")
    return Settings(
        data_dir=expand_home(data_dir, "GPT_DATA_DIR") if data_dir else None,
        cache_dir=expand_home(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "XDG_CACHE_HOME") / "gpt",
        offline=offline or os.environ.get("GPT_OFFLINE", "").strip().lower() in _TRUE,
        processor=os.environ.get("GPT_PROCESSOR", "").strip() or None,
        api_key=os.environ.get("GPT_API_KEY") or None,
    )


def child_environment() -> dict[str, str]:
    """Return this process's environment, with a search path on which a child process finds this copy of the package."""
    path = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def expand_home(path: str, name: str) -> Path:
    """Return a path with its `~` or `~user` replaced.

    Raises:
        ConfigError: there is no such home folder; the message names the setting `name`.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(f"{name}: {path} has no home folder; write the whole path") from None
