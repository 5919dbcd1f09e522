import math

import pytest
import torch
from torch import Tensor

from gpt.inspection.tracing.activation_cache import Edits, run_with_cache
from gpt.inspection.tracing.edits import Edit, replace, zero
from gpt.inspection.views.attention import HeadSummary, ablate_heads, attention_patterns, summarize_head
from gpt.system.errors import InputError
from inspection.variants import every_variant, some_ids, state_of
from tiny import sharp_model

IDS = some_ids(1, 9)[0]
UNIFORM = torch.ones(4, 4).tril() / torch.arange(1.0, 5)[:, None]
PREVIOUS = torch.tensor([[1.0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]])
FIRST = torch.tensor([[1.0, 0, 0, 0]] * 4)
HALVES = torch.tensor([[1.0, 0], [0.25, 0.75]])


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (torch.eye(4), HeadSummary(itself=1, previous=0, first=0, distance=0, entropy=0)),
        (PREVIOUS, HeadSummary(itself=0, previous=1, first=1 / 3, distance=1, entropy=0)),
        (FIRST, HeadSummary(itself=0, previous=1 / 3, first=1, distance=2, entropy=0)),
        (
            UNIFORM,  # of 2, 3 and 4 keys
            HeadSummary(13 / 36, 13 / 36, 13 / 36, (0.5 + 1 + 1.5) / 3, (1 + math.log2(3) + 2) / 3),
        ),
        (HALVES, HeadSummary(0.75, 0.25, 0.25, 0.25, 0.25 * 2 + 0.75 * math.log2(4 / 3))),
        (torch.ones(1, 1), HeadSummary(itself=1, previous=0, first=1, distance=0, entropy=0)),
    ],
    ids=["itself", "previous", "first", "uniform", "uneven", "one token"],
)
def test_summaries_by_hand(pattern: Tensor, expected: HeadSummary) -> None:
    summary = summarize_head(pattern)
    for name, value in vars(expected).items():
        assert getattr(summary, name) == pytest.approx(value, abs=1e-6), name


def test_patterns_that_take_too_much_memory() -> None:
    needed = 2 * 4 * 9 * 9 * 4
    assert attention_patterns(sharp_model(), IDS, memory_limit=needed).nbytes == needed
    with pytest.raises(InputError, match="takes 2,592 bytes"):
        attention_patterns(sharp_model(), IDS, memory_limit=needed - 1)


@every_variant
def test_a_model_without_a_head_has_zeros_in_its_columns(variant: dict[str, object]) -> None:
    model = sharp_model(**variant)
    before, changes = state_of(model), ablate_heads(model, IDS)
    assert changes.shape == (2, 4)
    assert state_of(model) == before

    @torch.no_grad()
    def loss() -> Tensor:
        return torch.nn.functional.cross_entropy(model(IDS[None, :-1])[0], IDS[1:])

    whole = loss()
    for layer in (0, 1):
        for head in range(4):
            columns = model.h[layer].attn.c_proj.weight.data[:, head * 8 : head * 8 + 8]
            kept = columns.clone()
            columns.zero_()
            assert float(changes[layer, head]) == pytest.approx(float(loss() - whole), abs=1e-4)
            columns.copy_(kept)
    assert changes.abs().max() > 0.01


def test_ablation_of_some_layers_is_that_part_of_all() -> None:
    model = sharp_model()
    assert torch.equal(ablate_heads(model, IDS, layers=[1]), ablate_heads(model, IDS)[1:])


@pytest.mark.parametrize("given", [zero(0), [zero(0)]], ids=["one", "list"])
def test_ablation_of_an_edited_model_is_against_the_edited_model(given: Edit | list[Edit]) -> None:
    model, name = sharp_model(), "blocks.1.attn.hook_z"
    changes = ablate_heads(model, IDS, {name: given})
    assert changes[1, 0] == 0  # it is gone already
    assert not torch.allclose(changes[0], ablate_heads(model, IDS)[0], atol=1e-3)

    @torch.no_grad()
    def loss(edits: Edits) -> Tensor:
        logits, _ = run_with_cache(model, IDS[None, :-1], [], edits)
        return torch.nn.functional.cross_entropy(logits[0], IDS[1:])

    expected = loss({name: [zero(0), zero(2)]}) - loss({name: zero(0)})
    torch.testing.assert_close(changes[1, 2], expected, rtol=0, atol=1e-6)
    assert ablate_heads(model, IDS, {name: replace(1.0)})[1].abs().max() > 1e-3  # the edit does not undo it
