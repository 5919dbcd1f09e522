"""A trained model as one HTML page that runs it.

The page holds weights, tokenizer and code, and needs no other file.
"""

import base64
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gpt.checkpoint import RunFolder, step_files
from gpt.config import Config, SampleConfig
from gpt.data.bpe import BPETokenizer, byte_symbols
from gpt.data.tokenizers import Tokenizer
from gpt.data.words import WordTokenizer
from gpt.extras.about import About, about_model
from gpt.extras.export.coverage import changes_for, unknown_defaults, without_turn
from gpt.extras.export.tokenizer_json import merges_of, require_gpt2_words
from gpt.extras.inspection.views.picture import sizes_of
from gpt.extras.inspection.views.snapshots import read_snapshot, view_snapshot
from gpt.extras.inspection.views.tokens import kind_of, labels_of
from gpt.extras.web.document import MODEL, Heading, render_document
from gpt.extras.web.marks import marks_of
from gpt.model import GPT
from gpt.model.quantized import QuantizedLinear, quantize, weights_format
from gpt.system.errors import InputError

WEIGHTS = ("fp16", "int8", "float32")
"""Formats of the weights in a page.

With int8 the linear layers of the blocks are int8, and all other weights fp16.
"""
MAX_BYTES = 2**29 // 4 * 3 - 2**20
"""Most bytes of weights in a page.

A string in Chromium has at most 2^29 characters. Base64 writes 3 bytes as 4 characters, and 1 MiB
is left for the rest of the page.
"""
DTYPES = {"int8": torch.int8, "fp16": torch.float16, "float32": torch.float32}
"""Type of the stored numbers, by the name of the format."""
COVERED = ("n_kv_head", "bias", "tie_weights", "qk_norm")
"""Keys of `ModelConfig` that `gpt/extras/web/src/engine/model.js` computes with any value."""
NAMES = {
    "position": ("learned", "sinusoidal", "rope"),
    "norm": ("layernorm", "rmsnorm"),
    "mlp": ("gelu", "gelu_tanh", "relu", "relu2", "swiglu"),
}
"""Values of other keys that `model.js` computes."""
FILTERS = ("top_k", "top_p", "min_p")
"""Sampling filters that a reader can set in the page."""


@dataclass(frozen=True)
class PageWords:
    """What a page says about its model.

    Attributes:
        title: heading of the page.
        note: what stands below the heading.
        example: a text that fits the window; the views show it first, and writing starts from its
            first words.
        examples: texts that a reader can choose in place of it.
        about: what is known of the model beside its weights.
        name: the name of the model, which begins the title in the browser's tab.
    """

    title: str
    note: str
    example: str = ""
    examples: Sequence[str] = ()
    about: About | None = None
    name: str = ""


def render_model_page(
    model: GPT,
    tokenizer: Tokenizer,
    weights: str,
    params: SampleConfig,
    words: PageWords,
    learning: dict[str, Any] | None = None,
) -> str:
    """Return an HTML document in which a reader writes text with the model, without a server.

    Args:
        weights: one of `WEIGHTS`.
        params: the temperature, filters, seed and length that the page starts with, and the tokens
            that begin and end a text.
        words: what the page says about the model.
        learning: how the model was trained, from `learning_of`.

    Raises:
        InputError: the page's code does not compute this model, or its weights are too large.
    """
    changes = changes_for(model.config, COVERED, NAMES)
    if changes:
        raise InputError(f"a page does not compute this model; train one with {' '.join(changes)}")
    page_tokenizer = _page_tokenizer(tokenizer)
    tensors, content = _pack(model, weights)
    config = model.config
    marks = marks_of(tokenizer, params)
    start = {"seed": params.seed}
    if marks["kind"] != "items":  # the page itself knows how many items it writes at first
        start["count"] = params.max_new_tokens
    # The page takes the ranges of the filters from the schema.
    schema = SampleConfig.model_json_schema()["properties"]
    data = {
        "config": sizes_of(config),
        "tensors": tensors,
        "tokenizer": page_tokenizer,
        "labels": labels_of(tokenizer, range(model.vocab_size)),
        "facts": {
            "block_size": config.block_size,
            "token": kind_of(tokenizer),
            "vocab_size": tokenizer.vocab_size,
            "example": words.example,
            "examples": list(words.examples),
            "about": asdict(words.about or about_model(model, tokenizer)),
            "marks": marks,
            "longest_item": params.max_new_tokens,
            "sample": {name: getattr(params, name) for name in ("temperature", *FILTERS)},
        },
        "filters": {name: schema[name] for name in FILTERS},
        "start": start,
        "learning": learning,
    }
    encoded = base64.b64encode(content).decode()
    heading = Heading(words.title, words.note, name=words.name)
    return render_document(MODEL, data, heading, weights=encoded)


