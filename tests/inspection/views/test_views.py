"""Attention, surprisal, continuations and labels, as numbers; what all views refuse; the text that they open on."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gpt.api.scoring import score_text
from gpt.checkpoint import Loaded
from gpt.config import Config
from gpt.data.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer
from gpt.extras.inspection import example
from gpt.extras.inspection.example import example_of
from gpt.extras.inspection.tracing.activation_cache import Edits, run_with_cache
from gpt.extras.inspection.tracing.edits import Edit, replace, scale, zero
from gpt.extras.inspection.views.attention import (
    HeadSummary,
    ablate_heads,
    attention_patterns,
    attention_view,
    summarize_head,
    without_heads,
)
from gpt.extras.inspection.views.continuation import continuation_view, greedy_continuation
from gpt.extras.inspection.views.lens import lens_view
from gpt.extras.inspection.views.surprisal import surprisal
from gpt.extras.inspection.views.tokens import View, labels_of, most_likely, one_character
from gpt.generation.generator import generate
from gpt.model import GPT
from gpt.system.errors import InputError
from inspection.variants import every_variant, some_ids, state_of
from tiny import sharp_model

IDS = some_ids(1, 9)[0]
TOKENIZER = CharTokenizer("\n abcdefghijklmnopqrstu")
UNIFORM = torch.ones(4, 4).tril() / torch.arange(1.0, 5)[:, None]
PREVIOUS = torch.tensor([[1.0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]])
NAMED = {"\x00": "U+0000", "\t": "⇥", "\n": "⏎", "\r": "CR", " ": "␣", "\u200b": "U+200B", "\u2028": "U+2028"}
SHOWN = NAMED | dict(zip("a$é\u0301中😀", "a$é\u0301中😀", strict=True))
"""Labels; U+200B has no width, and U+2028 would break a line."""


@torch.no_grad()
def loss_of(model: GPT, edits: Edits | None = None) -> Tensor:
    logits = run_with_cache(model, IDS[None, :-1], [], edits)[0]
    return torch.nn.functional.cross_entropy(logits[0], IDS[1:])


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (torch.eye(4), HeadSummary(itself=1, previous=0, first=0, distance=0, entropy=0)),
        (PREVIOUS, HeadSummary(itself=0, previous=1, first=1 / 3, distance=1, entropy=0)),
        (UNIFORM, HeadSummary(13 / 36, 13 / 36, 13 / 36, (0.5 + 1 + 1.5) / 3, (1 + math.log2(3) + 2) / 3)),
        (
            torch.tensor([[1.0, 0], [0.25, 0.75]]),
            HeadSummary(0.75, 0.25, 0.25, 0.25, 0.25 * 2 + 0.75 * math.log2(4 / 3)),
        ),
        (torch.ones(1, 1), HeadSummary(itself=1, previous=0, first=1, distance=0, entropy=0)),
    ],
    ids=["itself", "previous", "uniform", "uneven", "one token"],
)
def test_summary_of_a_head_by_hand(pattern: Tensor, expected: HeadSummary) -> None:
    assert vars(summarize_head(pattern)) == pytest.approx(vars(expected), abs=1e-6)


@every_variant
def test_ablation_equals_zeros_in_the_columns_of_a_head(variant: dict[str, object]) -> None:
    model = sharp_model(**variant)
    before, changes = state_of(model), ablate_heads(model, IDS)
    assert changes.shape == (2, 4)
    assert state_of(model) == before
    whole = loss_of(model)
    for layer in (0, 1):
        for head in range(4):
            columns = model.h[layer].attn.c_proj.weight.data[:, head * 8 : head * 8 + 8]
            kept = columns.clone()
            columns.zero_()
            assert float(changes[layer, head]) == pytest.approx(float(loss_of(model) - whole), abs=1e-4)
            columns.copy_(kept)
    assert changes.abs().max() > 0.01
    assert torch.equal(ablate_heads(model, IDS.int(), layers=[1]), changes[1:])


@pytest.mark.parametrize("given", [zero(0), [zero(0)]], ids=["one", "list"])
def test_ablation_of_an_edited_model_is_against_the_edited_model(given: Edit | list[Edit]) -> None:
    model, name = sharp_model(), "blocks.1.attn.hook_z"
    changes = ablate_heads(model, IDS, {name: given})
    assert changes[1, 0] == 0  # it is gone already
    assert not torch.allclose(changes[0], ablate_heads(model, IDS)[0], atol=1e-3)
    expected = loss_of(model, {name: [zero(0), zero(2)]}) - loss_of(model, {name: zero(0)})
    torch.testing.assert_close(changes[1, 2], expected, rtol=0, atol=1e-6)
    assert ablate_heads(model, IDS, {name: replace(1.0)})[1].abs().max() > 1e-3  # the edit does not undo it


def test_attention_is_that_of_the_edited_model() -> None:
    model, edits = sharp_model(), {"blocks.0.attn.hook_z": zero()}
    view = attention_view(model, TOKENIZER, IDS, edits)
    _, cache = run_with_cache(model, IDS[None], "blocks.*.attn.hook_pattern", edits)
    assert torch.equal(view["weights"], torch.cat(list(cache.values())))
    assert view["labels"] == labels_of(TOKENIZER, IDS.tolist())
    assert attention_view(model, TOKENIZER, IDS[:1])["weights"].tolist() == [[[[1.0]]] * 4] * 2


def test_views_keep_the_memory_limit() -> None:
    needed = 2 * 4 * 9 * 9 * 4
    assert attention_patterns(sharp_model(), IDS, memory_limit=needed).nbytes == needed
    for look in (attention_view, lens_view):
        with pytest.raises(InputError, match=f"more than the limit of {needed - 1:,}"):
            look(sharp_model(), TOKENIZER, IDS, memory_limit=needed - 1)


@pytest.mark.parametrize("look", [attention_view, lens_view])
@pytest.mark.parametrize("factor", [float("nan"), 1e38])
def test_views_refuse_values_that_are_not_finite(look: Callable[..., View], factor: float) -> None:
    edits = {"blocks.0.hook_resid_pre": lambda x: (x * factor * 10).cumsum(-1)}
    with pytest.raises(InputError, match="not finite: an edit is too strong"):
        look(sharp_model(), TOKENIZER, IDS, edits=edits)


@pytest.mark.parametrize(
    ("look", "fewest"), [(attention_patterns, "1 token"), (ablate_heads, "2 tokens"), (surprisal, "2 tokens")]
)
def test_views_take_one_text_of_enough_tokens(look: Callable[..., object], fewest: str) -> None:
    with pytest.raises(InputError, match=rf"{look.__name__} takes one text, ids of shape \(T,\), not \(2, 9\)"):
        look(sharp_model(), IDS[None].repeat(2, 1))
    with pytest.raises(InputError, match=f"{look.__name__} needs a text of at least {fewest}, got 0"):
        look(sharp_model(), IDS[:0])


@pytest.mark.parametrize(("tokenizer", "vocabulary"), [(TOKENIZER, 23), (ByteTokenizer(), 256)])
def test_mean_surprisal_is_that_of_scoring(tokenizer: Tokenizer, vocabulary: int) -> None:
    model, text = sharp_model(vocab_size=vocabulary), "faceadecadebee"
    result = surprisal(model, torch.tensor(tokenizer.encode(text).tolist()))
    score = score_text(model, tokenizer, text)
    assert result.mean_bits == pytest.approx(score.bits_per_char, abs=1e-5)
    assert 2 ** float(result.bits.sum() / 13) == pytest.approx(score.perplexity, rel=1e-5)


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
    model, ids = sharp_model(**variant), some_ids(1, 5)[0]
    before, view = state_of(model), continuation_view(model, TOKENIZER, ids, 11)
    found, probabilities = greedy_continuation(model, ids, 11)
    text = generate(model, TOKENIZER, TOKENIZER.decode(ids.tolist()), max_new_tokens=11, temperature=0.0)
    assert TOKENIZER.decode(found.tolist()) == text
    labels = [NAMED.get(character, character) for character in text]
    assert view == {"ids": found.tolist(), "labels": labels, "probabilities": probabilities.tolist()}
    assert state_of(model) == before


@torch.no_grad()
@pytest.mark.parametrize("length", [5, 14, 20])
def test_continuation_edits_every_step(length: int) -> None:
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
    with pytest.raises(InputError, match="not finite"):
        greedy_continuation(model, ids, 3, {"ln_final.hook_normalized": scale(float("inf"))})


def test_labels_name_what_is_not_seen() -> None:
    tokenizer = CharTokenizer("".join(SHOWN))
    assert labels_of(tokenizer, (tokenizer.stoi[char] for char in SHOWN)) == list(SHOWN.values())
    assert labels_of(ByteTokenizer(), [*"aé\n".encode(), 0, 127, 128, 255, 256]) == [
        *("a", "c3", "a9", "⏎", "U+0000", "U+007F", "80", "ff", "#256"),
    ]
    assert labels_of(CharTokenizer("ab"), [0, 1, 2, 63]) == ["a", "b", "#2", "#63"]
    assert [one_character(label) for label in ("a", "⏎", "CR", "c3", "")] == ["a", "⏎", "·", "·", "·"]
    labels = labels_of(ByteTokenizer(), range(256))
    assert len(set(labels)) == 256
    assert all(1 <= len(label) <= 6 and label.isprintable() and not label.isspace() for label in labels)


@pytest.mark.parametrize("count", [1, 2, 9])
def test_most_likely_are_the_first_of_each_row(count: int) -> None:
    rows = most_likely(torch.tensor([[0.25, 0.75, 0.0], [0.5, 0.125, 0.375]]), count)
    assert rows == [[(1, 0.75), (0, 0.25), (2, 0.0)][:count], [(0, 0.5), (2, 0.375), (1, 0.125)][:count]]


def loaded(tokenizer: Tokenizer, **changes: object) -> Loaded:
    model = sharp_model(**changes)
    return Loaded(model, tokenizer, Config(model=model.config), Path("nowhere"), {})


@pytest.mark.parametrize(
    ("tokenizer", "block_size", "written", "expected"),
    [
        (TOKENIZER, 128, "\n a line\nand another \n", "a line\nand another"),
        (TOKENIZER, 128, "keep " * 30, ("keep " * 20).strip()),
        (TOKENIZER, 12, "the best of all", "the best of"),
        (TOKENIZER, 12, "a" * 99, "a" * 12),
        (ByteTokenizer(), 64, "é" * 300, "é" * 27),
    ],
)
def test_example_fits_the_window_and_ends_with_a_word(
    monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer, block_size: int, written: str, expected: str
) -> None:
    monkeypatch.setattr(example, "generate", lambda *_, **__: written)
    assert example_of(loaded(tokenizer, vocab_size=256, block_size=block_size)) == expected


def test_example_is_always_the_same_and_empty_where_the_model_can_write_none() -> None:
    given = loaded(TOKENIZER)
    found = example_of(given)
    torch.manual_seed(1)
    assert found == example_of(given)
    assert 1 < len(found) <= 16
    given.model.ln_f.weight.data.fill_(torch.nan)
    assert example_of(given) == ""
