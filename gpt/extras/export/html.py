"""A trained model as one HTML page that runs it: weights, tokenizer and code in a file that needs nothing else."""

import base64
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from gpt.checkpoint import RunFolder, step_files
from gpt.config import Config, SampleConfig
from gpt.data.bpe import BPETokenizer, byte_symbols
from gpt.data.tokenizers import Tokenizer
from gpt.extras.export.coverage import changes_for, unknown_defaults
from gpt.extras.export.tokenizer_json import merges_of, require_gpt2_words
from gpt.extras.inspection.views.picture import sizes_of
from gpt.extras.inspection.views.snapshots import read_snapshot, view_snapshot
from gpt.extras.inspection.views.tokens import kind_of, labels_of
from gpt.extras.web.document import MODEL, render_document
from gpt.model import GPT
from gpt.model.quantized import QuantizedLinear, quantize, weights_format
from gpt.system.errors import InputError

WEIGHTS = ("fp16", "int8", "float32")
"""Formats of the weights in a page; with int8, the blocks' linear layers are int8 and the rest is fp16."""
MAX_BYTES = 2**29 // 4 * 3 - 2**20
"""Bytes of weights that a page holds in base64; a string of Chromium has at most 2^29 characters."""
COVERED = ("n_kv_head", "bias", "tie_weights", "qk_norm")
"""Keys of `ModelConfig` that `gpt/extras/web/src/engine/model.js` computes, with any value."""
NAMES = {
    "position": ("learned", "sinusoidal", "rope"),
    "norm": ("layernorm", "rmsnorm"),
    "mlp": ("gelu", "gelu_tanh", "relu", "relu2", "swiglu"),
}
"""Values that it computes of the other keys."""
FILTERS = ("top_k", "top_p", "min_p")


def render_model_page(
    model: GPT,
    tokenizer: Tokenizer,
    weights: str,
    params: SampleConfig,
    title: str,
    note: str,
    example: str = "",
    learning: dict[str, Any] | None = None,
) -> str:
    """Return an HTML document in which a reader writes text with the model, without a server or network.

    It starts with the temperature, filters, seed and length of `params`. `example` fits the window: its views open on
    it, and it starts to write from the first words. `learning` is of `learning_of`.
    """
    if changes := changes_for(model.config, COVERED, NAMES):
        raise InputError(f"a page does not compute this model; train one with {' '.join(changes)}")
    page_tokenizer = _page_tokenizer(tokenizer)
    if weights == "int8" and weights_format(model) != "int8":
        model = quantize(model, "int8")
    tensors, content = _pack(model, weights)
    if len(content) > MAX_BYTES:
        raise InputError(
            f"a browser reads at most {MAX_BYTES / 1e6:,.0f} MB of weights from a page, and these have "
            f"{len(content) / 1e6:,.0f}; use --weights int8, or --to hf"
        )
    config = model.config
    data = {
        "config": sizes_of(config),
        "tensors": tensors,
        "tokenizer": page_tokenizer,
        "labels": labels_of(tokenizer, range(model.vocab_size)),
        "facts": {
            "block_size": config.block_size,
            "token": kind_of(tokenizer),
            "vocab_size": tokenizer.vocab_size,
            "example": example,
            "sample": {name: getattr(params, name) for name in ("temperature", *FILTERS)},
        },
        "filters": {name: SampleConfig.model_json_schema()["properties"][name] for name in FILTERS},
        "start": {"count": params.max_new_tokens, "seed": params.seed},
        "learning": learning,
    }
    return render_document(
        MODEL, data, title=title, note=note, weights=base64.b64encode(content).decode()
    )


def not_in_page(params: SampleConfig) -> list[str]:
    """Return the sampling defaults, as sample.KEY=VALUE, that a page has no place for."""
    return unknown_defaults(params, {"max_new_tokens", "temperature", "seed", *FILTERS})


def learning_of(run: RunFolder, config: Config, end: int) -> dict[str, Any] | None:
    """Return how a run learned up to step `end`: facts and snapshots, but for attention; None where it kept none."""
    read = {
        step: read_snapshot(file) for step, file in step_files(run.snapshots).items() if step <= end
    }
    if len(read) < 2:
        return None
    last = max(read)
    views = {
        step: {**view_snapshot(step, shown, read[last]), "attention": None}
        for step, shown in read.items()
    }
    facts = {
        "name": run.path.name,
        "training": False,
        "step": last,
        "max_steps": config.train.max_steps,
    }
    kind = {"tokenizer": config.data.tokenizer, "best_val_loss": None}
    return {"run": {**facts, **kind, "snapshots": sorted(read)}, "snapshots": views}


def _page_tokenizer(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return what the page's tokenizer is made from."""
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
    literal = [token["content"] for token in added]
    merges = merges_of(content)
    return {
        "type": "bpe",
        "symbols": byte_symbols(),
        "tokens": tokens,
        "merges": merges,
        "added": literal,
    }


def _pack(model: GPT, weights: str) -> tuple[list[dict[str, Any]], bytes]:
    """Return an index of all tensors, and their bytes; a tied head is left out, since it is the embedding."""
    index: list[dict[str, Any]] = []
    content = bytearray()
    for name, tensor, scales in _tensors(model):
        kind = "int8" if scales is not None else "float32" if weights == "float32" else "fp16"
        index.append(
            {"name": name, "shape": list(tensor.shape), "format": kind, "offset": len(content)}
        )
        content += _to_bytes(name, tensor, kind)
        if scales is not None:
            content += _to_bytes(name, scales, "float32")
    return index, bytes(content)


def _tensors(model: GPT) -> Iterator[tuple[str, Tensor, Tensor | None]]:
    """Yield name, values and, for int8 values, scales (rows, 1); weights quantized to other formats as floats."""
    for name, module in model.named_modules():
        if isinstance(module, QuantizedLinear) and module.bits == 8:
            yield f"{name}.weight", module.integers, module.scales
        elif name == "lm_head" and model.config.tie_weights:
            continue
        elif isinstance(weight := getattr(module, "weight", None), Tensor):
            yield f"{name}.weight", weight, None
        if isinstance(bias := getattr(module, "bias", None), nn.Parameter):
            yield f"{name}.bias", bias, None


def _to_bytes(name: str, tensor: Tensor, kind: str) -> bytes:
    """Return the values as little-endian bytes, row by row."""
    dtype = {"int8": torch.int8, "fp16": torch.float16, "float32": torch.float32}[kind]
    values = tensor.detach().cpu().to(dtype)
    if not values.isfinite().all():
        raise InputError(
            f"{name} has values that are not finite in {kind}; the page would not work"
        )
    array = values.contiguous().numpy()
    return array.astype(array.dtype.newbyteorder("<")).tobytes()
