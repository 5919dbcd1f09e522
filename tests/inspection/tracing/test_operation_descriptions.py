import pytest

from gpt.inspection.tracing.operation_descriptions import describe
from gpt.inspection.tracing.recorder import Operation
from gpt.inspection.tracing.shape_trace import trace_cached, trace_shapes
from inspection.variants import VARIANTS, every_variant, some_ids
from tiny import sharp_model


def operation(module: str, function: str, *inputs: int, caller: str = "") -> Operation:
    return Operation(module, function, caller, "", (2,), "float32", 8, False, 0, (), inputs)


def test_a_subject_is_handed_on_until_a_new_one_begins() -> None:
    words = describe(
        [
            operation("", "idx", caller="GPT.forward"),
            operation("wte", "embedding", 0),
            operation("h.0.attn.c_q", "linear", 1),
            operation("h.0.attn", "view", 2, caller="_split_heads"),
            operation("h.0.attn.c_proj", "linear", 3),
            operation("h.0", "add", 1, 4, caller="Block.forward"),
            operation("h.0.ln_2", "layer_norm", 5),
            operation("h.0.mlp.c_proj", "linear", 6),
            operation("lm_head", "linear", 7),
        ]
    )
    assert words == [
        "token ids",
        "token embeddings: one row of the table per id",
        "queries, projected",
        "queries, cut into heads",
        "attention's output, projected back to the stream's width",
        "attention's output added to the residual stream",
        "residual stream, normalized",
        "feed-forward output, projected back to the stream's width",
        "logits: a score for every id",
    ]


def test_an_operation_without_words_is_named() -> None:
    assert describe([operation("", "frobnicate")]) == ["tensor: frobnicate"]
    assert describe([operation("lm_head", "linear"), operation("", "sin", 0)])[1] == "logits: sin"


def test_what_is_written_into_a_cache_is_the_value() -> None:
    keys, store = operation("h.0.attn.c_k", "linear"), operation("", "zeros")
    written = operation("h.0.attn", "setitem", 1, 0, caller="FloatStore.write")
    assert describe([keys, store, written])[2] == "keys, written into the cache"


def bare(rows: list[object]) -> list[str]:
    """Rows whose words are only the function's name, or that are about nothing in particular."""
    return [
        row.name
        for row in rows
        if row.about.endswith(f": {row.name.rsplit('.', 1)[-1].rstrip('_0123456789')}")
        or row.about.startswith("tensor")
    ]


@every_variant
@pytest.mark.parametrize("length", [1, 7])
def test_every_tensor_of_every_model_has_words(variant: dict[str, object], length: int) -> None:
    assert bare(trace_shapes(sharp_model(**variant), some_ids(2, length))) == []


@pytest.mark.parametrize("variant", [VARIANTS["gpt2"], VARIANTS["llama"]], ids=["gpt2", "llama"])
@pytest.mark.parametrize("kv_dtype", ["fp32", "bf16", "fp16", "int8"])
def test_every_tensor_of_a_cached_pass_has_words(variant: dict[str, object], kv_dtype: str) -> None:
    prefill, decode = trace_cached(sharp_model(**variant), some_ids(), kv_dtype)
    assert bare(prefill) == bare(decode) == []


@every_variant
def test_queries_keys_and_values_are_not_mixed_up(variant: dict[str, object]) -> None:
    for row in trace_shapes(sharp_model(**variant), some_ids()):
        for letter, word in (("q", "queries"), ("k", "keys"), ("v", "values")):
            if f"c_{letter}." in row.name or f"{letter}_norm." in row.name:
                assert row.about.startswith(word)
