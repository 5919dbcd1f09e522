"""Follow one text through a model, from its characters to the next one, on a Markdown page with real numbers."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import count

import torch
from torch import Tensor

from gpt.data.tokenizers import Tokenizer
from gpt.inspection.rendering.markdown import code, markdown_table, times
from gpt.inspection.tracing.activation_cache import ActivationCache, run_with_cache
from gpt.inspection.tracing.shape_trace import TensorRow, trace_shapes
from gpt.inspection.views.lens import lens_rows, logit_lens
from gpt.inspection.views.tokens import labels_of, most_likely
from gpt.model import GPT

SHOWN = 6
"""Number of printed elements of a vector."""
MATRIX = 8
"""Longest text whose attention matrices are printed."""


@torch.no_grad()
def walk_page(model: GPT, tokenizer: Tokenizer, idx: Tensor) -> str:
    """Return the page for a few ids (T,) and a model in eval mode."""
    batch = idx.unsqueeze(0)
    _, cache = run_with_cache(model, batch)
    rows, labels = trace_shapes(model, batch), labels_of(tokenizer, idx.tolist())
    sections = [
        *_input(rows, labels, idx),
        *_embeddings(rows, cache, labels),
        *_attention(rows, cache, labels),
        *_norm(rows, cache),
        *_feed_forward(rows, cache),
        *_stack(model, batch, tokenizer),
        *_head(rows, cache, tokenizer),
        *_indexing(cache, labels),
    ]
    return "\n".join(_numbered(sections)) + "\n"


def _numbered(sections: Iterable[str]) -> Iterator[str]:
    """Yield the page's sections, which depend on the model, with headings numbered from 1."""
    numbers = count(1)
    for section in sections:
        yield f"## {next(numbers)}. {section[3:]}" if section.startswith("## ") else section


def _input(rows: Sequence[TensorRow], labels: Sequence[str], idx: Tensor) -> Iterator[str]:
    yield "## Characters to ids\n"
    yield "The tokenizer gives each character a number; that is all the model ever sees of it.\n"
    yield _table(
        ("position", *map(str, range(len(labels)))),
        [("character", *map(code, labels)), ("id", *map(str, idx.tolist()))],
    )
    yield _shapes(rows, "idx")


def _embeddings(rows: Sequence[TensorRow], cache: ActivationCache, labels: Sequence[str]) -> Iterator[str]:
    yield "## Ids to vectors\n"
    yield "Each id selects a row of a table. The vector of a character is the same at every position.\n"
    yield _shapes(rows, "wte")
    yield _vector(f"{code(labels[-1])}, the last character", cache["hook_embed"][0, -1])
    if "hook_pos_embed" not in cache:
        yield "Positions come in later: queries and keys are rotated by their position.\n"
        return
    yield "## Adding positions\n"
    yield "A second vector encodes the position; the two are added. From here on this is the residual stream.\n"
    yield _shapes(rows, "wpe", "arange")
    yield _vector(f"position {len(labels) - 1}", cache["hook_pos_embed"][0, -1])
    yield _vector("the sum, which enters block 0", cache["resid_pre", 0][0, -1])


def _attention(rows: Sequence[TensorRow], cache: ActivationCache, labels: Sequence[str]) -> Iterator[str]:
    yield "## Attention, in block 0\n"
    yield (
        "Every position asks a question (its query), offers a description (its key) and has something to say (its "
        "value).\nHeads do this in parallel, each with a part of the width.\n"
    )
    yield _shapes(rows, "h.0.attn")
    if len(labels) <= MATRIX:
        yield "The scores of head 0: how well each query (row) fits each key (column). Later positions are `-inf`.\n"
        yield _matrix(cache["attn_scores", 0][0, 0], labels)
        yield "Softmax turns every row into a distribution: it sums to 1, and later positions get 0:\n"
        yield _matrix(cache["pattern", 0][0, 0], labels)
    yield "Each query then averages the values with these weights, and a projection mixes the heads.\n"
    yield _vector("output of attention at the last position", cache["attn_out", 0][0, -1])


def _norm(rows: Sequence[TensorRow], cache: ActivationCache) -> Iterator[str]:
    yield "## Normalization\n"
    before, after = cache["resid_pre", 0][0, -1], cache["blocks.0.ln1.hook_normalized"][0, -1]
    yield (
        "Before attention and before the feed-forward network every position is brought to one scale, by itself. At "
        f"the\nlast position the root of the mean square is {_rms(before)} before and {_rms(after)} after `ln_1`, "
        "gain and bias included.\n"
    )
    yield _shapes(rows, "h.0.ln_1")


