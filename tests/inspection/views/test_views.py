"""Attention, surprisal, continuations and labels, as numbers; what all views refuse; the text that
they open on.
"""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gpt.api.scoring import score_text
from gpt.data.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer
from gpt.extras.inspection.tracing.activation_cache import Edits, run_with_cache
from gpt.extras.inspection.tracing.edits import replace, scale, zero
from gpt.extras.inspection.views.attention import (
    HeadSummary,
    ablate_heads,
    attention_view,
    summarize_head,
    without_heads,
)
from gpt.extras.inspection.views.continuation import continuation_view, greedy_continuation
from gpt.extras.inspection.views.lens import lens_view
from gpt.extras.inspection.views.surprisal import surprisal
from gpt.extras.inspection.views.tokens import View, labels_of, one_character
from gpt.generation.generator import generate
from gpt.model import GPT
from gpt.system.errors import InputError
from inspection.variants import every_variant, some_ids, state_of
from tiny import sharp_model

IDS = some_ids(1, 9)[0]
TOKENIZER = CharTokenizer("\n abcdefghijklmnopqrstu")
NAMED = {
    "\x00": "U+0000",
    "\t": "⇥",
    "\n": "⏎",
    "\r": "CR",
    " ": "␣",
    "\u200b": "U+200B",
    "\u2028": "U+2028",
}
SHOWN = NAMED | dict(zip("a$é\u0301中😀", "a$é\u0301中😀", strict=True))
"""Labels; U+200B has no width, and U+2028 would break a line."""


@torch.no_grad()
def loss_of(model: GPT, edits: Edits | None = None) -> Tensor:
    logits = run_with_cache(model, IDS[None, :-1], [], edits)[0]
    return torch.nn.functional.cross_entropy(logits[0], IDS[1:])


def test_summary_of_a_head_by_hand() -> None:
    uniform = HeadSummary(
        13 / 36, 13 / 36, 13 / 36, (0.5 + 1 + 1.5) / 3, (1 + math.log2(3) + 2) / 3
    )
    for pattern, expected in (
        (torch.ones(4, 4).tril() / torch.arange(1, 5)[:, None], uniform),
        (torch.ones(1, 1), HeadSummary(itself=1, previous=0, first=1, distance=0, entropy=0)),
    ):
        assert vars(summarize_head(pattern)) == pytest.approx(vars(expected), abs=1e-6)


@every_variant
def test_ablation_equals_zeros_in_the_columns_of_a_head(variant: dict[str, object]) -> None:
    model = sharp_model(**variant)
    before = state_of(model)
    changes = ablate_heads(model, IDS)
    assert changes.shape == (2, 4)
    assert state_of(model) == before
    whole = loss_of(model)
    for layer in (0, 1):
        for head in range(4):
            columns = model.h[layer].attn.c_proj.weight.data[:, head * 8 : head * 8 + 8]
            kept = columns.clone()
            columns.zero_()
            nats = float(loss_of(model) - whole)
            assert float(changes[layer, head]) == pytest.approx(nats / math.log(2), abs=1e-4)
            columns.copy_(kept)
    assert changes.abs().max() > 0.01
    assert torch.equal(ablate_heads(model, IDS.int(), layers=[1]), changes[1:])


def test_attention_is_that_of_the_edited_model() -> None:
    model = sharp_model()
    edits = {"blocks.0.attn.hook_z": zero()}
    view = attention_view(model, TOKENIZER, IDS, edits)
    _, cache = run_with_cache(model, IDS[None], "blocks.*.attn.hook_pattern", edits)
    assert torch.equal(view["weights"], torch.cat(list(cache.values())))
    assert view["labels"] == labels_of(TOKENIZER, IDS.tolist())
    assert attention_view(model, TOKENIZER, IDS[:1])["weights"].tolist() == [[[[1.0]]] * 4] * 2


@pytest.mark.parametrize("look", [attention_view, lens_view])
@pytest.mark.parametrize("factor", [float("nan"), 1e38])
def test_views_refuse_values_that_are_not_finite(look: Callable[..., View], factor: float) -> None:
    edits = {"blocks.0.hook_resid_pre": lambda x: (x * factor * 10).cumsum(-1)}
    with pytest.raises(InputError, match="not finite: an edit is too strong"):
        look(sharp_model(), TOKENIZER, IDS, edits=edits)


