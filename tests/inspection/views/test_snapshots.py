"""Snapshots: what is kept of a model, and the map that is made of its embeddings."""

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from gpt.data.tokenizers import CharTokenizer
from gpt.extras import snapshots
from gpt.extras.inspection.views.attention import attention_patterns
from gpt.extras.inspection.views.snapshots import map_embedding, nearest_tokens, read_snapshot
from gpt.extras.snapshots import take_snapshot
from gpt.system.errors import CheckpointError
from inspection.variants import every_variant
from tiny import sharp_model

IDX = torch.tensor([0, 3, 1, 2, 2, 5])
TEXT = {"prompt": "ba", "sample": "", "loss": None}


def test_snapshot_keeps_embedding_attention_and_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = CharTokenizer("\n abcé")
    model = sharp_model(vocab_size=tokenizer.vocab_size)
    file = tmp_path / "snapshot"
    file.write_bytes(
        take_snapshot(model, tokenizer, IDX, {**TEXT, "sample": "ab\ncé", "loss": 1.5})
    )
    shown = read_snapshot(file)
    assert (shown.tokens, shown.prompt, shown.sample, shown.loss) == (
        ["⏎", "␣", "a", "b", "c", "é"],
        "ba",
        "ab\ncé",
        1.5,
    )
    assert shown.line == [shown.tokens[each] for each in IDX]
    assert torch.allclose(shown.embedding, model.wte.weight, atol=1e-3)
    monkeypatch.setattr(snapshots, "MAX_VOCABULARY", 5)
    file.write_bytes(take_snapshot(model, tokenizer, IDX, TEXT))
    assert (read_snapshot(file).tokens, read_snapshot(file).embedding.numel()) == ([], 0)


@every_variant
def test_snapshot_has_the_attention_of_the_model(
    tmp_path: Path, variant: dict[str, object]
) -> None:
    model = sharp_model(vocab_size=6, dropout=0.5, **variant).train()
    (tmp_path / "snapshot").write_bytes(take_snapshot(model, CharTokenizer("abcdef"), IDX, TEXT))
    shown = read_snapshot(tmp_path / "snapshot").attention
    assert torch.equal(shown, attention_patterns(model, IDX).half().float())
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())


GOOD = {"embedding": torch.zeros(2, 3), "attention": torch.zeros(1, 2, 3, 3)}
WORDS = {"tokens": ["61", "62"], "line": ["61", "62", "61"], "sample": "", "loss": None}


@pytest.mark.parametrize(
    "bad",
    [
        {"loss": "low"},
        {"embedding": torch.zeros(2)},
        {"embedding": torch.zeros(3, 3)},
        {"embedding": torch.full((2, 3), torch.nan)},
        {"embedding": torch.full((2, 3), 1e30)},
        {"embedding": torch.zeros(513, 1), "tokens": ["61"] * 513},
        {"attention": torch.zeros(2, 3, 3)},
        {"attention": torch.zeros(1, 2, 3, 2)},
        {"attention": torch.full((1, 2, 3, 3), torch.inf)},
        {"tokens": "ab"},
        {"tokens": ["61", "b"]},
        {"line": {"a": 1, "b": 2, "c": 3}},
        {"sample": None},
        {"prompt": 1},
        {"more": ""},
        b"",
        b"junk" * 20,
    ],
    ids=str,
)
def test_damaged_snapshot_is_refused(tmp_path: Path, bad: dict[str, Any] | bytes) -> None:
    def write(fields: dict[str, Any]) -> None:
        tensors = {name: value for name, value in fields.items() if isinstance(value, torch.Tensor)}
        words = {name: json.dumps(value) for name, value in fields.items() if name not in tensors}
        (tmp_path / "snapshot").write_bytes(safetensors.torch.save(tensors, words))

    write(GOOD | WORDS)
    assert read_snapshot(tmp_path / "snapshot").tokens == ["a", "b"]
    assert read_snapshot(tmp_path / "snapshot").prompt is None  # an older file has none
    write(GOOD | WORDS | bad) if isinstance(bad, dict) else (tmp_path / "snapshot").write_bytes(bad)
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_snapshot(tmp_path / "snapshot")


def test_maps_of_all_steps_share_the_plane_and_scale_of_the_last() -> None:
    """Points spread most along two of three axes, and are turned: the map finds these two axes."""
    generator = torch.Generator().manual_seed(0)
    spread = torch.randn(200, 3, generator=generator).abs() * torch.tensor([3.0, 2.0, 0.1])
    turn = torch.linalg.qr(torch.randn(3, 3, generator=generator)).Q
    final = map_embedding(spread @ turn.T, spread @ turn.T)
    assert final.abs().max() == pytest.approx(1)
    centered = spread - spread.mean(dim=0)
    # The correlation would be -1 if an axis were mirrored.
    assert torch.corrcoef(torch.stack([final[:, 0], centered[:, 0]]))[0, 1] > 0.99
    assert torch.corrcoef(torch.stack([final[:, 1], centered[:, 1]]))[0, 1] > 0.99
    # Points of an earlier step are shown at their own scale, wherever their center is.
    earlier = spread @ turn.T / 4 + 7
    assert torch.allclose(map_embedding(earlier, spread @ turn.T), final / 4, atol=1e-5)
    assert map_embedding(torch.ones(1, 4), torch.ones(1, 4)).tolist() == [[0, 0]]


def test_the_nearest_tokens_are_those_of_the_smallest_angle() -> None:
    embedding = torch.tensor([[1.0, 0.0], [9.0, 1.0], [0.0, 2.0], [-1.0, -0.1]])
    assert nearest_tokens(embedding, 2) == [[1, 2], [0, 2], [1, 0], [2, 0]]
    assert nearest_tokens(embedding[:1], 2) == [[]]
