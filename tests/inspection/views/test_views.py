import json
from collections.abc import Callable

import pytest
import torch

from gpt.data.tokenizers import CharTokenizer
from gpt.inspection.tracing.activation_cache import run_with_cache
from gpt.inspection.tracing.edits import zero
from gpt.inspection.views.attention import ablate_heads, attention_patterns, attention_view
from gpt.inspection.views.lens import lens_view
from gpt.inspection.views.surprisal import surprisal
from gpt.inspection.views.tokens import View
from gpt.system.errors import InputError
from tiny import sharp_model

TOKENIZER = CharTokenizer("\n abcdefghijklmnopqr")  # 20, of a model with 23 ids
TEXT = "a bad face\nbed"
IDS = torch.as_tensor(TOKENIZER.encode(TEXT)).long()
LABELS = ["a", "␣", "b", "a", "d", "␣", "f", "a", "c", "e", "⏎", "b", "e", "d"]
NAMES = ["⏎", "␣", *"abcdefghijklmnopqr", "#20", "#21", "#22"]


@torch.no_grad()
def test_attention() -> None:
    """The first block's weights by hand: softmax(q k^T / sqrt(D)) of what is before each query."""
    model = sharp_model()
    view = attention_view(model, TOKENIZER, IDS)
    assert view["labels"] == LABELS
    block, positions = model.h[0], torch.arange(14)
    x = block.ln_1(model.wpe(model.wte(IDS[None]), positions[None]))[0]
    q, k = (linear(x).view(14, 4, 8).transpose(0, 1) for linear in (block.attn.c_q, block.attn.c_k))
    scores = (q @ k.mT / 8**0.5).masked_fill(positions[:, None] < positions, float("-inf"))
    torch.testing.assert_close(view["weights"][0], scores.softmax(-1))


@torch.no_grad()
def test_lens() -> None:
    """The last row is the model's own prediction; the first one is made of the embeddings alone."""
    model = sharp_model()
    view = lens_view(model, TOKENIZER, IDS, count=3)
    embeddings = model.wpe(model.wte(IDS[None]), torch.arange(14)[None])
    expected = {0: model.lm_head(model.ln_f(embeddings))[0].softmax(-1), 2: model(IDS[None])[0].softmax(-1)}
    assert (view["labels"], view["rows"]) == (LABELS, ["embeddings", "block 0", "block 1"])
    assert view["next"] == [*LABELS[1:], None]
    for row, probabilities in expected.items():
        assert view["next_probability"][row][-1] is None
        for position in range(14):
            ranked = probabilities[position].sort(descending=True)
            assert [name for name, _ in view["top"][row][position]] == [NAMES[index] for index in ranked.indices[:3]]
            shown = [probability for _, probability in view["top"][row][position]]
            assert shown == pytest.approx(ranked.values[:3].tolist(), rel=1e-4)
            if position < 13:
                came = float(probabilities[position, IDS[position + 1]])
                assert view["next_probability"][row][position] == pytest.approx(came, rel=1e-4)
    assert json.loads(json.dumps(view))["next"] == view["next"]


@pytest.mark.parametrize("look", [attention_view, lens_view])
@pytest.mark.parametrize("factor", [float("nan"), 1e38])
def test_values_that_are_not_finite_are_told(look: Callable[..., View], factor: float) -> None:
    edits = {"blocks.0.hook_resid_pre": lambda x: (x * factor * 10).cumsum(-1)}
    with pytest.raises(InputError, match="not finite: an edit is too strong"):
        look(sharp_model(), TOKENIZER, IDS, edits=edits)


def test_ids_may_be_int32() -> None:
    model = sharp_model()
    assert lens_view(model, TOKENIZER, IDS.int()) == lens_view(model, TOKENIZER, IDS)
    assert torch.equal(surprisal(model, IDS.int()).bits, surprisal(model, IDS).bits)
    torch.testing.assert_close(ablate_heads(model, IDS.int()), ablate_heads(model, IDS))


@pytest.mark.parametrize(
    ("look", "fewest"), [(attention_patterns, "1 token"), (ablate_heads, "2 tokens"), (surprisal, "2 tokens")]
)
def test_anything_but_one_text_of_enough_tokens_is_refused(look: Callable[..., object], fewest: str) -> None:
    with pytest.raises(InputError, match=rf"{look.__name__} takes one text, ids of shape \(T,\), not \(2, 14\)"):
        look(sharp_model(), IDS[None].repeat(2, 1))
    with pytest.raises(InputError, match=f"{look.__name__} needs a text of at least {fewest}, got 0"):
        look(sharp_model(), IDS[:0])


def test_edits_and_limits_are_handed_on() -> None:
    model, edits = sharp_model(), {"blocks.1.attn.hook_z": zero()}
    assert lens_view(model, TOKENIZER, IDS, edits=edits)["top"][2] != lens_view(model, TOKENIZER, IDS)["top"][2]
    early = {"blocks.0.attn.hook_z": zero()}
    _, cache = run_with_cache(model, IDS[None], "blocks.*.attn.hook_pattern", early)
    assert torch.equal(attention_view(model, TOKENIZER, IDS, early)["weights"], torch.cat(list(cache.values())))
    for look in (attention_view, lens_view):
        with pytest.raises(InputError, match="more than the limit of 100"):
            look(model, TOKENIZER, IDS, memory_limit=100)


def test_more_alternatives_than_ids_are_all_of_them() -> None:
    assert len(lens_view(sharp_model(), TOKENIZER, IDS, count=99)["top"][0][0]) == 23
    assert len(surprisal(sharp_model(), IDS).alternatives(99)[0]) == 23


def test_one_token_has_nothing_after_it() -> None:
    view = lens_view(sharp_model(), TOKENIZER, IDS[:1])
    assert view["next"] == [None]
    assert view["next_probability"] == [[None]] * 3
    assert attention_view(sharp_model(), TOKENIZER, IDS[:1])["weights"].tolist() == [[[[1.0]]] * 4] * 2
