from pathlib import Path

import pytest
import torch
from torch import nn

from gpt.accounting.flops import forward_flops
from gpt.config.sources import load_config
from gpt.inspection.tracing.shape_trace import TensorRow, trace_shapes
from gpt.kernels.training.block import replace_blocks
from gpt.model import GPT
from gpt.system.errors import InputError
from inspection.variants import VARIANTS, some_ids, state_of
from tiny import sharp_model, tiny_config

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


@pytest.fixture(scope="module", params=VARIANTS.values(), ids=VARIANTS.keys())
def traced(request: pytest.FixtureRequest) -> tuple[GPT, list[TensorRow]]:
    """A model of each variant, and its trace over ids (2, 7)."""
    with torch.random.fork_rng(devices=[]):
        model = sharp_model(**request.param)
    return model, trace_shapes(model, some_ids())


Traced = tuple[GPT, list[TensorRow]]


def test_the_reference_model_has_the_shapes_of_its_specification() -> None:
    with torch.device("meta"):
        model = GPT(load_config(ROOT / "configs" / "reference_shapes.yaml").config.model).eval()
        rows = trace_shapes(model, torch.zeros(1, 7, dtype=torch.long))
    known = {about for about, _, _ in SPECIFICATION}
    assert [(row.about, row.symbols, row.shape) for row in rows if row.about in known] == SPECIFICATION


def test_every_parameter_is_read_once_and_a_tied_one_twice_by_linear_layers_transposed(traced: Traced) -> None:
    model, rows = traced
    linear = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    expected = [
        (f"{name}.T", tuple(parameter.shape)[::-1]) if name in linear else (name, tuple(parameter.shape))
        for name, parameter in model.named_parameters()
    ]
    tied = [("wte.weight.T", (32, 23))] if model.config.tie_weights else []
    assert sorted((use.name, use.shape) for row in rows for use in row.parameters) == sorted(expected + tied)


def test_symbols_say_the_size_of_every_dimension(traced: Traced) -> None:
    """No bare number but 1, and each letter means one size throughout."""
    model, rows = traced
    c = model.config
    sizes = {
        "B": 2, "T": 7, "S": 7, "C": c.n_embd, "H": c.n_head, "K": c.kv_heads, "D": c.head_dim,
        "D/2": c.head_dim // 2, "K*D": c.kv_heads * c.head_dim, "F": c.mlp_hidden, "V": c.vocab_size,
        "block_size": c.block_size, "1": 1,
    }  # fmt: skip
    for row in rows:
        for symbols, shape in ((row.symbols, row.shape), *((use.symbols, use.shape) for use in row.parameters)):
            assert tuple(sizes[letter] for letter in symbols.split()) == shape, row.name


def test_sizes_that_are_equal_keep_their_own_letters() -> None:
    """2 rows, 2 tokens, 2 heads of 2, 4 wide, 4 hidden, 4 ids."""
    config = tiny_config(n_head=2, n_embd=4, mlp_width=4, vocab_size=4, block_size=4, n_layer=1)
    rows = {row.about: row for row in trace_shapes(GPT(config).eval(), torch.zeros(2, 2, dtype=torch.long))}
    for about, symbols, _ in SPECIFICATION:
        assert rows[about].symbols == symbols, about


def test_the_meta_device_gives_the_same_rows(traced: Traced) -> None:
    with torch.device("meta"):
        rows = trace_shapes(GPT(traced[0].config).eval(), torch.zeros(2, 7, dtype=torch.long))
    assert rows == traced[1]


def test_flops_are_those_of_the_formula(traced: Traced) -> None:
    model, rows = traced
    assert sum(row.flops for row in rows) == forward_flops(model.config, 2, 7)


def test_names_are_unique(traced: Traced) -> None:
    assert len({row.name for row in traced[1]}) == len(traced[1])


@pytest.mark.parametrize("variant", ["grouped", "fused"])
@pytest.mark.parametrize("training", [False, True])
def test_the_model_is_left_as_it_was(variant: str, training: bool) -> None:
    model = sharp_model(**VARIANTS[variant]).train(training)
    before, logits = state_of(model), model(some_ids())
    trace_shapes(model, some_ids())
    with pytest.raises(InputError, match="outside the vocabulary"):
        trace_shapes(model, torch.full((1, 3), 23))
    assert state_of(model) == before
    assert torch.equal(model(some_ids()), logits)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_of_another_type_can_be_traced(dtype: torch.dtype) -> None:
    rows = trace_shapes(sharp_model(position="rope").to(dtype), torch.zeros(2, 5, dtype=torch.long))
    assert (rows[-1].symbols, rows[-1].shape, rows[-1].dtype) == ("B T V", (2, 5, 23), "float32")


@pytest.mark.parametrize("kind", ["compiled", "native kernels"])
def test_a_model_that_runs_otherwise_is_traced_as_written(kind: str) -> None:
    model, idx = sharp_model(dropout=0.1).train(), some_ids(1, 4)
    plain = trace_shapes(model, idx)
    if kind == "compiled":
        for block in model.h:
            block.compile(backend="eager")
        with torch.no_grad():
            model(idx)
    else:
        replace_blocks(model, kernels=None)
    assert [trace_shapes(model, idx) for _ in range(2)] == [plain, plain]