def _feed_forward(rows: Sequence[TensorRow], cache: ActivationCache) -> Iterator[str]:
    yield "## The feed-forward network, in block 0\n"
    if "blocks.0.mlp.hook_post" in cache:
        hidden = cache["mlp.hook_post", 0][0, -1]
        yield (
            "Each position alone: to the hidden width, through the activation, and back. At the last position "
            f"{100 * float((hidden > 0).float().mean()):.1f} % of {hidden.numel()} hidden units are above zero.\n"
        )
    yield _shapes(rows, "h.0.mlp", "h.0.add")
    yield _vector("its output at the last position", cache["mlp_out", 0][0, -1])


def _stack(model: GPT, batch: Tensor, tokenizer: Tokenizer) -> Iterator[str]:
    yield "## Block by block\n"
    yield "What the model would predict if it stopped there (the logit lens), and the probability of its answer:\n"
    probabilities = logit_lens(model, batch)[:, 0, -1].softmax(dim=-1)
    answer = int(probabilities[-1].argmax())
    lines = [
        (name, *_most_likely(row, tokenizer, 1), f"{float(row[answer]):.2f}")
        for name, row in zip(lens_rows(model.config.n_layer), probabilities, strict=True)
    ]
    yield _table(("after", "most likely", code(labels_of(tokenizer, [answer])[0])), lines)


def _head(rows: Sequence[TensorRow], cache: ActivationCache, tokenizer: Tokenizer) -> Iterator[str]:
    yield "## Vectors to a character\n"
    yield "The last vector is compared with one vector per id. The scores are the logits.\n"
    yield _shapes(rows, "ln_f", "lm_head", "softcap")
    last = cache["logits"][0, -1]
    yield "Softmax turns them into probabilities; a temperature below 1 sharpens them, one above 1 flattens them:\n"
    lines = [
        (f"{temperature:g}", *_most_likely((last / temperature).softmax(-1), tokenizer, 2))
        for temperature in (1, 0.5, 2)
    ]
    yield _table(("temperature", "first", "second"), lines)
    yield "One token is sampled and appended to the text, and everything starts again.\n"


def _indexing(cache: ActivationCache, labels: Sequence[str]) -> Iterator[str]:
    weights = cache["pattern", 0]
    i, j = len(labels) - 1, max(0, len(labels) - 2)
    last = code(labels[i])
    yield "## Reading an attention tensor\n"
    yield f"`weights = cache['pattern', 0]` has shape {times(weights.shape)}: batch, heads, queries, keys.\n"
    lines = [
        ("`weights[0, 0]`", times(weights[0, 0].shape), "the matrix of head 0"),
        ("`weights[0, :, -1]`", times(weights[0, :, -1].shape), "weights of all heads at the last position"),
        (f"`weights[0, 0, {i}]`", times(weights[0, 0, i].shape), f"weights of the query {last}; sums to 1"),
        (f"`weights[0, 0, {i}, {j}]`", f"{float(weights[0, 0, i, j]):.3f}", f"from {last} to {code(labels[j])}"),
    ]
    yield _table(("tensor", "shape or value", "meaning"), lines)
    yield (
        "Nothing attends ahead: the mask is applied to the scores, before the softmax, and one position too many would "
        "let the\nmodel copy its answer."
    )


def _shapes(rows: Sequence[TensorRow], *prefixes: str) -> str:
    lines = []
    for row in rows:
        if row.name.startswith(prefixes):
            module = row.name.rsplit(".", 1)[0] + "."
            reads = [f"`{use.name.removeprefix(module)}` {times(use.shape)}" for use in row.parameters]
            lines.append((f"`{row.name}`", row.about, row.symbols, times(row.shape), ", ".join(reads)))
    return _table(("tensor", "what it is", "axes", "shape", "reads"), lines)


def _matrix(values: Tensor, labels: Sequence[str]) -> str:
    lines = [(code(label), *map(_decimals, row)) for label, row in zip(labels, values.tolist(), strict=True)]
    return _table(("", *map(code, labels)), lines)


def _vector(name: str, values: Tensor) -> str:
    numbers = ", ".join(map(_decimals, values[:SHOWN].tolist()))
    return f"- {name}: [{numbers}, ...], {values.numel()} numbers\n"


def _most_likely(probabilities: Tensor, tokenizer: Tokenizer, tokens: int) -> list[str]:
    """Return the most likely tokens of a distribution (V,), with their probabilities."""
    (alternatives,) = most_likely(probabilities.unsqueeze(0), tokens)
    labels = labels_of(tokenizer, [index for index, _ in alternatives])
    return [f"{code(label)} {p:.2f}" for label, (_, p) in zip(labels, alternatives, strict=True)]


def _table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return markdown_table(header, lines) + "\n"


def _decimals(value: float) -> str:
    return f"{round(value, 2) + 0.0:.2f}"  # no minus before a zero


def _rms(x: Tensor) -> str:
    return f"{float(x.square().mean().sqrt()):.2f}"
