"""A bias on the scores of attention, which ALiBi has: the same whatever computes attention, with caches and padding."""

from pathlib import Path

import pytest
import torch

from gpt.cache.kv_cache import KVCache
from gpt.cache.paged_store import PagedStore, PagedView
from gpt.inspection.tracing.activation_cache import run_with_cache
from gpt.model import GPT
from plugin_files import plugin_of
from tiny import sharp_model

pytestmark = pytest.mark.usefixtures("no_plugins")
CLOSE = {"rtol": 1e-5, "atol": 5e-5}


@pytest.fixture
def idx() -> torch.Tensor:
    return torch.randint(23, (2, 16))


@pytest.fixture(params=["auto", "reference", "sdpa"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> GPT:
    plugin_of(tmp_path)
    return sharp_model(std=0.25, position="alibi", n_kv_head=2, attention=request.param)


@torch.inference_mode()
def test_a_score_falls_by_its_heads_slope_with_each_position(model: GPT, idx: torch.Tensor) -> None:
    names = ["blocks.0.attn.hook_q", "blocks.0.attn.hook_k", "blocks.0.attn.hook_attn_scores"]
    logits, seen = run_with_cache(model, idx, names)
    q, k, scores = (seen[name][0] for name in names)
    for head, query, key in ((0, 5, 5), (0, 9, 2), (3, 15, 0), (2, 4, 3)):
        product = float(q[query, head] @ k[key, head // 2]) / 8**0.5
        expected = product - 2 ** (-2 * (head + 1)) * (query - key)
        assert scores[head, query, key].item() == pytest.approx(expected, abs=1e-5)
    assert scores[:, 3, 4:].eq(-torch.inf).all()
    torch.testing.assert_close(logits, model(idx), **CLOSE)


@torch.inference_mode()
@pytest.mark.parametrize("pieces", [[16], [1] * 16, [5, 1, 7, 3]])
def test_logits_with_a_cache_are_those_without(model: GPT, idx: torch.Tensor, pieces: list[int]) -> None:
    cache = KVCache(model.config, 2)
    parts = [model(part, cache=cache) for part in idx.split(pieces, dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), model(idx), **CLOSE)


@torch.inference_mode()
def test_sequences_of_different_lengths_go_on_as_if_alone(model: GPT, idx: torch.Tensor) -> None:
    lengths, order = [7, 3], torch.randperm(16).tolist()
    store = PagedStore(model.config, 16, 4, torch.float32, torch.device("cpu"))
    tables = [order[:4], order[4:8]]
    for row, length in enumerate(lengths):
        model(idx[row : row + 1, :length], cache=PagedView(store, [tables[row]], [0], length))
    view = PagedView(store, tables, lengths, 1)
    logits = model(torch.stack([idx[row, at : at + 1] for row, at in enumerate(lengths)]), cache=view)
    for row, at in enumerate(lengths):
        torch.testing.assert_close(logits[row, 0], model(idx[row : row + 1, : at + 1])[0, -1], **CLOSE)


@torch.inference_mode()
def test_padding_changes_nothing(model: GPT, idx: torch.Tensor) -> None:
    mask = torch.ones(2, 16, dtype=torch.bool)
    mask[1, :6] = False
    padded = model(idx, attention_mask=mask)
    torch.testing.assert_close(padded[0], model(idx[:1])[0], **CLOSE)
    torch.testing.assert_close(padded[1, 6:], model(idx[1:, 6:])[0], **CLOSE)


def test_it_trains_in_bfloat16(model: GPT, idx: torch.Tensor) -> None:
    model.train()
    with torch.autocast("cpu", torch.bfloat16):
        model(idx).square().mean().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


WINDOW = """
import torch
from gpt.model.positions import POSITIONS, ScoreBias

class Window(ScoreBias):
    def __init__(self, config):
        super().__init__()

    def forward(self, queries, keys):
        far = queries.unsqueeze(-1) - keys.unsqueeze(-2) > 2
        return torch.zeros(far.shape).masked_fill(far, -torch.inf).unsqueeze(-3)

POSITIONS["window"] = Window
"""


@torch.inference_mode()
def test_a_bias_of_minus_infinity_hides_a_key(tmp_path: Path, idx: torch.Tensor) -> None:
    plugin_of(tmp_path, WINDOW)
    model = sharp_model(std=0.25, position="window")
    _, seen = run_with_cache(model, idx, "blocks.0.attn.hook_pattern")
    pattern = seen["blocks.0.attn.hook_pattern"][0]
    assert pattern[:, 9, :7].eq(0).all()
    assert pattern[:, 9, 7:10].gt(0).all()
    cache = KVCache(model.config, 2)
    parts = [model(part, cache=cache) for part in idx.split([5, 11], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), model(idx), **CLOSE)
