"""nanoGPT's ckpt.pt with its meta.pkl: pickles, of which nothing is executed."""

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch

from gpt.config import ModelConfig
from gpt.data.tokenizers import CharTokenizer, Tokenizer
from gpt.errors import InputError, explained
from gpt.files import MOST_JSON_BYTES, read_file
from gpt.interop.architectures import gpt2_entries
from gpt.interop.tensors import build_from_tensors, check_layers, foreign_files
from gpt.model import GPT

COMPILED = "_orig_mod."
"""What torch.compile puts before the names of a model."""


class _PlainUnpickler(pickle.Unpickler):
    """Reads containers, numbers and strings, which need no import."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise InputError(f"it wants to run {module}.{name}, which a list of characters does not need")


def import_checkpoint(
    file: Path, meta: Path | None = None, tokenizer: Tokenizer | None = None
) -> tuple[GPT, Tokenizer]:
    """Return the model and the tokenizer of a run of nanoGPT.

    Args:
        file: ckpt.pt, as nanoGPT's train.py writes it.
        meta: meta.pkl of its data folder; None: beside `file`.
        tokenizer: in place of meta.pkl, for a corpus that has none.

    Raises:
        InputError: a file is missing or damaged, or would run code; the message names it.
    """
    content = _read_checkpoint(file)
    if tokenizer is None:
        tokenizer = _read_characters(meta or file.with_name("meta.pkl"))
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
        embedding = tensors["transformer.wte.weight"]
        if len(embedding) < tokenizer.vocab_size:
            raise InputError(f"{file} has no embedding for the {tokenizer.vocab_size} tokens of its tokenizer")
        tensors["transformer.wte.weight"] = embedding[: tokenizer.vocab_size]  # the rest is padding
        check_layers(tensors, r"transformer\.h\.(\d+)\.", config.n_layer)
        return build_from_tensors(config, gpt2_entries(config, "transformer.", False, config.bias), tensors), tokenizer


def _read_checkpoint(file: Path) -> Any:
    if file.exists() and not file.is_file():
        raise InputError(f"{file} is not a regular file")
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise InputError(f"there is no {file}") from None
    except Exception as error:  # an unpickler raises anything
        reason = str(error).partition("\n")[0]
        raise InputError(f"{file} cannot be read without running code in it: {reason}") from None


def _read_characters(file: Path) -> Tokenizer:
    """Return the tokenizer of a meta.pkl, whose ids have to be those of sorted characters."""
    try:
        names = _PlainUnpickler(io.BytesIO(read_file(file, MOST_JSON_BYTES))).load()["itos"]
        characters = [names[index] for index in range(len(names))]
        tokenizer = CharTokenizer(characters)
    except FileNotFoundError:
        raise InputError(f"there is no {file}; it is in nanoGPT's data folder, and holds the characters") from None
    except InputError as error:
        raise InputError(f"{file} is refused: {error}") from None
    except Exception as error:  # an unpickler raises anything
        raise InputError(f"{file} is not a meta.pkl of characters: {explained(error)}") from None
    if tokenizer.itos != characters:
        raise InputError(f"{file} does not number its characters in sorted order")
    return tokenizer
