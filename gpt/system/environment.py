"""The environment variables this package reads, all in one place."""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gpt.system.errors import ConfigError

DEVICE_PATTERN = r"^(auto|cpu|cuda(:\d{1,2})?|mps)$"
"""Names of devices."""
GPU_NAMES = ("gpu", "nvidia", "cuda")
"""How names of CUDA devices begin in other programs; users try them here."""
_TRUE = {"1", "true", "yes", "on"}


@dataclass(frozen=True)
class Settings:
    """The values of the environment variables; None: unset or empty."""

    data_dir: Path | None  # folder with corpora, from `GPT_DATA_DIR`
    cache_dir: Path  # for files that can be rebuilt, such as compiled kernels, see `_cache_folder`
    offline: bool  # never use the network, from `GPT_OFFLINE` (1, true, yes, on)
    processor: str | None = None  # from `GPT_PROCESSOR`, see `gpt.system.processor`; None: the best
    api_key: str | None = None  # the key that a server requires of clients, from `GPT_API_KEY`


@dataclass(frozen=True)
class Launch:
    """The place of this process among those that torchrun started for one training."""

    rank: int = 0  # number of this process
    size: int = 1  # processes on all machines
    local_rank: int = 0  # number of this process on its machine
    local_size: int = 1  # processes on its machine
    address: str = ""  # where the processes meet
    restarts: int = 0  # how often torchrun has started them again


LAUNCH_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def no_device(name: str) -> str:
    """Return what a message says after the name of a device that does not exist."""
    # Whoever writes `cuda:x` knows the name cuda, and only the number is wrong.
    means_cuda = name.lower().startswith(GPU_NAMES) and not name.startswith("cuda:")
    hint = "; did you mean cuda?" if means_cuda else ""
    return f"expected auto, cpu, cuda, cuda:N or mps{hint}"


def read_launch() -> Launch:
    """Read torchrun's variables; without them, or with one process, this process is alone."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return Launch()
    try:
        rank, size, local_rank, local_size = (int(os.environ[name]) for name in LAUNCH_VARIABLES)
        restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        has_valid_ranks = 0 <= rank < size and 0 <= local_rank < local_size <= size
        if not has_valid_ranks or not os.environ["MASTER_ADDR"]:
            raise ValueError("a rank or the address is wrong")
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"WORLD_SIZE is set, but not as torchrun does it ({error}); start with torchrun"
        ) from None
    return Launch(rank, size, local_rank, local_size, address, restarts)


def read_settings(offline: bool = False) -> Settings:
    """Read the environment variables; callers pass the result on and do not read them again.

    Args:
        offline: whether to be offline even if the environment does not say so.
    """
    data_dir = os.environ.get("GPT_DATA_DIR")
    return Settings(
        data_dir=expand_home(data_dir, "GPT_DATA_DIR") if data_dir else None,
        cache_dir=_cache_folder(),
        offline=offline or os.environ.get("GPT_OFFLINE", "").strip().lower() in _TRUE,
        processor=os.environ.get("GPT_PROCESSOR", "").strip() or None,
        api_key=os.environ.get("GPT_API_KEY") or None,
    )


def _cache_folder() -> Path:
    """Return a folder below `XDG_CACHE_HOME`, or else below ~/.cache.

    A user without a home gets a folder among the temporary files.
    """
    named = os.environ.get("XDG_CACHE_HOME")
    if named:
        return expand_home(named, "XDG_CACHE_HOME") / "gpt"
    try:
        return Path("~/.cache").expanduser() / "gpt"
    except RuntimeError:
        # In a container, a user may be only a number, without a name and a home.
        return Path(tempfile.gettempdir()) / f"gpt-{os.getuid()}"


def child_environment() -> dict[str, str]:
    """Return an environment in which a child process imports this copy of the package."""
    folders = [str(Path(__file__).parents[2])]
    inherited = os.environ.get("PYTHONPATH")
    if inherited:
        folders.append(inherited)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}


def expand_home(path: str, name: str) -> Path:
    """Return a path with its `~` or `~user` replaced; `name` is the setting, for the message."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(f"{name}: {path} has no home folder; write the whole path") from None
