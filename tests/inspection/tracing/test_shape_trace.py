from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from gpt.accounting.flops import decode_flops, forward_flops
from gpt.cache import KVCache
from gpt.config import load_config
from gpt.errors import InputError
from gpt.inspection.tracing.shape_trace import TensorRow, trace_cached, trace_shapes
from gpt.kernels.training.block import replace_blocks
from gpt.model import GPT
from inspection.variants import VARIANTS, every_variant, some_ids, state_of
from tiny import sharp_model, tiny_config

ROOT = Path(__file__).resolve().parents[3]
REFERENCE = ROOT / "configs" / "reference_shapes.yaml"
NARROW = ("bf16", "fp16", "int8")
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
PARAMETERS = {
    "wte.weight": ("V C", (20_000, 64)),
    "wpe.weight": ("block_size C", (32, 64)),
    "ln_1.weight": ("C", (64,)),
    "ln_1.bias": ("C", (64,)),
    "c_q.weight.T": ("C C", (64, 64)),
    "c_k.weight.T": ("C C", (64, 64)),
    "c_v.weight.T": ("C C", (64, 64)),
    "attn.c_proj.weight.T": ("C C", (64, 64)),
    "ln_2.weight": ("C", (64,)),
    "ln_2.bias": ("C", (64,)),
    "c_fc.weight.T": ("C F", (64, 256)),
    "c_fc.bias": ("F", (256,)),
    "mlp.c_proj.weight.T": ("F C", (256, 64)),
    "ln_f.weight": ("C", (64,)),
    "ln_f.bias": ("C", (64,)),
    "lm_head.weight.T": ("C V", (64, 20_000)),
}


@pytest.fixture(scope="module")
def reference() -> list[TensorRow]:
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        return trace_shapes(GPT(load_config(REFERENCE).config.model).eval(), torch.zeros(1, 7, dtype=torch.long))


@pytest.fixture(scope="module", params=VARIANTS.values(), ids=VARIANTS.keys())
def traced(request: pytest.FixtureRequest) -> tuple[GPT, list[TensorRow]]:
    """A model of each variant, and its trace over ids (2, 7)."""
    with torch.random.fork_rng(devices=[]):
        model = sharp_model(**request.param)
    return model, trace_shapes(model, some_ids())


Traced = tuple[GPT, list[TensorRow]]


def test_the_reference_model_has_the_shapes_of_its_specification(reference: list[TensorRow]) -> None:
    known = {about for about, _, _ in SPECIFICATION}
    assert [(row.about, row.symbols, row.shape) for row in reference if row.about in known] == SPECIFICATION


def test_the_reference_model_reads_parameters_of_their_shapes(reference: list[TensorRow]) -> None:
    uses = [use for row in reference for use in row.parameters]
    for name, expected in PARAMETERS.items():
        found = [(use.symbols, use.shape) for use in uses if use.name.endswith(name)]
        assert found == [expected] * (2 if "_1." in name or "_2." in name or "c_" in name else 1), name


@every_variant
@pytest.mark.parametrize(("batch", "length"), [(2, 7), (1, 1), (3, 16)])
def test_flops_are_those_of_torch_and_of_the_formula(variant: dict[str, object], batch: int, length: int) -> None:
    model, counter = sharp_model(**{**variant, "attention": "reference"}), FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model(some_ids(batch, length))
    total = sum(row.flops for row in trace_shapes(model, some_ids(batch, length)))
    assert total == counter.get_total_flops() == forward_flops(model.config, batch, length)


def test_every_parameter_is_read_once_and_a_tied_one_twice(traced: Traced) -> None:
    model, rows = traced
    counts = [(use.name.removesuffix(".T"), use.count) for row in rows for use in row.parameters]
    expected = [(name, parameter.numel()) for name, parameter in model.named_parameters()]
    tied = [("wte.weight", 23 * 32)] if model.config.tie_weights else []
    assert sorted(counts) == sorted(expected + tied)


