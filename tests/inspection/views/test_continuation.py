import pytest
import torch

from gpt.data.tokenizers import CharTokenizer
from gpt.generation import generate
from gpt.inspection.tracing.activation_cache import run_with_cache
from gpt.inspection.tracing.edits import scale
from gpt.inspection.views.attention import without_heads
from gpt.inspection.views.continuation import continuation_view, greedy_continuation
from gpt.system.errors import InputError
from inspection.variants import every_variant, some_ids, state_of
from tiny import sharp_model

TOKENIZER = CharTokenizer("\n abcdefghijklmnopqrstu")


@every_variant
def test_it_is_what_generate_writes(variant: dict[str, object]) -> None:
    model, ids = sharp_model(**variant), some_ids(1, 5)[0]
    found, _ = greedy_continuation(model, ids, 11)
    text = generate(model, TOKENIZER, TOKENIZER.decode(ids.tolist()), max_new_tokens=11, temperature=0.0)
    assert TOKENIZER.decode(found.tolist()) == text


@torch.no_grad()
@pytest.mark.parametrize("length", [5, 14, 20])
def test_every_step_is_edited(length: int) -> None:
    """The window of 16 tokens fills and slides."""
    model, ids = sharp_model(), some_ids(1, length)[0]
    edits = {**without_heads([(1, 2), (0, 1), (1, 0)]), "blocks.0.hook_mlp_out": scale(0.5)}
    found, probabilities = greedy_continuation(model, ids, 8, edits)
    for token, probability in zip(found, probabilities, strict=True):
        logits, _ = run_with_cache(model, ids[None, -16:], names=[], edits=edits)
        likely = logits[0, -1].softmax(-1).max(-1)
        assert token == likely.indices
        assert probability == pytest.approx(float(likely.values), rel=1e-4)
        ids = torch.cat([ids, token[None]])
    assert not torch.equal(found, greedy_continuation(model, ids[:length], 8)[0])


def test_as_lists() -> None:
    model, ids = sharp_model(), some_ids(1, 4)[0]
    before = state_of(model)
    view = continuation_view(model, TOKENIZER, ids, 3)
    found, probabilities = greedy_continuation(model, ids, 3)
    assert view["ids"] == found.tolist()
    assert view["probabilities"] == probabilities.tolist()
    shown = {"\n": "⏎", " ": "␣"}
    assert view["labels"] == [shown.get(char, char) for char in TOKENIZER.decode(found.tolist())]
    assert state_of(model) == before


def test_values_that_are_not_finite_are_refused() -> None:
    edits = {"ln_final.hook_normalized": scale(float("inf"))}
    with pytest.raises(InputError, match="not finite"):
        greedy_continuation(sharp_model(), some_ids(1, 4)[0], 3, edits)
