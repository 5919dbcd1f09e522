"""The models of a server: found in the runs folder, loaded when first asked for or changed, a few at a time."""

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpt.checkpoint import Loaded, find_checkpoint, read_description
from gpt.extras.serving.engine import ServingEngine
from gpt.extras.serving.http.protocol import APIError
from gpt.system.errors import CheckpointError, GPTError

MAX_LOADED = 4
"""Models that stay loaded; beyond it those that no request uses are unloaded, the least recently used first."""


@dataclass(eq=False)
class Served:
    """A loaded model.

    Attributes:
        origin: its checkpoint folder, and when that was written.
        users: number of requests that use it now.
        used: when the last one began, by the monotonic clock.
        example: a line or so that it has written; None: not asked for yet.
    """

    loaded: Loaded
    engine: ServingEngine
    origin: tuple[Path, int]
    users: int = 0
    used: float = field(default_factory=time.monotonic)
    example: str | None = None


class Models:
    """The available models, by name.

    Attributes:
        first: name of the default model.

    Args:
        runs: folder of run folders, each a model by its name.
        checkpoints: are served in place of those below `runs`, if there are any: run folders, checkpoint folders, or
            `best` or `last` inside a run.
    """

    def __init__(
        self,
        load: Callable[[Path], Loaded],
        make_engine: Callable[[Loaded], ServingEngine],
        runs: Path,
        checkpoints: Sequence[Path] = (),
    ) -> None:
        self._load, self._make_engine = load, make_engine
        self.runs = runs
        self._chosen = {_name(path): path for path in checkpoints}
        if len(self._chosen) < len(checkpoints):
            raise CheckpointError("two checkpoints have the same name; serve them from two servers")
        for path in checkpoints:
            find_checkpoint(path, runs)  # one that is missing is found out now
        self.loaded: dict[str, Served] = {}
        self._loading = asyncio.Lock()
        self.first = next(iter(self._chosen), None) or _name(find_checkpoint(None, runs).parents[1])

    def names(self) -> dict[str, int]:
        """Return when each available model was written, in seconds since 1970, the first model first."""
        found = (path for path in sorted(self.runs.glob("*")) if path.name.isprintable() and path.is_dir())
        paths = self._chosen or {path.name: path for path in found}
        names = {}
        for name in sorted(paths, key=lambda name: name != self.first):
            with contextlib.suppress(CheckpointError, OSError):  # a run without a checkpoint yet
                names[name] = self._find(name)[1] // 10**9
        return names

    def sizes(self, name: str) -> dict[str, int]:
        """Return a model's window, `max_model_len` as vLLM calls it, and vocabulary; nothing if it cannot be read."""
        try:
            return _sizes(*self._find(name))
        except (CheckpointError, OSError):
            return {}

    def check(self, name: str) -> int:
        """Return when a model was written; raise APIError if there is none of this name: a path is no name."""
        created = self.names().get(name)
        if created is None:
            raise APIError(404, f"there is no model {name!r}; /v1/models lists them", "model", "model_not_found")
        return created

    @contextlib.asynccontextmanager
    async def use(self, name: str | None) -> AsyncIterator[Served]:
        """Keep a model loaded as long as this context lasts; None is the first one.

        Raises:
            APIError: there is no such model, or it cannot be read.
        """
        served = await self._get(self.first if name is None else name)
        served.users += 1
        served.used = time.monotonic()
        try:
            yield served
        finally:
            served.users -= 1
            await self._close_unused(served)

    async def _get(self, name: str) -> Served:
        """Return a model that is there at once, without waiting for another that is being loaded."""
        if (served := self._current(name)) is not None:
            return served
        async with self._loading:
            if (served := self._current(name)) is not None:
                return served
            await asyncio.to_thread(self.check, name)
            await self._make_room()
            try:
                served = await asyncio.to_thread(self._read, name)
            except GPTError as error:
                raise APIError(500, f"the model {name!r} cannot be loaded: {error}", "model") from None
            old, self.loaded[name] = self.loaded.get(name), served
            if old is not None:
                await self._close_unused(old)
            return served

    async def _close_unused(self, served: Served) -> None:
        """Close the engine of a model that nobody uses any more and whose name another model has by now."""
        if served.users == 0 and served not in self.loaded.values():
            await asyncio.to_thread(served.engine.close)

    def _current(self, name: str) -> Served | None:
        """Return a loaded model, unless it has failed or its checkpoint has changed; one is kept if gone."""
        served = self.loaded.get(name)
        if served is None or served.engine.failure is not None:
            return None
        try:
            return served if self._find(name) == served.origin else None
        except (CheckpointError, OSError):
            return served

    def _find(self, name: str) -> tuple[Path, int]:
        """Return a model's checkpoint folder, and when it was written, in nanoseconds since 1970."""
        folder = find_checkpoint(self._chosen.get(name, self.runs / name), self.runs)
        return folder, folder.stat().st_mtime_ns

    def _read(self, name: str) -> Served:
        origin = self._find(name)
        loaded = self._load(origin[0])
        return Served(loaded, self._make_engine(loaded), origin)

    async def _make_room(self) -> None:
        idle = [name for name, served in self.loaded.items() if served.users == 0]
        if len(self.loaded) >= MAX_LOADED and idle:
            await self._unload(min(idle, key=lambda name: self.loaded[name].used))

    async def _unload(self, name: str) -> None:
        await asyncio.to_thread(self.loaded.pop(name).engine.close)

    async def close(self) -> None:
        """Unload all models, and cancel their requests."""
        for name in list(self.loaded):
            await self._unload(name)


@functools.lru_cache(1024)
def _sizes(folder: Path, written: int) -> dict[str, int]:
    try:
        config, tokenizer = read_description(folder)
    except GPTError:  # kept as a result, so that a list of models does not read what is damaged each time
        return {}
    return {"max_model_len": config.model.block_size, "vocab_size": tokenizer.vocab_size}


def _name(path: Path) -> str:
    """Return what a checkpoint is called: its run, and which one of it where that was said."""
    path = path.absolute()
    if path.parent.name == "checkpoints":
        return f"{path.parents[1].name}/{path.name}"
    return f"{path.parent.name}/{path.name}" if path.name in ("best", "last") else path.name
