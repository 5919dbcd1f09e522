"""Defects that drills have to find: a name of the package gets another meaning, in the drill's own process."""

import contextlib
import importlib
import json
import os
import pickle
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Break:
    """A defect.

    Attributes:
        why: the defect, in a few words.
        name: `module:attribute` or `module:class.attribute`.
        broken: takes what the name stands for, and returns what takes its place.
    """

    why: str
    name: str
    broken: Callable[[Any], Any]

    def find(self) -> tuple[Any, str]:
        """Return the module or class, and the name in it.

        Raises:
            AttributeError: the package has no such name any more, and the break has to follow it.
        """
        module, _, path = self.name.partition(":")
        owner: Any = importlib.import_module(module)
        *classes, name = path.split(".")
        for each in classes:
            owner = getattr(owner, each)
        getattr(owner, name)
        return owner, name

    def apply(self) -> None:
        """Break this process: the name, and the same name in every module that has imported it."""
        owner, name = self.find()
        intact = getattr(owner, name)
        broken = self.broken(intact)
        setattr(owner, name, broken)
        for module in [found for key, found in sys.modules.items() if key.startswith("gpt.")]:
            if vars(module).get(name) is intact:
                setattr(module, name, broken)


def returning(value: Any) -> Callable[[Any], Callable[..., Any]]:
    """Do nothing in its place, and return a value."""
    return lambda intact: lambda *arguments, **options: value


def constant(value: Any) -> Callable[[Any], Any]:
    return lambda intact: value


def after(act: Callable[..., object]) -> Callable[[Any], Any]:

    def broken(intact: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments, **options: (act(*arguments), intact(*arguments, **options))[1]

    return broken


KEPT: list[bytes] = []


def keep(*_: object) -> None:
    KEPT.append(os.urandom(1 << 20))


@contextlib.contextmanager
def _in_place(path: Path) -> Iterator[Path]:
    path.touch()
    yield path


def _remove_others(folder: Path, checkpoint: object) -> None:
    if folder.parent.name == "checkpoints":
        shutil.rmtree(folder.parent, ignore_errors=True)


def _never_required(write: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *arguments, **options: write(self, *arguments[:4], **{**options, "required": False})


def _moments_lost(gather: Callable[..., Any]) -> Callable[..., Any]:
    def lose(leaf: Any) -> Any:
        return leaf * 0 if isinstance(leaf, torch.Tensor) and leaf.dim() else leaf

    return lambda world, tree: torch.utils._pytree.tree_map(lose, gather(world, tree))


def _any_pickle(load: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments, **options: load(*arguments, **{**options, "weights_only": False})


def _failed(make: Callable[..., None]) -> Callable[..., None]:
    return lambda self, number: (make(self, number), setattr(self, "exit_code", 1))[0]


BREAKS: dict[str, tuple[Break, ...]] = {
    "kill": (
        Break("old checkpoints are removed first", "gpt.checkpoint.runs:write_checkpoint", after(_remove_others)),
        Break("files are written in place", "gpt.files:temporary_file", constant(_in_place)),
        Break("dropout begins anew", "gpt.training.training_state:restore_generator_states", returning(True)),
    ),
    "ranks": (
        Break("moments are not saved", "gpt.distributed.process_group:ProcessGroup.gather_to_rank_zero", _moments_lost),
        Break("a lost process is a traceback", "gpt.distributed.process_group:_is_lost_connection", returning(False)),
    ),
    "signals": (
        Break("a stopped run is taken for a failed one", "gpt.training.signals:Interrupted.__init__", _failed),
        Break("a signal that is sent twice does not save", "gpt.signals:ECHO_SECONDS", constant(-1.0)),
        Break("a closed terminal is not noticed", "gpt.signals:WATCHED", lambda watched: watched[:2]),
        Break("compilers are orphans", "gpt.signals:end_children", returning(None)),
        Break("no command but train cleans up", "gpt.signals:unwinding", constant(contextlib.nullcontext)),
        Break("temporary files stay", "gpt.files:surely", returning(None)),
    ),
    "disk": (Break("the last save may fail", "gpt.training.saving:CheckpointWriter.write", _never_required),),
    "hostile": (
        Break("pickles of a checkpoint may hold anything", "torch:load", _any_pickle),
        Break(
            "pickled characters may call anything",
            "gpt.interop.nanogpt:_PlainUnpickler.find_class",
            constant(pickle.Unpickler.find_class),
        ),
        Break("a run follows links out of its folder", "pathlib:Path.is_symlink", returning(False)),
        Break(
            "a zip file may be compressed by any method",
            "gpt.corpora.unpacking:_only_member",
            constant(lambda archive, path: archive.infolist()[0]),
        ),
        Break("a line of JSON may have any number of values", "gpt.corpora.tables:MAX_VALUES", constant(1 << 60)),
        Break("names of files may steer the terminal", "unicodedata:category", returning("Ll")),
    ),
    "fuzz": (
        Break("foreign YAML is a traceback", "gpt.config.strict_yaml:_CANNOT_READ", constant((ZeroDivisionError,))),
        Break("JSON that is nested too deeply is a traceback", "gpt.files:parse_json", constant(json.loads)),
    ),
    "soak": (
        Break("every batch stays in memory", "gpt.data.tokens:release_pages", after(keep)),
        Break("every prompt stays in memory", "gpt.data.tokenizers:CharTokenizer.encode", after(keep)),
        Break("a lock stays open", "gpt.checkpoint:RunFolder.unlock", after(lambda run: os.dup(0))),
    ),
}
"""By the name of the drill. Each is found at the small scale.

Processes that a drill starts anew are not broken, so there is none for the server of `soak`.
"""
