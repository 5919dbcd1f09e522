import pytest

from gpt.inspection.tracing.operation_descriptions import describe
from gpt.inspection.tracing.recorder import Operation
from gpt.inspection.tracing.shape_trace import trace_shapes
from inspection.variants import every_variant, some_ids
from tiny import sharp_model


def operation(module: str, function: str, *inputs: int, caller: str = "") -> Operation:
    return Operation(module, function, caller, (2,), "float32", 8, False, 0, (), inputs)


def test_a_subject_is_handed_on_until_a_new_one_begins() -> None:
    steps = [
        (operation("", "idx", caller="GPT.forward"), "token ids"),
        (operation("wte", "embedding", 0), "token embeddings: one row of the table per id"),
        (operation("h.0.attn.c_q", "linear", 1), "queries, projected"),
        (operation("h.0.attn", "view", 2, caller="_split_heads"), "queries, cut into heads"),
        (operation("h.0.attn.c_proj", "linear", 3), "attention's output, projected back to the stream's width"),
        (operation("h.0", "add", 1, 4, caller="Block.forward"), "attention's output added to the residual stream"),
        (operation("h.0.ln_2", "layer_norm", 5), "residual stream, normalized"),
        (operation("h.0.mlp.c_proj", "linear", 6), "feed-forward output, projected back to the stream's width"),
        (operation("lm_head", "linear", 7), "logits: a score for every id"),
    ]
    assert describe([step for step, _ in steps]) == [words for _, words in steps]


def test_an_operation_without_words_is_named() -> None:
    assert describe([operation("", "frobnicate")]) == ["tensor: frobnicate"]
    assert describe([operation("lm_head", "linear"), operation("", "sin", 0)])[1] == "logits: sin"


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


@every_variant
def test_queries_keys_and_values_are_not_mixed_up(variant: dict[str, object]) -> None:
    for row in trace_shapes(sharp_model(**variant), some_ids()):
        for letter, word in (("q", "queries"), ("k", "keys"), ("v", "values")):
            if f"c_{letter}." in row.name or f"{letter}_norm." in row.name:
                assert row.about.startswith(word)
