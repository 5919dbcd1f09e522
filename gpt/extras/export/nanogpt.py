"""Import a run of nanoGPT: its ckpt.pt, and the meta.pkl with its characters.

Both are pickles, which could run any code when they are read. Neither is allowed to.
"""

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

COMPILED_PREFIX = "_orig_mod."
"""What torch.compile puts before the names of a model's tensors."""
MAX_PICKLED_BYTES = 4 << 20
"""Most bytes of a meta.pkl; one with a hundred thousand characters has two million."""
MAX_TUPLES = 1000
"""Most tuples in a meta.pkl, which needs none: hashing deeply nested tuples overflows the stack."""


class _PlainUnpickler(pickle.Unpickler):
    """Reads containers, numbers and strings; whatever would have to be imported is refused."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise InputError(
            f"it wants to run {module}.{name}, which a list of characters does not need"
        )


def import_checkpoint(file: Path, meta: Path | None = None) -> tuple[GPT, Tokenizer]:
    """Return the model and the tokenizer of a run of nanoGPT.

    Args:
        file: ckpt.pt of the run.
        meta: meta.pkl of the data that it was trained on; None: the one beside `file`.

    Raises:
        InputError: a file is missing, damaged or dangerous, or they do not belong together.
    """
    content = _read_checkpoint(file)
    meta = meta or file.with_name("meta.pkl")
    tokenizer = _read_characters(meta)
    with foreign_files(file):
        sizes: Mapping[str, Any] = content["model_args"]
        tensors = {}
        for name, tensor in content["model"].items():
            tensors[name.removeprefix(COMPILED_PREFIX)] = tensor
        config = ModelConfig(
            n_layer=sizes["n_layer"],
            n_head=sizes["n_head"],
            n_embd=sizes["n_embd"],
            block_size=sizes["block_size"],
            bias=sizes["bias"],
            dropout=float(sizes.get("dropout", 0.0)),
            vocab_size=tokenizer.vocab_size,
        )
        vocab_size = len(tensors["transformer.wte.weight"])
        if vocab_size != tokenizer.vocab_size:
            raise InputError(
                f"{file} has {vocab_size} tokens, {meta} {tokenizer.vocab_size} characters; "
                "it is of another dataset: give the one of its training with --meta"
            )
        check_layers(tensors, r"transformer\.h\.(\d+)\.", config.n_layer)
        entries = gpt2_entries(config, "transformer.", transposed=False, bias=config.bias)
        return build_from_tensors(config, entries, tensors), tokenizer


def _read_checkpoint(file: Path) -> Any:
    """Return the content of a ckpt.pt, read by an unpickler that runs no code."""
    try:
        with open_file(file) as opened:
            return load_pickle(opened)
    except FileNotFoundError:
        raise InputError(f"there is no {file}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{file} is refused: {explained(error)}") from None


def _require_small(pickled: bytes) -> None:
    """Raise InputError where reading a pickle could take far more memory than its bytes, or crash.

    The instructions of the pickle are listed, not followed, so that nothing is built to find out.
    """
    tuples = 0
    for operation, argument, _ in pickletools.genops(pickled):
        # PUT stores a value under a number, and the unpickler allocates a list up to that number.
        if "PUT" in operation.name and int(argument or 0) > len(pickled):
            raise InputError("it numbers more values than it has bytes")
        if "TUPLE" in operation.name:
            tuples += 1
        if tuples > MAX_TUPLES:
            raise InputError("it has tuples, which a list of characters does not need")


def _read_characters(file: Path) -> Tokenizer:
    """Return the tokenizer of a meta.pkl, which has to number its characters in sorted order.

    A meta.pkl is a dict: itos has the character of each id, and stoi, which may be missing, is its
    inverse.
    """
    try:
        pickled = read_file(file, MAX_PICKLED_BYTES)
        _require_small(pickled)
        content = _PlainUnpickler(io.BytesIO(pickled)).load()
        itos = content["itos"]
        characters = [itos[index] for index in range(len(itos))]
        tokenizer = CharTokenizer(characters)
        stoi = content.get("stoi", tokenizer.stoi)
    except FileNotFoundError:
        raise InputError(
            f"there is no {file}; it is in nanoGPT's data folder, and holds the characters"
        ) from None
    except InputError as error:
        raise InputError(f"{file} is refused: {error}") from None
    except Exception:  # an unpickler may raise anything, and so may a content of other types
        raise InputError(
            f"{file} is not a meta.pkl of characters, a dict with itos: characters by id, from 0"
        ) from None
    if tokenizer.itos != characters:  # a CharTokenizer sorts its characters
        raise InputError(f"{file} does not number its characters in sorted order")
    if stoi != tokenizer.stoi:
        raise InputError(f"{file} contradicts itself: its stoi is not the inverse of its itos")
    return tokenizer
