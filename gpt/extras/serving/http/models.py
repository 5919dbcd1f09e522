"""The models of a server: found in the runs folder, loaded when they are first asked for or were
changed.
"""

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
"""Models that stay loaded. To load one more, the least recently used model that no request uses is
unloaded.
"""

LOAD_SECONDS = 300.0
"""How long the loading of a model is waited for. It may compile kernels."""


@dataclass(eq=False)
class Served:
    """A loaded model.

    Attributes:
        version: its checkpoint folder, and when that was written, in nanoseconds since 1970.
        num_users: number of requests that use it now.
        last_used: when the last of these began, by the monotonic clock.
        example: a line or so that it has written; None until it is asked for.
        examples: short texts of its validation split; None until they are asked for.
        card: a PNG of a text that it has written; None until it is asked for.
    """

    loaded: Loaded
    engine: EngineThread
    version: tuple[Path, int]
    num_users: int = 0
    last_used: float = field(default_factory=time.monotonic)
    example: str | None = None
    examples: list[str] | None = None
    card: bytes | None = None


class Models:
    """The available models, by name.

    Attributes:
        first: name of the default model.
        folders: looks into the folders below `runs`.
        loaded: the models that are loaded.

    Args:
        load: loads the model of a checkpoint folder.
        make_engine: starts an engine for a loaded model.
        runs: folder of run folders, each a model by its name.
        checkpoints: if there are any, these are served in place of all runs below `runs`: run
            folders, checkpoint folders, or `best` or `last` inside a run.
    """

    def __init__(
        self,
        load: Callable[[Path], Loaded],
        make_engine: Callable[[Loaded], EngineThread],
        runs: Path,
        checkpoints: Sequence[Path] = (),
    ) -> None:
        self._load = load
        self._make_engine = make_engine
        self.runs = runs
        self._chosen = {_name(path): path for path in checkpoints}
        if len(self._chosen) < len(checkpoints):
            raise CheckpointError("two checkpoints have the same name; serve them from two servers")
        for path in checkpoints:
            find_checkpoint(path, runs)  # raises now, at the start, if one is missing
        self.folders = Folders()
        self.loaded: dict[str, Served] = {}
        self._loads: dict[str, asyncio.Task[Served]] = {}  # models that are being loaded
        if checkpoints:
            self.first = _name(checkpoints[0])
        else:
            newest = find_checkpoint(None, runs)  # RUN/checkpoints/STEP
            self.first = _name(newest.parents[1])

    async def descriptions(self) -> dict[str, dict[str, int]]:
        """Return what `describe` says of each available model, the first model first."""
        names = sorted(await self._names(), key=lambda name: name != self.first)
        return await self.folders.look_into_each(names, self._describe)

    async def describe(self, name: str) -> dict[str, int]:
        """Return a model's `sizes`, and when it was written, in seconds since 1970.

        Raises:
            APIError: there is no such model.
        """
        await self.check(name)
        return await self.folders.look(name, self._describe, name)

    def _describe(self, name: str) -> dict[str, int]:
        _, written_ns = self._find(name)
        return {"created": written_ns // 10**9, **self.sizes(name)}

    async def _names(self) -> list[str]:
        """Return the names that a model can have, those below `runs` sorted."""
        if self._chosen:
            return list(self._chosen)
        return await self.folders.look("", _names_in, self.runs)

    def sizes(self, name: str) -> dict[str, int]:
        """Return a model's window, `max_model_len` as vLLM calls it, and vocabulary.

        Empty if it cannot be read.
        """
        try:
            folder, written_ns = self._find(name)
            return _sizes(folder, written_ns)
        except (CheckpointError, OSError):
            return {}

    async def check(self, name: str) -> None:
        """Raise APIError if there is no model of this name; a path to a model is no name."""
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
        """Load a model if it is not, and keep it loaded as long as this context lasts; None is the
        first model.

        Raises:
            APIError: there is no such model, or it cannot be read.
        """
        served = await self._get(self.first if name is None else name)
        served.num_users += 1
        served.last_used = time.monotonic()
        try:
            yield served
        finally:
            served.num_users -= 1
            await self._close_unused(served)

    async def _get(self, name: str) -> Served:
        """Return a model, loaded now if it must be.

        Only then are models waited for that are being loaded.
        """
        while True:
            served = await self._current(name)
            if served is not None:
                return served
            if name not in self._loads:
                await self.check(name)
            # another request may have started to load it
            load = self._loads.get(name) or self._start_to_load(name)
            # twice the time, since it first waits for the models before it
            await asyncio.wait([load], timeout=2 * LOAD_SECONDS)
            if not load.done():
                raise HangingError(name)
            served = load.result()
            if served in self.loaded.values():
                return served
            # otherwise another model has been loaded since, for which this one was unloaded

    def _start_to_load(self, name: str) -> "asyncio.Task[Served]":
        load = asyncio.create_task(self._load_after(name, list(self._loads.values())))
        self._loads[name] = load
        load.add_done_callback(partial(self._forget_load, name))
        return load

    def _forget_load(self, name: str, load: "asyncio.Task[Served]") -> None:
        del self._loads[name]
        if not load.cancelled():
            # all who waited may have gone; asyncio warns of an exception that was never looked at
            load.exception()

    async def _load_after(self, name: str, earlier: "list[asyncio.Task[Served]]") -> Served:
        """Load a model after those that are being loaded, since together they might not fit into
        memory.

        These are waited for only so long: one whose disk hangs must not keep the others from being
        loaded.
        """
        if earlier:
            await asyncio.wait(earlier, timeout=LOAD_SECONDS)
        await self._make_room()
        try:
            served = await asyncio.to_thread(self._read, name)
        except GPTError as error:
            message = f"the model {quoted(name, 100)!r} cannot be loaded: {error}"
            raise APIError(500, message, "model") from None
        old = self.loaded.get(name)
        self.loaded[name] = served
        if old is not None:
            await self._close_unused(old)
        return served

    async def _close_unused(self, served: Served) -> None:
        """Close the engine of a model that no request uses, if a newer version took its place."""
        is_replaced = served not in self.loaded.values()
        if served.num_users == 0 and is_replaced:
            await asyncio.to_thread(served.engine.close)

    async def _current(self, name: str) -> Served | None:
        """Return the loaded model of this name, or None if it must be loaded.

        That is so if there is none, its engine has failed, or its checkpoint has changed. A model
        whose checkpoint is gone or cannot be read stays in use.
        """
        if name not in self.loaded:
            return None
        version: tuple[Path, int] | None = None
        with contextlib.suppress(CheckpointError, OSError, HangingError):
            version = await self.folders.look(name, self._find, name)
        # looked up only now, since it may have been replaced or unloaded during the look
        served = self.loaded.get(name)
        if served is None or served.engine.failure is not None:
            return None
        has_changed = version is not None and version != served.version
        return None if has_changed else served

    def _find(self, name: str) -> tuple[Path, int]:
        """Return a model's checkpoint folder, and when it was written, in ns since 1970."""
        path = self._chosen.get(name, self.runs / name)
        folder = find_checkpoint(path, self.runs)
        return folder, folder.stat().st_mtime_ns

    def _read(self, name: str) -> Served:
        """Load a model, and start its engine. What is written during this counts as a change."""
        version = self._find(name)
        folder, _ = version
        loaded = self._load(folder)
        return Served(loaded, self._make_engine(loaded), version)

    async def _make_room(self) -> None:
        """Unload the least recently used idle model, if as many are loaded as may be."""
        idle = [name for name, served in self.loaded.items() if served.num_users == 0]
        if len(self.loaded) >= MAX_LOADED and idle:
            await self._unload(min(idle, key=lambda name: self.loaded[name].last_used))

    async def _unload(self, name: str) -> None:
        served = self.loaded.pop(name)
        await asyncio.to_thread(served.engine.close)

    async def close(self) -> None:
        """Unload all models, and cancel their requests."""
        for name in list(self.loaded):
            await self._unload(name)


@lru_cache(1024)
def _sizes(folder: Path, written_ns: int) -> dict[str, int]:
    """Return the sizes of a checkpoint.

    `written_ns` is part of the key, so that a changed one is read again.
    """
    try:
        config, tokenizer = read_description(folder)
    except GPTError:
        # a result, and so kept: each list of models would read a damaged checkpoint again
        return {}
    return {"max_model_len": config.model.block_size, "vocab_size": tokenizer.vocab_size}


def _names_in(runs: Path) -> list[str]:
    return sorted(path.name for path in runs.glob("*") if path.name.isprintable())


def _name(path: Path) -> str:
    """Return the name of a model: its run, followed by its checkpoint if the path gives one."""
    path = path.absolute()
    if path.parent.name == "checkpoints":  # RUN/checkpoints/STEP
        return f"{path.parents[1].name}/{path.name}"
    if path.name in ("best", "last"):
        return f"{path.parent.name}/{path.name}"
    return path.name
