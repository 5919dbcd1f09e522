"""A model as a folder that `from_pretrained` of transformers loads without network; and back."""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from gpt.config import ModelConfig, SampleConfig
from gpt.data.items import END_OF_LINE, item_ids
from gpt.data.pairs import ANSWER, END_OF_TEXT, TURN
from gpt.data.tokenizers import Tokenizer
from gpt.extras.export.architectures import Architecture, architecture_for, architecture_named
from gpt.extras.export.coverage import unknown_defaults, without_turn
from gpt.extras.export.tensors import build_from_tensors, check_layers, foreign_files, to_theirs
from gpt.extras.export.tokenizer_json import from_tokenizer_json, special_token, to_tokenizer_json
from gpt.model import GPT
from gpt.model.positions import SinusoidalPositions
from gpt.model.quantized import weights_format
from gpt.system.errors import InputError, explained
from gpt.system.files import MAX_JSON_BYTES, parse_json, read_file

WEIGHTS = "model.safetensors"
"""File of the weights, unless they are in several files."""
INDEX = "model.safetensors.index.json"
"""File that names the file of each tensor where there are several."""
FILTERS = ("top_k", "top_p", "min_p")
"""Sampling filters that transformers has under the same names."""


def export_files(model: GPT, tokenizer: Tokenizer, params: SampleConfig) -> dict[str, bytes]:
    """Return the content of each file of a folder for transformers, with float32 weights.

    Args:
        params: sampling defaults, which become those of `generate` in transformers.

    Raises:
        InputError: transformers does not compute this model, or its weights are quantized.
    """
    require_float32(model)
    config = model.config
    architecture = architecture_for(config)
    fields = {
        "architectures": [architecture.name],
        **architecture.to_fields(config),
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tie_weights,
        "dtype": "float32",
        "bos_token_id": params.begin_id,
        "eos_token_id": params.end_id,
    }
    tensors = to_theirs(architecture.entries(config), weights_with_positions(model))
    return {
        "config.json": _json(fields),
        WEIGHTS: safetensors.torch.save(tensors, metadata={"format": "pt"}),
        "tokenizer.json": _json(_tokenizer_json(tokenizer, params)),
        "tokenizer_config.json": _json(_tokenizer_fields(tokenizer, params, config.block_size)),
        "generation_config.json": _json(_generation_fields(tokenizer, params, config)),
    }


CHAT_TEMPLATE = (
    "{{ 'END' }}{% for message in messages %}{% if message.role == 'system' %}"
    "{{ message.content }}\n\n{% elif message.role == 'user' %}{{ message.content + 'ANSWER' }}"
    "{% else %}{{ message.content }}{% if loop.last %}{{ 'END' }}{% else %}{{ 'TURN' }}{% endif %}"
    "{% endif %}{% endfor %}"
)
"""Writes messages as `gpt.data.pairs` does, in the language of templates of transformers (Jinja).

END, ANSWER and TURN stand for the marks. The template has the marks themselves and not `bos_token`
and `eos_token`, which tokenizers of bytes and byte pairs lack, see `special_token`. An expression
writes each: Jinja would take a mark before a block for white space, and strip it.
"""


def chat_template() -> str:
    """Return the template of a model of questions and answers, with its marks."""
    marks = {"END": END_OF_TEXT, "ANSWER": ANSWER, "TURN": TURN}
    template = CHAT_TEMPLATE
    for name, mark in marks.items():
        template = template.replace(name, mark)
    return template


def _tokenizer_json(tokenizer: Tokenizer, params: SampleConfig) -> dict[str, Any]:
    """Return a tokenizer.json that puts the token `sample.begin_id` before each text."""
    content = to_tokenizer_json(tokenizer)
    if params.begin_id is None:
        return content
    token = special_token(tokenizer, params.begin_id)
    if token is None:
        return content
    special = {"SpecialToken": {"id": token, "type_id": 0}}
    first = {"Sequence": {"id": "A", "type_id": 0}}
    second = {"Sequence": {"id": "B", "type_id": 0}}
    template = {
        "type": "TemplateProcessing",
        "single": [special, first],
        "pair": [special, first, second],
        "special_tokens": {token: {"id": token, "ids": [params.begin_id], "tokens": [token]}},
    }
    return {**content, "post_processor": template}