@pytest.mark.parametrize(("tokenizer", "vocabulary"), [(TOKENIZER, 23), (ByteTokenizer(), 256)])
def test_mean_surprisal_is_that_of_scoring(tokenizer: Tokenizer, vocabulary: int) -> None:
    model = sharp_model(vocab_size=vocabulary)
    text = "faceadecadebee"
    result = surprisal(model, torch.tensor(tokenizer.encode(text).tolist()))
    score = score_text(model, tokenizer, text)
    assert result.mean_bits == pytest.approx(score.bits_per_char, abs=1e-5)
    assert 2 ** float(result.bits.sum() / 13) == pytest.approx(score.perplexity, rel=1e-5)


def test_surprisal_is_one_line_in_a_notebook(tiny_model: GPT) -> None:
    result = surprisal(tiny_model, torch.arange(9))
    assert repr(result) == f"Surprisal(8 tokens, {result.mean_bits:.4g} bits per token)"


def test_surprisal_of_a_distribution_by_hand() -> None:
    """Logits ln 1, ln 2, ln 5 are 1/8, 1/4, 5/8."""
    model = sharp_model(vocab_size=3)
    edits = {"logits": replace(torch.tensor([1.0, 2.0, 5.0]).log())}
    result = surprisal(model, torch.tensor([2, 0, 1, 2], dtype=torch.int32), edits)
    torch.testing.assert_close(result.bits, torch.tensor([3.0, 2.0, math.log2(8 / 5)]))
    assert result.mean_bits == pytest.approx((3 + 2 + math.log2(8 / 5)) / 3)
    assert result.alternatives(2)[1] == [(2, pytest.approx(5 / 8)), (1, pytest.approx(1 / 4))]


@every_variant
def test_continuation_is_what_generate_writes(variant: dict[str, object]) -> None:
    model = sharp_model(**variant)
    ids = some_ids(1, 5)[0]
    before = state_of(model)
    view = continuation_view(model, TOKENIZER, ids, 11)
    found, probabilities = greedy_continuation(model, ids, 11)
    text = generate(
        model, TOKENIZER, TOKENIZER.decode(ids.tolist()), max_new_tokens=11, temperature=0.0
    )
    assert TOKENIZER.decode(found.tolist()) == text
    labels = [NAMED.get(character, character) for character in text]
    assert view == {
        "ids": found.tolist(),
        "labels": labels,
        "probabilities": probabilities.tolist(),
    }
    assert state_of(model) == before


@torch.no_grad()
@pytest.mark.parametrize("length", [5, 14, 20])
def test_continuation_edits_every_step(length: int) -> None:
    """The window of 16 tokens fills and slides."""
    model = sharp_model()
    ids = some_ids(1, length)[0]
    edits = {**without_heads([(1, 2), (0, 1), (1, 0)]), "blocks.0.hook_mlp_out": scale(0.5)}
    found, probabilities = greedy_continuation(model, ids, 8, edits)
    for token, probability in zip(found, probabilities, strict=True):
        logits, _ = run_with_cache(model, ids[None, -16:], names=[], edits=edits)
        likely = logits[0, -1].softmax(-1).max(-1)
        assert token == likely.indices
        assert probability == pytest.approx(float(likely.values), rel=1e-4)
        ids = torch.cat([ids, token[None]])
    assert not torch.equal(found, greedy_continuation(model, ids[:length], 8)[0])
    with pytest.raises(InputError, match="not finite"):
        greedy_continuation(model, ids, 3, {"ln_final.hook_normalized": scale(float("inf"))})


def test_labels_name_what_is_not_seen() -> None:
    tokenizer = CharTokenizer("".join(SHOWN))
    assert labels_of(tokenizer, (tokenizer.stoi[char] for char in SHOWN)) == list(SHOWN.values())
    assert labels_of(ByteTokenizer(), [*"aé\n".encode(), 0, 127, 128, 255, 256]) == [
        *("a", "c3", "a9", "⏎", "U+0000", "U+007F", "80", "ff", "#256")
    ]
    assert labels_of(CharTokenizer("ab"), [0, 1, 2, 63]) == ["a", "b", "#2", "#63"]
    assert [one_character(label) for label in ("a", "⏎", "CR", "c3", "")] == [
        "a",
        "⏎",
        "·",
        "·",
        "·",
    ]
    labels = labels_of(ByteTokenizer(), range(256))
    assert len(set(labels)) == 256
    assert all(
        1 <= len(label) <= 6 and label.isprintable() and not label.isspace() for label in labels
    )
