"""The shapes of a forward pass against a specification and formulas, and the recorder that they
come from.
"""

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from gpt.config.sources import load_config
from gpt.extras.inspection.tracing.shape_trace import trace_shapes
from gpt.model import GPT
from gpt.model.flops import forward_flops
from gpt.system.errors import InputError
from inspection.variants import VARIANTS, every_variant, some_ids, state_of
from tiny import sharp_model

VIEWING = ("view", "transpose", "unsqueeze", "chunk", "expand")
ROOT = Path(__file__).resolve().parents[3]
BEFORE = [
    ("token ids", "B T", (1, 7)),
    ("token embeddings: one row of the table per id", "B T C", (1, 7, 64)),
    ("position vectors: one row of the table per position", "T C", (7, 64)),
    ("residual stream: embeddings plus positions", "B T C", (1, 7, 64)),
]
BLOCK = [
    ("residual stream, normalized", "B T C", (1, 7, 64)),
    ("queries, projected", "B T C", (1, 7, 64)),
    ("queries, cut into heads", "B T H D", (1, 7, 4, 16)),
    ("queries, heads before positions", "B H T D", (1, 4, 7, 16)),
    ("keys, projected", "B T C", (1, 7, 64)),
    ("keys, cut into heads", "B T H D", (1, 7, 4, 16)),
    ("keys, heads before positions", "B H T D", (1, 4, 7, 16)),
    ("values, projected", "B T C", (1, 7, 64)),
    ("values, cut into heads", "B T H D", (1, 7, 4, 16)),
    ("values, heads before positions", "B H T D", (1, 4, 7, 16)),
    ("causal mask, for all rows and heads alike", "1 1 T S", (1, 1, 7, 7)),
    ("keys, transposed", "B H D T", (1, 4, 16, 7)),
    ("scores: every query times every key", "B H T S", (1, 4, 7, 7)),
    ("scores, -inf where a query may not attend", "B H T S", (1, 4, 7, 7)),
    ("attention weights: softmax over the keys, rows sum to 1", "B H T S", (1, 4, 7, 7)),
    ("weighted sums of values, by head", "B H T D", (1, 4, 7, 16)),
    ("weighted sums of values, heads after positions", "B T H D", (1, 7, 4, 16)),
    ("weighted sums of values, heads side by side", "B T C", (1, 7, 64)),
    ("attention's output, projected back to the stream's width", "B T C", (1, 7, 64)),
    ("attention's output added to the residual stream", "B T C", (1, 7, 64)),
    ("residual stream, normalized", "B T C", (1, 7, 64)),
    ("hidden units, projected to the hidden width", "B T F", (1, 7, 256)),
    ("hidden units, through GELU", "B T F", (1, 7, 256)),
    ("feed-forward output, projected back to the stream's width", "B T C", (1, 7, 64)),
    ("feed-forward output added to the residual stream", "B T C", (1, 7, 64)),
]
AFTER = [
    ("residual stream, normalized", "B T C", (1, 7, 64)),
    ("logits: a score for every id", "B T V", (1, 7, 20_000)),
]
SPECIFICATION = [*BEFORE, *BLOCK, *BLOCK, *AFTER]
"""Of 7 tokens through configs/reference_shapes.yaml, 2 blocks, in flow order."""


def test_reference_model_has_the_shapes_of_its_specification() -> None:
    with torch.device("meta"):
        model = GPT(load_config(ROOT / "configs" / "reference_shapes.yaml").config.model).eval()
        rows = trace_shapes(model, torch.zeros(1, 7, dtype=torch.long))
    known = {about for about, _, _ in SPECIFICATION}
    assert [
        (row.about, row.symbols, row.shape) for row in rows if row.about in known
    ] == SPECIFICATION


@every_variant
@pytest.mark.parametrize("length", [1, 7])
def test_rows_agree_with_the_model(variant: dict[str, object], length: int) -> None:
    """Its FLOPs, parameters and sizes; every row has a name of its own and words."""
    model = sharp_model(**variant)
    c = model.config
    rows = trace_shapes(model, some_ids(2, length))
    assert sum(row.flops for row in rows) == forward_flops(c, 2, length)
    assert len({row.name for row in rows}) == len(rows)
    linear = {
        f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Linear)
    }
    expected = [
        (f"{name}.T", tuple(parameter.shape)[::-1])
        if name in linear
        else (name, tuple(parameter.shape))
        for name, parameter in model.named_parameters()
    ]
    tied = [("wte.weight.T", (32, 23))] if c.tie_weights else []
    assert sorted((use.name, use.shape) for row in rows for use in row.parameters) == sorted(
        expected + tied
    )
    sizes = {
        "B": 2,
        "T": length,
        "S": length,
        "C": c.n_embd,
        "H": c.n_head,
        "K": c.kv_heads,
        "D": c.head_dim,
        "D/2": c.head_dim // 2,
        "K*D": c.kv_heads * c.head_dim,
        "F": c.mlp_hidden,
        "V": c.vocab_size,
        "block_size": c.block_size,
        "1": 1,
    }
    for row in rows:
        for symbols, shape in (
            (row.symbols, row.shape),
            *((use.symbols, use.shape) for use in row.parameters),
        ):
            assert tuple(sizes[letter] for letter in symbols.split()) == shape, row.name
        assert not row.about.endswith(f": {row.name.rsplit('.', 1)[-1].rstrip('_0123456789')}")
        assert not row.about.startswith("tensor")
        assert row.nbytes == math.prod(row.shape) * getattr(torch, row.dtype).itemsize
        if length > 1 and "getitem" not in row.name:  # which is a view of a slice only
            assert row.is_view == row.name.rpartition(".")[2].startswith(VIEWING), row.name
        for letter, word in (("q", "queries"), ("k", "keys"), ("v", "values")):
            if f"c_{letter}." in row.name or f"{letter}_norm." in row.name:
                assert row.about.startswith(word)
    with torch.device("meta"):
        assert trace_shapes(GPT(c).eval(), torch.zeros(2, length, dtype=torch.long)) == rows


@pytest.mark.parametrize("training", [False, True])
def test_trace_leaves_the_model_as_it_was(training: bool) -> None:
    model = sharp_model(**VARIANTS["grouped"]).train(training)
    before = state_of(model)
    logits = model(some_ids())
    trace_shapes(model, some_ids())
    with pytest.raises(InputError, match="outside the vocabulary"):
        trace_shapes(model, torch.full((1, 3), 23))
    assert state_of(model) == before
    assert torch.equal(model(some_ids()), logits)


def test_compiled_and_native_models_are_traced_as_written() -> None:
    model = sharp_model(dropout=0.1).train()
    idx = some_ids(1, 4)
    plain = trace_shapes(model, idx)
    for block in model.h:
        block.compile(backend="eager")
    with torch.no_grad():
        model(idx)
    assert trace_shapes(model, idx) == plain
