import contextlib
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gpt.checkpoint import read_checkpoint
from gpt.errors import CheckpointError
from gpt.evaluation.loss import evaluate
from gpt.evaluation.windows import full_batches
from gpt.model import GPT
from gpt.training.averaging import WeightAverage
from tiny import tiny_config
from training.sessions import Start, rows, same, weights


@torch.no_grad()
def move(model: GPT) -> dict[str, Tensor]:
    """As a step of an optimizer would, in place; returns the new weights."""
    for weight in model.parameters():
        weight.add_(torch.randn_like(weight))
    return weights(model)


def averaged(model: GPT, average: WeightAverage) -> dict[str, Tensor]:
    with average.applied():
        return weights(model)


@pytest.mark.parametrize("decay", [0.0, 0.2, 0.99])
def test_the_average_is_that_of_the_formula_short_at_first(decay: float) -> None:
    model = GPT(tiny_config())
    average = WeightAverage(model, decay)
    expected = {name: weight.double() for name, weight in weights(model).items()}
    for step, longest in ((1, 2 / 11), (2, 3 / 12), (3, 4 / 13)):
        kept = min(decay, longest)
        for name, weight in move(model).items():
            expected[name] = kept * expected[name] + (1 - kept) * weight.double()
        average.update(step)
    for name, weight in averaged(model, average).items():
        torch.testing.assert_close(weight.double(), expected[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("tie_weights", [True, False])
def test_the_model_has_the_average_while_it_is_applied_and_its_own_weights_after(tie_weights: bool) -> None:
    """Also after an exception."""
    model = GPT(tiny_config(tie_weights=tie_weights))
    average = WeightAverage(model, 0.5)
    objects = list(model.parameters())
    own = move(model)
    average.update(1)
    first = averaged(model, average)
    assert not same(first, own)
    with contextlib.suppress(KeyboardInterrupt), average.applied():
        assert same(weights(model), first)
        assert (model.lm_head.weight is model.wte.weight) is tie_weights
        raise KeyboardInterrupt
    assert same(weights(model), own)
    assert all(one is other for one, other in zip(model.parameters(), objects, strict=True))
    assert same(averaged(model, average), first)


# --- in a run ------------------------------------------------------------------------------------

PLAIN = ("train.max_steps=4", "train.eval_interval=2", "train.sample_tokens=0")
EMA = ("optim.ema_decay=0.5", *PLAIN)


def test_a_run_evaluates_and_saves_the_average_and_keeps_the_weights_beside_it(tmp_path: Path, start: Start) -> None:
    trainer = start(tmp_path / "with", *EMA)
    history = [weights(trainer.model)]
    assert trainer.average is not None
    update = trainer.average.update

    def watched(step: int) -> None:
        update(step)
        history.append(weights(trainer.model))

    trainer.average.update = watched  # type: ignore[method-assign]
    trainer.run()
    expected = history[0]
    for step, present in enumerate(history[1:], start=1):
        kept = min(0.5, (1 + step) / (10 + step))
        expected = {name: kept * expected[name] + (1 - kept) * weight for name, weight in present.items()}
    checkpoint = read_checkpoint(trainer.run_folder.checkpoints()[0])
    for name, weight in checkpoint.model.items():
        torch.testing.assert_close(weight, expected[name], rtol=1e-5, atol=1e-6)
    assert same(checkpoint.training["average"], history[-1])
    assert same(weights(trainer.model), history[-1])
    model = GPT(checkpoint.config.model)
    model.load_state_dict(checkpoint.model, strict=False)
    batches = full_batches(trainer.dataset.val[:97], checkpoint.config.model.block_size, 4)
    recorded, unaveraged = (rows(tmp_path / "with", name) for name in ("val/loss", "val/loss_unaveraged"))
    assert evaluate(model, batches, trainer.compute).loss == recorded[4] == checkpoint.state["val_loss"]
    assert abs(recorded[4] - unaveraged[4]) > 1e-4
    # nothing of what is learned changes
    start(tmp_path / "without", *PLAIN).run()
    assert rows(tmp_path / "with", "train/loss") == rows(tmp_path / "without", "train/loss")
    assert unaveraged == rows(tmp_path / "without", "val/loss")


@pytest.mark.parametrize(("before", "after", "change"), [(PLAIN, EMA, "None -> 0.5"), (EMA, PLAIN, "0.5 -> None")])
def test_an_average_that_comes_or_goes_is_a_change_that_resuming_names(
    tmp_path: Path, start: Start, before: tuple[str, ...], after: tuple[str, ...], change: str
) -> None:
    """Where changes are allowed, a run goes on from the average; but none can begin: it has no weights beside it."""
    start(tmp_path, *before).run()
    saved = read_checkpoint(tmp_path / "runs/run/checkpoints/step-000004").model
    again = (*after, "train.max_steps=6")
    with pytest.raises(CheckpointError) as caught:
        start(tmp_path, *again, resume=str(tmp_path / "runs/run"))
    assert f"optim.ema_decay: {change}" in str(caught.value)
    assert "\n" not in str(caught.value)
    said: list[str] = []
    if after is EMA:
        with pytest.raises(CheckpointError, match="training state does not fit") as caught:
            start(tmp_path, *again, resume="auto", allow_config_change=True)
        assert f"optim.ema_decay: {change}" in str(caught.value)
        assert "train.init_from=RUN" in str(caught.value)
    else:
        trainer = start(tmp_path, *again, resume="auto", allow_config_change=True, report=said.append)
        assert "training goes on from the averaged weights; those before averaging are left out" in said
        assert all(torch.equal(saved[name], weight) for name, weight in weights(trainer.model).items())
        assert trainer.run().step == 6