def test_symbols_say_the_size_of_every_dimension(traced: Traced) -> None:
    """No bare number but 1, and each letter means one size throughout."""
    model, rows = traced
    c = model.config
    sizes = {
        "B": 2, "T": 7, "S": 7, "C": c.n_embd, "H": c.n_head, "K": c.kv_heads, "D": c.head_dim,
        "D/2": c.head_dim // 2, "K*D": c.kv_heads * c.head_dim, "F": c.mlp_hidden, "V": c.vocab_size,
        "block_size": c.block_size, "1": 1, "W": c.mlp_conv or 1, "T+W-1": 6 + (c.mlp_conv or 1),
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


def test_rows_say_how_much_memory_they_take(traced: Traced) -> None:
    sizes = {"int64": 8, "float32": 4, "bool": 1}
    for row in traced[1]:
        assert row.nbytes == torch.Size(row.shape).numel() * sizes[row.dtype], row.name
        function = row.name.rsplit(".", 1)[-1].rstrip("_0123456789")
        if function in ("transpose", "view", "chunk"):
            assert row.is_view, row.name
        if function in ("matmul", "linear", "softmax", "add", "layer_norm", "rms_norm", "repeat_interleave", "flatten"):
            assert not row.is_view, row.name


def test_names_are_unique_and_sources_exist(traced: Traced) -> None:
    rows = traced[1]
    assert len({row.name for row in rows}) == len(rows)
    assert rows[0].source == ""  # the ids come from outside
    for row in rows[1:]:
        file, line = row.source.split(":")
        assert file.startswith("gpt/model/")
        assert int(line) <= len((ROOT / file).read_text(encoding="utf-8").splitlines())


def test_what_does_not_lead_to_the_logits_is_left_out(traced: Traced) -> None:
    """The check of the ids takes their smallest and largest; scores and weights of a fused core are not made."""
    functions = {row.name.rsplit(".", 1)[-1] for row in traced[1]}
    assert not {"aminmax", "unbind", "scaled_dot_product_attention"} & functions


def test_blocks_are_alike_but_for_their_number() -> None:
    rows = trace_shapes(sharp_model(n_layer=3), some_ids())
    blocks = [
        [
            replace(row, layer=0, name=row.name.removeprefix(f"h.{layer}."), parameters=(), inputs=())
            for row in rows
            if row.layer == layer
        ]
        for layer in range(3)
    ]
    assert blocks[0] == blocks[1] == blocks[2] != []


@pytest.mark.parametrize("variant", ["capped", "fused"])
@pytest.mark.parametrize("training", [False, True])
def test_the_model_is_left_as_it_was(variant: str, training: bool) -> None:
    model = sharp_model(**VARIANTS[variant]).train(training)
    before, logits = state_of(model), model(some_ids())
    trace_shapes(model, some_ids())
    trace_cached(model, some_ids())
    assert state_of(model) == before
    assert torch.equal(model(some_ids()), logits)


def test_the_model_is_left_as_it_was_after_an_error() -> None:
    model = sharp_model()
    before = state_of(model)
    with pytest.raises(InputError, match="outside the vocabulary"):
        trace_shapes(model, torch.full((1, 3), 23))
    assert state_of(model) == before


@pytest.mark.parametrize(
    ("variant", "kv_dtype"),
    [(name, "fp32") for name in VARIANTS] + [(name, other) for name in ("gpt2", "llama") for other in NARROW],
)
def test_a_cached_pass_writes_and_reads_the_cache(variant: str, kv_dtype: str) -> None:
    model = sharp_model(**VARIANTS[variant])
    heads, count = ("K", model.config.kv_heads) if model.config.kv_heads < 4 else ("H", 4)
    kept = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "int8"}[kv_dtype]
    prefill, decode = trace_cached(model, some_ids(), kv_dtype)
    for rows, ids, scores, keys in (
        (prefill, (2, 6), ("B H T S", (2, 4, 6, 6)), (f"B {heads} T D", (2, count, 6, 8))),
        (decode, (2, 1), ("B H 1 S", (2, 4, 1, 7)), (f"B {heads} S D", (2, count, 7, 8))),
    ):
        assert rows[0].shape == ids
        written = [row for row in rows if row.about.endswith("written into the cache") and row.shape[-1] == 8]
        assert [(row.dtype, row.shape) for row in written] == [(kept, (2, 2, count, 16, 8))] * 4  # k and v, 2 layers
        read = [row for row in rows if row.about == "keys so far, read from the cache" and row.shape[-1] == 8]
        assert [(row.symbols, row.shape, row.is_view) for row in read] == [(*keys, True)] * 2
        found = [(row.symbols, row.shape) for row in rows if row.about == "scores: every query times every key"]
        assert found == [scores] * 2
    assert sum(row.flops for row in prefill) == forward_flops(model.config, 2, 6)
    assert sum(row.flops for row in decode) == decode_flops(model.config, 2, 7)


