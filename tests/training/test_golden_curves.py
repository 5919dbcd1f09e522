"""Losses and texts of short runs stay what they were."""

import json
from pathlib import Path

import pytest
from native_support import needs_compiler

from training.golden_curves import RECIPES, RECORDED, STEPS, record

GOLDEN = json.loads(RECORDED.read_text(encoding="utf-8"))
RELATIVE = 1e-3
"""Of a loss: rounding in another order, as other processors do, moved one by 3e-4 at most."""


@pytest.mark.parametrize("recipe", RECIPES)
def test_losses_and_text_are_as_recorded(recipe: str, tmp_path: Path) -> None:
    losses, text = record(recipe, tmp_path)
    assert len(losses) == STEPS
    assert losses == pytest.approx(GOLDEN[recipe]["losses"], rel=RELATIVE)
    assert text == GOLDEN[recipe]["text"]


@pytest.mark.compiler
@needs_compiler
def test_native_kernels_train_along_the_same_curve(tmp_path: Path) -> None:
    losses, text = record("muon", tmp_path, "run.kernels=native")
    assert losses == pytest.approx(GOLDEN["muon"]["losses"], rel=RELATIVE)
    assert text == GOLDEN["muon"]["text"]


def test_another_seed_is_another_curve(tmp_path: Path) -> None:
    losses, _ = record("llama", tmp_path, "run.seed=4")
    assert losses != pytest.approx(GOLDEN["llama"]["losses"], rel=RELATIVE)
