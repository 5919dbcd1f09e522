"""nanoGPT's ckpt.pt with its meta.pkl: pickles, of which nothing is executed."""

import io
import pickle
import pickletools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from gpt.checkpoint.pickles import load_pickle
from gpt.config import ModelConfig
from gpt.data.tokenizers import CharTokenizer, Tokenizer
from gpt.extras.export.architectures import gpt2_entries
from gpt.extras.export.tensors import build_from_tensors, check_layers, foreign_files
from gpt.model import GPT
from gpt.system.errors import InputError, explained
from gpt.system.files import open_file, read_file

COMPILED = "_orig_mod."
"""What torch.compile puts before the names of a model."""


MAX_PICKLED = 4 << 20
"""Bytes of a meta.pkl: one of a hundred thousand characters has two million."""
MAX_TUPLES = 1000
"""In a meta.pkl, which needs none: the hash of tuples that are nested deeply overflows the stack."""


class _PlainUnpickler(pickle.Unpickler):
    """Reads containers, numbers and strings, which need no import."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise InputError(
            f"it wants to run {module}.{name}, which a list of characters does not need"
        )


def import_checkpoint(file: Path, meta: Path | None = None) -> tuple[GPT, Tokenizer]:
    """Return the model and the tokenizer of a run of nanoGPT: its ckpt.pt, and the meta.pkl of its data folder."""
    content = _read_checkpoint(file)
    meta = meta or file.with_name("meta.pkl")
    tokenizer = _read_characters(meta)
    with foreign_files(file):
        sizes: Mapping[str, Any] = content["model_args"]
        tensors = {name.removeprefix(COMPILED): tensor for name, tensor in content["model"].items()}
        config = ModelConfig(
            n_layer=sizes["n_layer"],
            n_head=sizes["n_head"],
            n_embd=sizes["n_embd"],
            block_size=sizes["block_size"],
            bias=sizes["bias"],
            dropout=float(sizes.get("dropout", 0.0)),
            vocab_size=tokenizer.vocab_size,
        )
        if (count := len(tensors["transformer.wte.weight"])) != tokenizer.vocab_size:
            raise InputError(
                f"{file} has {count} tokens, {meta} {tokenizer.vocab_size} characters; it is of another dataset: give "
                "the one of its training with --meta"
            )
        check_layers(tensors, r"transformer\.h\.(\d+)\.", config.n_layer)
        return build_from_tensors(
            config, gpt2_entries(config, "transformer.", False, config.bias), tensors
        ), tokenizer


def _read_checkpoint(file: Path) -> Any:
    try:
        with open_file(file) as opened:
            return load_pickle(opened)
    except FileNotFoundError:
        raise InputError(f"there is no {file}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{file} is refused: {explained(error)}") from None


def _require_small(pickled: bytes) -> None:
    """Raise InputError where reading would take memory that the file does not have; nothing is built to find out."""
    tuples = 0
    for operation, argument, _ in pickletools.genops(pickled):
        if "PUT" in operation.name and int(argument or 0) > len(pickled):
            raise InputError("it numbers more values than it has bytes")
        tuples += "TUPLE" in operation.name
        if tuples > MAX_TUPLES:
            raise InputError("it has tuples, which a list of characters does not need")


def _read_characters(file: Path) -> Tokenizer:
    """Return the tokenizer of a meta.pkl, whose ids have to be those of sorted characters."""
    try:
        pickled = read_file(file, MAX_PICKLED)
        _require_small(pickled)
        content = _PlainUnpickler(io.BytesIO(pickled)).load()
        names = content["itos"]
        characters = [names[index] for index in range(len(names))]
        tokenizer = CharTokenizer(characters)
        ids = content.get("stoi", tokenizer.stoi)
    except FileNotFoundError:
        raise InputError(
            f"there is no {file}; it is in nanoGPT's data folder, and holds the characters"
        ) from None
    except InputError as error:
        raise InputError(f"{file} is refused: {error}") from None
    except Exception:  # an unpickler raises anything
        raise InputError(
            f"{file} is not a meta.pkl of characters, a dict with itos: characters by id, from 0"
        ) from None
    if tokenizer.itos != characters:
        raise InputError(f"{file} does not number its characters in sorted order")
    if ids != tokenizer.stoi:
        raise InputError(f"{file} contradicts itself: its stoi is not the inverse of its itos")
    return tokenizer