def _generation_fields(
    tokenizer: Tokenizer, params: SampleConfig, config: ModelConfig
) -> dict[str, Any]:
    """Return the content of generation_config.json: the sampling defaults that transformers has."""
    assert config.vocab_size is not None
    end_ids: int | list[int] | None = params.end_id
    if params.end_id is not None and TURN in params.stop:
        # The mark of another question ends an answer too.
        turn_id = item_ids("pairs", tokenizer).turn
        assert turn_id is not None
        end_ids = [params.end_id, turn_id]
    beyond_tokenizer = range(tokenizer.vocab_size, config.vocab_size)
    without_text = [index for index in beyond_tokenizer if index != params.end_id]
    fields: dict[str, Any] = {
        "do_sample": params.temperature > 0,
        "repetition_penalty": params.repetition_penalty,
        # The window does not slide in transformers, so that a text ends with it. It is not written
        # as max_new_tokens, since that would win over a caller's max_length.
        "max_length": config.block_size,
        "bos_token_id": params.begin_id,
        "eos_token_id": end_ids,
        "pad_token_id": params.end_id,
    }
    if without_text:  # a model may have more ids than its tokenizer, which it must not generate
        fields["suppress_tokens"] = without_text
    if params.temperature > 0:  # transformers warns of these settings where nothing is sampled
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
        # Without this key transformers 4 makes token_type_ids as well. GPT-2 would add their
        # embeddings to those of the tokens, and the other architectures refuse them.
        "model_input_names": ["input_ids", "attention_mask"],
    }
    if params.end_id is not None:
        end_token = special_token(tokenizer, params.end_id)
        if end_token is not None:
            fields |= {"eos_token": end_token, "pad_token": end_token}
    if params.begin_id is not None:
        begin_token = special_token(tokenizer, params.begin_id)
        if begin_token is not None:
            fields["bos_token"] = begin_token
    if TURN in params.stop:  # a model of questions and answers
        fields["chat_template"] = chat_template()
    return fields


def not_in_folder(tokenizer: Tokenizer, params: SampleConfig) -> list[str]:
    """Return the sampling defaults that the files of `export_files` lose, wholly or in part."""
    known = {"temperature", "repetition_penalty", "begin_id", "end_id", *FILTERS}
    lost = unknown_defaults(without_turn(params), known)
    if params.end_id is not None and special_token(tokenizer, params.end_id) is None:
        lost.append(f"sample.end_id={params.end_id} as the tokenizer's eos_token")
    if params.begin_id is not None and special_token(tokenizer, params.begin_id) is None:
        lost.append(f"sample.begin_id={params.begin_id} as the tokenizer's bos_token")
    return lost


def require_float32(model: GPT) -> None:
    """Raise InputError where the weights of a model are quantized."""
    weights = weights_format(model)
    if weights != "float32":
        raise InputError(
            f"the weights are {weights}; export the checkpoint that they were made from"
        )


def weights_with_positions(model: GPT) -> dict[str, Tensor]:
    """Return the weights by name, with sinusoidal positions among them as if they were learned."""
    weights = dict(model.state_dict())
    if isinstance(model.wpe, SinusoidalPositions):  # its table is not in the state dict
        weights["wpe.weight"] = model.wpe.table
    return weights


def import_folder(folder: Path) -> tuple[GPT, Tokenizer]:
    """Return the model and the tokenizer of a folder that `save_pretrained` wrote.

    Nothing in the folder is executed: it holds JSON, and weights as safetensors.

    Raises:
        InputError: a file is missing or damaged, or a `GPT` does not compute this model.
        DataError: the tokenizer is not supported.
    """
    if folder.is_file():
        raise InputError(
            f"{folder} is a file; give the folder with config.json, tokenizer.json and the weights"
        )
    with foreign_files(folder / "config.json"):
        architecture, config = _read_config(folder / "config.json")
    with foreign_files(folder / "tokenizer.json"):
        tokenizer = from_tokenizer_json(_read_json(folder / "tokenizer.json"))
    if config.vocab_size is None or tokenizer.vocab_size > config.vocab_size:
        raise InputError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} ids, the model {config.vocab_size}"
        )
    with foreign_files(folder):
        tensors = _read_tensors(folder)
        prefix = architecture.prefix
        if not any(name.startswith(prefix) for name in tensors):
            # The model was saved without its head, and the names of its tensors without the prefix.
            tensors = {prefix + name: tensor for name, tensor in tensors.items()}
        check_layers(tensors, re.escape(prefix) + r"(?:h|layers)\.(\d+)\.", config.n_layer)
        model = build_from_tensors(config, architecture.entries(config), tensors)
        return model, tokenizer


