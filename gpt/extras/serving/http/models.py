"""The models of a server: found in the runs folder, loaded when first asked for or changed, a few at a time."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path

from gpt.checkpoint import Loaded, find_checkpoint, read_description
from gpt.extras.serving.engine_thread import EngineThread
from gpt.extras.serving.http.folders import Folders, HangingError
from gpt.extras.serving.http.protocol import APIError
from gpt.system.errors import CheckpointError, GPTError, quoted

MAX_LOADED = 4
"""Models that stay loaded; beyond it those that no request uses are unloaded, the least recently used first."""

LOAD_SECONDS = 300.0
"""What the loading of a model is waited for, which may compile kernels."""


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
    engine: EngineThread
    origin: tuple[Path, int]
    users: int = 0
    used: float = field(default_factory=time.monotonic)
    example: str | None = None


class Models:
    """The available models, by name.

    Attributes:
        first: name of the default model.
        folders: looks into the folders below `runs`.

    Args:
        runs: folder of run folders, each a model by its name.
        checkpoints: are served in place of those below `runs`, if there are any: run folders, checkpoint folders, or
            `best` or `last` inside a run.
    """

    def __init__(
        self,
        load: Callable[[Path], Loaded],
        make_engine: Callable[[Loaded], EngineThread],
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
        self.folders = Folders()
        self.loaded: dict[str, Served] = {}
        self._loads: dict[str, asyncio.Task[Served]] = {}
        self.first = next(iter(self._chosen), None) or _name(find_checkpoint(None, runs).parents[1])

    async def descriptions(self) -> dict[str, dict[str, int]]:
        """Return `describe` of each available model, the first model first."""
        names = sorted(await self._names(), key=lambda name: name != self.first)
        return await self.folders.look_into_each(names, self._describe)

    async def describe(self, name: str) -> dict[str, int]:
        """Return when a model was written, in seconds since 1970, and its `sizes`; raise APIError if there is none."""
        await self.check(name)
        return await self.folders.look(name, self._describe, name)

    def _describe(self, name: str) -> dict[str, int]:
        return {"created": self._find(name)[1] // 10**9, **self.sizes(name)}

    async def _names(self) -> list[str]:
        """Return the names that a model can have, sorted."""
        return list(self._chosen) or await self.folders.look("", _names_in, self.runs)

    def sizes(self, name: str) -> dict[str, int]:
        """Return a model's window, `max_model_len` as vLLM calls it, and vocabulary; nothing if it cannot be read."""
        try:
            return _sizes(*self._find(name))
        except (CheckpointError, OSError):
            return {}

    async def check(self, name: str) -> None:
        """Raise APIError if there is no model of this name: a path is no name."""
        is_there = name in await self._names()
        if is_there:
            try:
                await self.folders.look(name, self._find, name)
            except (CheckpointError, OSError):  # a run without a checkpoint yet
                is_there = False
        if not is_there:
            message = f"there is no model {quoted(name, 100)!r}; /v1/models lists them"
            raise APIError(404, message, "model", "model_not_found")

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
        while True:
            if (served := await self._current(name)) is not None:
                return served
            if name not in self._loads:
                await self.check(name)
            load = self._loads.get(name) or self._start_to_load(name)
            await asyncio.wait([load], timeout=2 * LOAD_SECONDS)  # it may wait for those before it
            if not load.done():
                raise HangingError(name)
            served = load.result()
            if served in self.loaded.values():  # else it had to give way at once
                return served

    def _start_to_load(self, name: str) -> "asyncio.Task[Served]":
        load = asyncio.create_task(self._load_after(name, list(self._loads.values())))
        self._loads[name] = load
        load.add_done_callback(partial(self._forget_load, name))
        return load

    def _forget_load(self, name: str, load: "asyncio.Task[Served]") -> None:
        del self._loads[name]
        if not load.cancelled():
            load.exception()  # which nobody may wait for any more

    async def _load_after(self, name: str, earlier: "list[asyncio.Task[Served]]") -> Served:
        """Load a model after those that are being loaded: together they might not fit; but none waits for ever."""
        if earlier:
            await asyncio.wait(earlier, timeout=LOAD_SECONDS)
        await self._make_room()
        try:
            served = await asyncio.to_thread(self._read, name)
        except GPTError as error:
            message = f"the model {quoted(name, 100)!r} cannot be loaded: {error}"
            raise APIError(500, message, "model") from None
        old, self.loaded[name] = self.loaded.get(name), served
        if old is not None:
            await self._close_unused(old)
        return served

    async def _close_unused(self, served: Served) -> None:
        """Close the engine of a model that nobody uses any more and whose name another model has by now."""
        if served.users == 0 and served not in self.loaded.values():
            await asyncio.to_thread(served.engine.close)

    async def _current(self, name: str) -> Served | None:
        """Return a loaded model, unless it has failed or its checkpoint has changed; one is kept if gone."""
        if name not in self.loaded:
            return None
        try:
            found = await self.folders.look(name, self._find, name)
        except (CheckpointError, OSError, HangingError):
            found = None
        served = self.loaded.get(name)  # another one, or none, if that took long
        if served is None or served.engine.failure is not None:
            return None
        return served if found in (None, served.origin) else None

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


@lru_cache(1024)
def _sizes(folder: Path, written: int) -> dict[str, int]:
    try:
        config, tokenizer = read_description(folder)
    except GPTError:  # kept as a result, so that a list of models does not read what is damaged each time
        return {}
    return {"max_model_len": config.model.block_size, "vocab_size": tokenizer.vocab_size}


def _names_in(runs: Path) -> list[str]:
    return sorted(path.name for path in runs.glob("*") if path.name.isprintable())


def _name(path: Path) -> str:
    """Return what a checkpoint is called: its run, and which one of it where that was said."""
    path = path.absolute()
    if path.parent.name == "checkpoints":
        return f"{path.parents[1].name}/{path.name}"
    return f"{path.parent.name}/{path.name}" if path.name in ("best", "last") else path.name
