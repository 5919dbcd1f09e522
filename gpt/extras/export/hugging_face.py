"""A model as a folder that `from_pretrained` of transformers loads without network; and back."""

import json
import re
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from gpt.config import ModelConfig, SampleConfig
from gpt.data.tokenizers import Tokenizer
from gpt.extras.export.architectures import architecture_for, architecture_named
from gpt.extras.export.coverage import unknown_defaults
from gpt.extras.export.tensors import build_from_tensors, check_layers, foreign_files, to_theirs
from gpt.extras.export.tokenizer_json import from_tokenizer_json, special_token, to_tokenizer_json
from gpt.model import GPT
from gpt.model.positions import SinusoidalPositions
from gpt.model.quantized import weights_format
from gpt.system.errors import InputError, explained
from gpt.system.files import MAX_JSON_BYTES, parse_json, read_file

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
FILTERS = ("top_k", "top_p", "min_p")
"""Sampling filters that transformers has under the same names."""


def export_files(model: GPT, tokenizer: Tokenizer, params: SampleConfig) -> dict[str, bytes]:
    """Return the files of a folder for transformers, with float32 weights; `params`: defaults of `generate`."""
    require_float32(model)
    config = model.config
    architecture = architecture_for(config)
    fields = {
        "architectures": [architecture.name],
        **architecture.to_fields(config),
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tie_weights,
        "dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": params.end_id,
    }
    tensors = to_theirs(architecture.entries(config), weights_with_positions(model))
    return {
        "config.json": _json(fields),
        WEIGHTS: safetensors.torch.save(tensors, metadata={"format": "pt"}),
        "tokenizer.json": _json(to_tokenizer_json(tokenizer)),
        "tokenizer_config.json": _json(_tokenizer_fields(tokenizer, params, config.block_size)),
        "generation_config.json": _json(_generation_fields(tokenizer, params, config)),
    }


def _generation_fields(
    tokenizer: Tokenizer, params: SampleConfig, config: ModelConfig
) -> dict[str, Any]:
    """Return the content of a generation_config.json: the sampling defaults that transformers has too."""
    assert config.vocab_size is not None
    without_text = [
        index for index in range(tokenizer.vocab_size, config.vocab_size) if index != params.end_id
    ]
    fields: dict[str, Any] = {
        "do_sample": params.temperature > 0,
        "repetition_penalty": params.repetition_penalty,
        # The window does not slide there. A max_new_tokens here would win over a caller's max_length.
        "max_length": config.block_size,
        "bos_token_id": None,
        "eos_token_id": params.end_id,
        "pad_token_id": params.end_id,
    }
    if without_text:
        fields["suppress_tokens"] = without_text
    if params.temperature > 0:  # transformers warns of these where nothing is sampled
        fields |= {name: getattr(params, name) for name in ("temperature", *FILTERS)}
    return fields


def _tokenizer_fields(
    tokenizer: Tokenizer, params: SampleConfig, block_size: int
) -> dict[str, Any]:
    """Return the content of a tokenizer_config.json."""
    fields = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": block_size,
        "clean_up_tokenization_spaces": False,
        # Without it transformers 4 makes token_type_ids: GPT-2 adds their embeddings, others refuse them.
        "model_input_names": ["input_ids", "attention_mask"],
    }
    end = None if params.end_id is None else special_token(tokenizer, params.end_id)
    if end is not None:
        fields |= {"eos_token": end, "pad_token": end}
    return fields


def not_in_folder(tokenizer: Tokenizer, params: SampleConfig) -> list[str]:
    """Return the sampling defaults that the files of `export_files` do not have, or not for every use."""
    lost = unknown_defaults(params, {"temperature", "repetition_penalty", "end_id", *FILTERS})
    if params.end_id is not None and special_token(tokenizer, params.end_id) is None:
        lost.append(f"sample.end_id={params.end_id} as the tokenizer's eos_token")
    return lost


def require_float32(model: GPT) -> None:
    if weights_format(model) != "float32":
        raise InputError(
            f"the weights are {weights_format(model)}; export the checkpoint that they were made from"
        )


def weights_with_positions(model: GPT) -> dict[str, Tensor]:
    """Return the weights by name; sinusoidal positions are among them, as if they were learned."""
    weights = dict(model.state_dict())
    if isinstance(model.wpe, SinusoidalPositions):
        weights["wpe.weight"] = model.wpe.table
    return weights


def import_folder(folder: Path) -> tuple[GPT, Tokenizer]:
    """Return the model and the tokenizer of a folder that `save_pretrained` wrote; nothing in it is executed."""
    if folder.is_file():
        raise InputError(
            f"{folder} is a file; give the folder with config.json, tokenizer.json and the weights"
        )
    with foreign_files(folder / "config.json"):
        fields = _read_json(folder / "config.json")
        architecture = architecture_named(str((fields.get("architectures") or [None])[0]))
        if fields.get("quantization_config"):
            raise InputError(
                "its weights are quantized (quantization_config), which is not supported"
            )
        keys = architecture.from_fields(fields)
        tied = fields.get("tie_word_embeddings", architecture.tied_by_default)
        config = ModelConfig(**{"tie_weights": tied, "vocab_size": fields["vocab_size"], **keys})
    with foreign_files(folder / "tokenizer.json"):
        tokenizer = from_tokenizer_json(_read_json(folder / "tokenizer.json"))
    if config.vocab_size is None or tokenizer.vocab_size > config.vocab_size:
        raise InputError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} ids, the model {config.vocab_size}"
        )
    with foreign_files(folder):
        tensors = _read_tensors(folder)
        if not any(name.startswith(architecture.prefix) for name in tensors):
            tensors = {
                architecture.prefix + name: tensor for name, tensor in tensors.items()
            }  # saved without the head
        check_layers(
            tensors, re.escape(architecture.prefix) + r"(?:h|layers)\.(\d+)\.", config.n_layer
        )
        return build_from_tensors(config, architecture.entries(config), tensors), tokenizer


def read_end_id(folder: Path, vocab_size: int) -> int | None:
    """Return the id of the token that ends a text, the first if there are several."""
    files = [
        file
        for name in ("generation_config.json", "config.json")
        if (file := folder / name).exists()
    ]
    for file in files:
        with foreign_files(file):
            ids = _read_json(file).get("eos_token_id")
        first = ids[0] if isinstance(ids, list) and ids else ids
        if isinstance(first, int) and 0 <= first < vocab_size:
            return first
    return None


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    names = [WEIGHTS]
    if (folder / INDEX).exists():
        try:
            names = sorted(set(_read_json(folder / INDEX)["weight_map"].values()))
        except (KeyError, TypeError, AttributeError):
            raise InputError(
                f"{folder / INDEX} does not say in which file each tensor is"
            ) from None
    tensors: dict[str, Tensor] = {}
    for name in names:
        if Path(str(name)).name != name or not (folder / name).is_file():
            raise InputError(
                f"{folder} has no {name}; the weights have to be safetensors, all files of them"
            )
        try:
            tensors |= safetensors.torch.load_file(folder / name)
        except SafetensorError as error:
            raise InputError(
                f"{folder / name} is damaged or not downloaded completely: {error}"
            ) from None
    return tensors


def _read_json(path: Path) -> Any:
    try:
        content = parse_json(read_file(path, MAX_JSON_BYTES))
    except FileNotFoundError:
        raise InputError(f"{path.parent} has no {path.name}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {explained(error)}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} is not a JSON object")
    return content


def _json(content: Any) -> bytes:
    return json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n"