def test_recording_a_cached_pass_changes_neither_logits_nor_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the model gives while it is recorded, against the plain passes."""
    model, idx, given, caches = sharp_model(**VARIANTS["llama"]), some_ids(), [], []

    class Watched(KVCache):
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **kwargs)  # type: ignore[arg-type]
            caches.append(self)

    def keep(module: object, inputs: object, output: Tensor) -> None:
        given.append(output.clone())

    monkeypatch.setattr("gpt.inspection.tracing.shape_trace.KVCache", Watched)
    with model.register_forward_hook(keep):
        trace_cached(model, idx)
    assert caches[0].lengths == [7, 7]
    plain = model(idx)
    torch.testing.assert_close(given[0], plain[:, :6], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(given[1], plain[:, 6:], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("idx", "words"),
    [
        (torch.zeros(1, 1, dtype=torch.long), "T at least 2"),
        (torch.zeros(1, 18, dtype=torch.long), "longer than block_size"),
        (torch.zeros(1, 17, dtype=torch.long), "do not fit into a cache of 16 positions"),
    ],
    ids=["1", "18", "17"],
)
def test_too_few_or_too_many_tokens_for_a_cache(idx: Tensor, words: str) -> None:
    with pytest.raises(InputError, match=words):
        trace_cached(sharp_model(), idx)


@pytest.mark.parametrize(
    "model",
    [
        lambda: sharp_model(dropout=0.1).train(),
        lambda: sharp_model().bfloat16(),
        lambda: sharp_model(position="rope").half(),
    ],
    ids=["training with dropout", "bfloat16", "float16"],
)
def test_a_model_in_another_mode_or_type_can_be_traced(model: Callable[[], GPT]) -> None:
    rows = trace_shapes(model(), torch.zeros(2, 5, dtype=torch.long))
    assert (rows[-1].symbols, rows[-1].shape, rows[-1].dtype) == ("B T V", (2, 5, 23), "float32")


@pytest.mark.parametrize("n_layer", [1, 2, 5])
def test_the_layers_of_a_cache_have_a_letter(n_layer: int) -> None:
    prefill, _ = trace_cached(sharp_model(n_layer=n_layer), torch.zeros(2, 6, dtype=torch.long))
    assert {row.symbols for row in prefill if len(row.shape) == 5} == {"L B H block_size D"}


def test_a_compiled_model_is_traced_as_written() -> None:
    model, idx = sharp_model(), some_ids(1, 4)
    plain = trace_shapes(model, idx)
    for block in model.h:
        block.compile(backend="eager")
    with torch.no_grad():
        model(idx)
    assert [trace_shapes(model, idx) for _ in range(2)] == [plain, plain]


def test_a_model_that_trains_by_native_kernels_is_traced_as_written() -> None:
    model, idx = sharp_model(dropout=0.1).train(), some_ids(1, 4)
    plain = trace_shapes(model, idx)
    replace_blocks(model, kernels=None)
    assert trace_shapes(model, idx) == plain