def not_in_page(params: SampleConfig) -> list[str]:
    """Return the sampling defaults, as sample.KEY=VALUE, that a page has no place for."""
    known = {"max_new_tokens", "temperature", "seed", "begin_id", "end_id", *FILTERS}
    return unknown_defaults(without_turn(params), known)


def learning_of(
    run: RunFolder, config: Config, end: int, val_loss: float | None = None
) -> dict[str, Any] | None:
    """Return how a run learned up to step `end`, in the form that a page of a running training has.

    None if the run kept fewer than two snapshots, between which there is nothing to compare. The
    attention of each snapshot is left out, since it would be most of the page.

    Args:
        val_loss: the best validation loss up to that step, in nats per token; None: not known.
    """
    snapshots = {}
    for step, file in step_files(run.snapshots).items():
        if step <= end:  # later ones are of a training that went on after this checkpoint
            snapshots[step] = read_snapshot(file)
    if len(snapshots) < 2:
        return None
    last = max(snapshots)
    views = {}
    for step, snapshot in snapshots.items():
        view = view_snapshot(step, snapshot, snapshots[last])
        views[step] = {**view, "attention": None}
    facts = {
        "name": run.path.name,
        "training": False,
        "step": last,
        "max_steps": config.train.max_steps,
        "tokenizer": config.data.tokenizer,
        "best_step": None,
        "best_val_loss": val_loss,
        "snapshots": sorted(snapshots),
    }
    return {"run": facts, "snapshots": views}


def _page_tokenizer(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the description of a tokenizer that the page's code reads."""
    if isinstance(tokenizer, WordTokenizer):
        words = [tokenizer.decode([index]) for index in range(tokenizer.vocab_size)]
        return {"type": "word", "tokens": words, "unknown": tokenizer.unknown_id}
    if not isinstance(tokenizer, BPETokenizer):
        return tokenizer.to_dict()
    content: dict[str, Any] = tokenizer.to_dict()["tokenizer"]
    require_gpt2_words(content, "a page")
    added = content.get("added_tokens") or []
    tokens = [""] * tokenizer.vocab_size
    for text, index in content["model"]["vocab"].items():
        tokens[index] = text
    for token in added:
        tokens[token["id"]] = token["content"]
    return {
        "type": "bpe",
        "symbols": byte_symbols(),
        "tokens": tokens,
        "merges": merges_of(content),
        "added": [token["content"] for token in added],
    }


def _pack(model: GPT, weights: str) -> tuple[list[dict[str, Any]], bytes]:
    """Return an index of all tensors, and their bytes one after another.

    The scales of an int8 tensor, one float32 a row, directly follow its values.

    Raises:
        InputError: a browser cannot read so many bytes from a page.
    """
    if weights == "int8" and weights_format(model) != "int8":
        model = quantize(model, "int8")
    index: list[dict[str, Any]] = []
    content = bytearray()
    for name, tensor, scales in _tensors(model):
        if scales is not None:
            kind = "int8"
        elif weights == "float32":
            kind = "float32"
        else:
            kind = "fp16"  # with int8, what is not quantized
        index.append(
            {"name": name, "shape": list(tensor.shape), "format": kind, "offset": len(content)}
        )
        content += _to_bytes(name, tensor, kind)
        if scales is not None:
            content += _to_bytes(name, scales, "float32")
    if len(content) > MAX_BYTES:
        raise InputError(
            f"a browser reads at most {MAX_BYTES / 1e6:,.0f} MB of weights from a page, "
            f"and these have {len(content) / 1e6:,.0f}; use --weights int8, or --to hf"
        )
    return index, bytes(content)


def _tensors(model: GPT) -> Iterator[tuple[str, Tensor, Tensor | None]]:
    """Yield the name, the values and, of int8 values, the scales (rows, 1) of each tensor.

    A tied head is left out, since it is the token embedding. Weights that are quantized to another
    format than int8 come as floating point.
    """
    for name, module in model.named_modules():
        if name == "lm_head" and model.config.tie_weights:
            continue
        if isinstance(module, QuantizedLinear) and module.bits == 8:
            yield f"{name}.weight", module.integers, module.scales
        else:
            weight = getattr(module, "weight", None)
            if isinstance(weight, Tensor):
                yield f"{name}.weight", weight, None
        bias = getattr(module, "bias", None)
        if isinstance(bias, nn.Parameter):
            yield f"{name}.bias", bias, None


def _to_bytes(name: str, tensor: Tensor, kind: str) -> bytes:
    """Return the values row by row, as the little-endian bytes that a browser reads."""
    values = tensor.detach().cpu().to(DTYPES[kind])
    if not values.isfinite().all():  # a float32 above 65504 becomes infinite in fp16
        raise InputError(
            f"{name} has values that are not finite in {kind}; the page would not work"
        )
    array = values.contiguous().numpy()
    return array.astype(array.dtype.newbyteorder("<")).tobytes()
