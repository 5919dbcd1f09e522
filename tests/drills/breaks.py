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


def nothing(intact: Any) -> Callable[..., None]:
    """Do nothing in its place."""
    return lambda *arguments, **options: None


def constant(value: Any) -> Callable[[Any], Any]:
    """Put a value in its place."""
    return lambda intact: value


def after(act: Callable[..., object]) -> Callable[[Any], Any]:
    """Do something with the same arguments before it."""

    def broken(intact: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments, **options: (act(*arguments), intact(*arguments, **options))[1]

    return broken


class Anything(str):
    """A hash that equals every other."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


KEPT: list[bytes] = []


def keep(*_: object) -> None:
    """Leak a quarter of a megabyte."""
    KEPT.append(os.urandom(1 << 18))


@contextlib.contextmanager
def _in_place(path: Path) -> Iterator[Path]:
    path.touch()
    yield path


def _remove_others(folder: Path, checkpoint: object) -> None:
    if folder.parent.name == "checkpoints":
        shutil.rmtree(folder.parent, ignore_errors=True)


def _first_only(run: Any) -> Any:
    from gpt.checkpoint import read_checkpoint

    return next(((folder, read_checkpoint(folder), []) for folder in run.checkpoints()), None)


def _believed(run: Any, name: str) -> Path | None:
    try:
        return run.path / json.loads((run.path / f"{name}.json").read_text())["checkpoint"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _letter_lost(make: Callable[..., Any]) -> Callable[..., Any]:
    return lambda tokenizer: json.loads(json.dumps(make(tokenizer), ensure_ascii=False).replace('"W"', '"Q"'))


def _errors_swallowed(save: Callable[..., None]) -> Callable[..., None]:
    def broken(*arguments: Any) -> None:
        with contextlib.suppress(Exception):
            save(*arguments)

    return broken


def _never_required(write: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *arguments, **options: write(self, *arguments[:4], **{**options, "required": False})


BREAKS: dict[str, tuple[Break, ...]] = {
    "kill": (
        Break(
            "old checkpoints are removed before the new one is written",
            "gpt.checkpoint.runs:write_checkpoint",
            after(_remove_others),
        ),
        Break("files are written in place", "gpt.files:temporary_file", constant(_in_place)),
        Break(
            "dropout goes on from another place",
            "gpt.training.training_state:restore_generator_states",
            constant(lambda *_: True),
        ),
    ),
    "ranks": (
        Break(
            "the moments of two processes are lost in a checkpoint",
            "gpt.distributed.sharding:gather_to_rank_zero",
            lambda gather: (
                lambda tree, is_main: torch.utils._pytree.tree_map(
                    lambda leaf: leaf * 0 if isinstance(leaf, torch.Tensor) and leaf.dim() else leaf,
                    gather(tree, is_main),
                )
            ),
        ),
        Break(
            "a process that has lost the other ends with a traceback",
            "gpt.distributed.process_group:_is_lost_connection",
            constant(lambda error: False),
        ),
    ),
    "signals": (
        Break(
            "a stopped run is taken for a failed one",
            "gpt.training.signals:Interrupted.__init__",
            lambda make: lambda self, number: (make(self, number), setattr(self, "exit_code", 1))[0],
        ),
        Break("a signal that is sent twice does not save", "gpt.signals:ECHO_SECONDS", constant(-1.0)),
        Break("a closed terminal is not noticed", "gpt.signals:WATCHED", lambda watched: watched[:2]),
        Break("compilers are orphans", "gpt.signals:end_children", nothing),
        Break("no command but train cleans up", "gpt.signals:unwinding", constant(contextlib.nullcontext)),
        Break("temporary files stay", "gpt.files:surely", nothing),
    ),
    "disk": (
        Break("free space is not checked at the start", "gpt.accounting.disk:require_disk", nothing),
        Break("the last save may fail", "gpt.training.saving:CheckpointWriter.write", _never_required),
        Break(
            "a sweep goes on if its results cannot be written",
            "gpt.training.sweeps.outcomes:save_outcomes",
            _errors_swallowed,
        ),
    ),
    "rot": (
        Break(
            "hashes of checkpoints are not compared",
            "gpt.checkpoint.folder:_verified",
            lambda verified: lambda path, entry: path.read_bytes() if path.exists() else verified(path, entry),
        ),
        Break("a damaged checkpoint is not skipped", "gpt.checkpoint:RunFolder.newest_valid", constant(_first_only)),
        Break("a pointer is believed", "gpt.checkpoint:RunFolder.pointed", constant(_believed)),
        Break("hashes of token files are not compared", "gpt.files:sha256_of", constant(lambda path: Anything("0"))),
        Break(
            "the vocabulary of a corpus and the journal of its shards are believed",
            "gpt.data.dataset:unseal",
            constant(lambda sealed: {key: value for key, value in sealed.items() if key != "sha256"}),
        ),
    ),
    "hostile": (
        Break(
            "pickles of a checkpoint may hold anything",
            "torch:load",
            lambda load: lambda *arguments, **options: load(*arguments, **{**options, "weights_only": False}),
        ),
        Break(
            "pickled characters may call anything",
            "gpt.interop.nanogpt:_PlainUnpickler.find_class",
            constant(pickle.Unpickler.find_class),
        ),
        Break("a run follows links out of its folder", "pathlib:Path.is_symlink", constant(lambda path: False)),
        Break(
            "a zip file may be compressed by any method",
            "gpt.corpora.unpacking:_only_member",
            constant(lambda archive, path: archive.infolist()[0]),
        ),
        Break("a line of JSON may have any number of values", "gpt.corpora.tables:MAX_VALUES", constant(1 << 60)),
        Break("names of files may steer the terminal", "unicodedata:category", constant(lambda char: "Ll")),
    ),
    "fuzz": (
        Break("foreign YAML is a traceback", "gpt.config.strict_yaml:_CANNOT_READ", constant((ZeroDivisionError,))),
        Break("half a stop string is shown", "gpt.generation.text:_overlap", constant(lambda text, stop: 0)),
        Break(
            "half a character is lost",
            "codecs:getincrementaldecoder",
            lambda get: lambda encoding: lambda errors="strict": get(encoding)("ignore"),
        ),
        Break("JSON that is nested too deeply is a traceback", "gpt.files:parse_json", constant(json.loads)),
    ),
    "soak": (
        Break("every batch stays in memory", "gpt.data.tokens:release_pages", after(keep)),
        Break("every prompt stays in memory", "gpt.data.tokenizers:CharTokenizer.encode", after(keep)),
        Break("a lock stays open", "gpt.checkpoint:RunFolder.unlock", after(lambda run: os.dup(0))),
    ),
    "memory": (Break("pages that were read stay in memory", "gpt.data.tokens:KEEP_RESIDENT", constant(1 << 60)),),
    "decoding": (
        Break(
            "a draft is accepted whatever was sampled in its place",
            "gpt.generation.speculative:_count_accepted",
            constant(lambda draft, sampled: len(draft)),
        ),
        Break(
            "the caches of hypotheses are mixed up",
            "gpt.cache:KVCache.select",
            lambda select: lambda cache, rows: select(cache, sorted(rows)),
        ),
    ),
    "exports": (
        Break(
            "a GGUF file has its heads in another order",
            "gpt.interop.gguf_file:interleave_halves",
            constant(lambda weight, heads: weight),
        ),
        Break(
            "an ONNX file has a tokenizer that lacks a letter",
            "gpt.interop.tokenizer_json:to_tokenizer_json",
            _letter_lost,
        ),
    ),
}
"""By the name of the drill. Each is found at the small scale; processes that a drill starts anew are not broken."""
