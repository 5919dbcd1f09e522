import json
import math
from collections.abc import Callable
from functools import partial

import pytest
import torch

from gpt.config import SamplingParams
from gpt.data.tokenizers import CharTokenizer
from gpt.errors import InputError
from gpt.inspection.tracing.activation_cache import run_with_cache
from gpt.inspection.tracing.edits import zero
from gpt.inspection.views.attention import ablate_heads, attention_patterns, attention_view
from gpt.inspection.views.lens import lens_view
from gpt.inspection.views.surprisal import describe_sampling, surprisal, surprisal_view
from gpt.inspection.views.tokens import View
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


@torch.no_grad()
def test_surprisal() -> None:
    """-log2 of the model's probabilities; the two most likely tokens, sharpened by temperature 1/2."""
    model, params = sharp_model(), SamplingParams(temperature=0.5, top_k=2)
    view = surprisal_view(model, TOKENIZER, IDS, params, count=4)
    logits = model(IDS[None, :-1])[0]
    bits = -logits.log_softmax(-1).gather(1, IDS[1:, None]).squeeze(1) / math.log(2)
    assert view["labels"] == LABELS
    assert view["bits"] == [None, *(pytest.approx(value, rel=1e-4) for value in bits.tolist())]
    assert view["mean_bits"] == pytest.approx(float(bits.mean()))
    assert view["before"][0] == view["after"][0] == []
    for entry, row in enumerate(logits, start=1):
        best = row.sort(descending=True)
        names = [NAMES[index] for index in best.indices]
        sampled = row[: TOKENIZER.vocab_size].sort(descending=True)  # ids beyond have no text
        kept = (sampled.values[:2] * 2).softmax(-1).tolist()
        before = row.softmax(-1)[best.indices][:4].tolist()
        kept_names = [NAMES[index] for index in sampled.indices]
        for name, labels, expected in (("before", names, before), ("after", kept_names, kept)):
            probabilities = [pytest.approx(p, rel=1e-4) for p in expected]
            assert view[name][entry] == list(zip(labels, probabilities, strict=False))
    assert view["settings"] == "temperature 0.5, top-k 2"
    assert json.loads(json.dumps(view))["bits"] == view["bits"]


@pytest.mark.parametrize("look", [attention_view, lens_view, partial(surprisal_view, params=SamplingParams(top_k=2))])
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
    edited = surprisal_view(model, TOKENIZER, IDS, SamplingParams(), edits=edits)
    assert edited["mean_bits"] == surprisal(model, IDS, edits=edits).mean_bits
    for look in (attention_view, lens_view):
        with pytest.raises(InputError, match="more than the limit of 100"):
            look(model, TOKENIZER, IDS, memory_limit=100)


def test_more_alternatives_than_ids_are_all_of_them() -> None:
    assert len(lens_view(sharp_model(), TOKENIZER, IDS, count=99)["top"][0][0]) == 23
    assert len(surprisal_view(sharp_model(), TOKENIZER, IDS, SamplingParams(), count=99)["before"][1]) == 23


def test_one_token_has_nothing_after_it() -> None:
    view = lens_view(sharp_model(), TOKENIZER, IDS[:1])
    assert view["next"] == [None]
    assert view["next_probability"] == [[None]] * 3
    assert attention_view(sharp_model(), TOKENIZER, IDS[:1])["weights"].tolist() == [[[[1.0]]] * 4] * 2


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "temperature 0.8"),
        ({"temperature": 0.0}, "temperature 0"),
        (
            {"temperature": 1, "top_k": 5, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.2},
            "temperature 1, top-k 5, top-p 0.9, min-p 0.05, repetition penalty 1.2",
        ),
    ],
)
def test_settings_in_words(settings: dict[str, float], words: str) -> None:
    assert describe_sampling(SamplingParams.model_validate(settings)) == words