def _read_config(path: Path) -> tuple[Architecture, ModelConfig]:
    """Return the architecture that a config.json names, and its fields as a configuration."""
    fields = _read_json(path)
    names = fields.get("architectures") or [None]
    architecture = architecture_named(str(names[0]))
    if fields.get("quantization_config"):
        raise InputError("its weights are quantized (quantization_config), which is not supported")
    keys = architecture.from_fields(fields)
    keys["tie_weights"] = fields.get("tie_word_embeddings", architecture.tied_by_default)
    keys["vocab_size"] = fields["vocab_size"]
    return architecture, ModelConfig(**keys)


class ImportedTexts(NamedTuple):
    """What a folder says of the texts that its model writes.

    Attributes:
        items: what the model was trained on, see `DataConfig.items`.
        sample: how it samples, and where a text begins and ends.
    """

    items: str
    sample: SampleConfig


def read_texts(folder: Path, model: GPT, tokenizer: Tokenizer) -> ImportedTexts:
    """Return how the model of a folder begins, ends and samples a text.

    For the model of another program, only the end of a text is read. A run on items that
    `export_files` wrote is recognized by its mark, which begins each text and ends it; its sampling
    parameters are those of the run.
    """
    end_id = _read_id(folder, "eos_token_id", model.vocab_size)
    begin_id = _read_id(folder, "bos_token_id", model.vocab_size)
    items = "none"
    if begin_id is not None and begin_id == end_id and begin_id < tokenizer.vocab_size:
        items = _items_of_mark(tokenizer.decode([begin_id]), folder)
    if items == "none":
        return ImportedTexts(items, SampleConfig(end_id=end_id))
    values: dict[str, Any] = {
        "begin_id": begin_id,
        "end_id": end_id,
        "max_new_tokens": model.config.block_size,
    }
    if items == "pairs":
        values["stop"] = (TURN,)
    file = folder / "generation_config.json"
    with foreign_files(file):
        fields = _read_json(file)
        for name in ("temperature", "repetition_penalty", *FILTERS):
            if name in fields:
                values[name] = fields[name]
        if not fields.get("do_sample", True):
            values["temperature"] = 0.0
        return ImportedTexts(items, SampleConfig.model_validate(values))


def _items_of_mark(mark: str, folder: Path) -> str:
    """Return the value of `data.items` for a token that begins and ends texts.

    It is none where the token is no mark of items.
    """
    if mark == END_OF_LINE:
        return "lines"
    if mark != END_OF_TEXT:
        return "none"
    return "pairs" if _read_chat_template(folder) == chat_template() else "paragraphs"


def _read_chat_template(folder: Path) -> str | None:
    """Return the chat template of a tokenizer; None where it has none.

    Newer versions of transformers write it into a file of its own.
    """
    file = folder / "chat_template.jinja"
    if file.is_file():
        return read_file(file, MAX_JSON_BYTES).decode(errors="replace")
    file = folder / "tokenizer_config.json"
    if not file.is_file():
        return None
    with foreign_files(file):
        template = _read_json(file).get("chat_template")
    return template if isinstance(template, str) else None


def _read_id(folder: Path, key: str, vocab_size: int) -> int | None:
    """Return the id of a special token, the first of several; None where there is none.

    transformers prefers generation_config.json, and so does this function.
    """
    for name in ("generation_config.json", "config.json"):
        file = folder / name
        if not file.exists():
            continue
        with foreign_files(file):
            index = _read_json(file).get(key)
        if isinstance(index, list) and index:
            index = index[0]
        if isinstance(index, int) and 0 <= index < vocab_size:
            return index
    return None


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of all files of weights in a folder."""
    names = [WEIGHTS]
    index = folder / INDEX
    if index.exists():
        try:
            names = sorted(set(_read_json(index)["weight_map"].values()))
        except (KeyError, TypeError, AttributeError):
            raise InputError(f"{index} does not say in which file each tensor is") from None
    tensors: dict[str, Tensor] = {}
    for name in names:
        # A name with folders in it would lead out of this folder.
        is_plain_name = Path(str(name)).name == name
        if not is_plain_name or not (folder / name).is_file():
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
    """Return the object in a JSON file."""
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
