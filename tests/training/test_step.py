"""One optimizer step, and the schedules of its learning rate and of the length of its sequences."""

import copy
import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gpt.config import Config, OptimConfig
from gpt.config.components import SHIPPED
from gpt.data.batches import StepBatch
from gpt.data.tokens import IGNORE
from gpt.model import GPT
from gpt.system.device import Compute
from gpt.system.errors import NonFiniteError
from gpt.training.optimizers import build_optimizer
from gpt.training.schedule import fit_schedule, learning_rate, sequence_length
from gpt.training.step import Stepper
from tiny import tiny_config

CPU = torch.device("cpu")
RATE = 1e-2


def build_stepper(
    dtype: torch.dtype = torch.float32, grad_clip: float = 1.0, **optim: Any
) -> Stepper:
    torch.manual_seed(0)
    model = GPT(tiny_config(n_layer=1, n_embd=16, n_head=2))
    optimizer = build_optimizer(model, OptimConfig(**optim), CPU)
    return Stepper(model, optimizer, Compute(CPU, dtype), grad_clip)


def resume(stepper: Stepper, stopped: Stepper) -> None:
    """Give a stepper the states that a checkpoint has of another."""
    for part in ("optimizer", "scaler"):
        getattr(stepper, part).load_state_dict(copy.deepcopy(getattr(stopped, part).state_dict()))


def batches(count: int = 1, rows: int = 4) -> list[StepBatch]:
    """Sequences that count upwards: easy to learn."""
    starts = torch.randint(23, (count, rows, 1))
    windows = (starts + torch.arange(17)) % 23
    return [StepBatch(window[:, :-1], window[:, 1:]) for window in windows]


def held(stepper: Stepper) -> list[Tensor]:
    """Weights, and what the optimizer keeps of them."""
    states = [
        state for part in stepper.optimizer.optimizers.values() for state in part.state.values()
    ]
    tensors = [
        *stepper.model.parameters(),
        *(moment for state in states for moment in state.values()),
    ]
    return [tensor.detach().clone() for tensor in tensors]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    assert len(one) == len(other) > 0
    return all(torch.equal(left, right) for left, right in zip(one, other, strict=True))


def spoil(stepper: Stepper, what: str, value: float, micro_batch: int = 0) -> None:
    """Make the loss of one micro-batch, or one element of a gradient of its, not finite."""
    calls = iter(range(10**6))

    def spoil_logits(module: torch.nn.Module, inputs: Any, logits: Tensor) -> Tensor:
        return logits * value if next(calls) == micro_batch else logits

    def spoil_gradient(gradient: Tensor) -> Tensor:
        spoiled = gradient.flatten().index_fill(0, torch.tensor(0), value)
        return spoiled.view_as(gradient) if next(calls) == micro_batch else gradient

    if what == "loss":
        stepper.model.register_forward_hook(spoil_logits)
    else:
        stepper.model.ln_f.weight.register_hook(spoil_gradient)


OPTIMIZERS = pytest.mark.parametrize("name", ["adamw", "muon"])


def loss_and_gradients(micro_batches: list[StepBatch]) -> list[Tensor]:
    stepper = build_stepper(grad_clip=0)
    stepper.gradients(batches())  # those of an earlier step do not add up
    loss = stepper.gradients(micro_batches)
    assert not loss.requires_grad
    return [loss, *gradients_of(stepper.model)]


def gradients_of(model: GPT) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize(
    ("sizes", "padded"),
    [([9], False), ([1] * 9, True), ([3, 3, 3], True), ([4, 4, 1], False), ([8, 1], True)],
)
def test_micro_batches_have_the_mean_and_the_gradients_of_torch(
    sizes: list[int], padded: bool
) -> None:
    """Also where the last is smaller, and where padding leaves some with fewer targets or none."""
    inputs, targets = torch.randint(23, (2, 9, 16))
    if padded:
        targets[0, 5:] = IGNORE
        targets[4, :] = IGNORE
        targets[8, :15] = IGNORE
    pieces = list(map(StepBatch, inputs.split(sizes), targets.split(sizes)))
    model = build_stepper().model
    mean = torch.nn.functional.cross_entropy(
        model(inputs).flatten(0, 1), targets.flatten(), ignore_index=IGNORE
    )
    mean.backward()
    expected = [mean.detach(), *gradients_of(model)]
    for ours, theirs in zip(loss_and_gradients(pieces), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("what", ["loss", "gradient"])
@OPTIMIZERS
@pytest.mark.parametrize(("value", "grad_clip"), [(math.nan, 0.0), (math.inf, 1.0)])
@pytest.mark.parametrize(("count", "micro_batch"), [(1, 0), (3, 0), (3, 1), (3, 2)])
@pytest.mark.parametrize("checks_each_step", [True, False], ids=["cpu", "gpu"])
def test_bad_step_is_named_and_nothing_moves_in_it_or_after_it(
    what: str,
    name: str,
    value: float,
    grad_clip: float,
    count: int,
    micro_batch: int,
    checks_each_step: bool,
) -> None:
    """On a GPU nothing is read at the bad step, and good ones follow.

    One bad micro-batch is enough.
    """
    stepper, on_cpu = (build_stepper(grad_clip=grad_clip, name=name) for _ in range(2))
    stepper.guard.checks_each_step = checks_each_step
    for number in range(2):
        data = batches(count)
        stepper.step(number, RATE, data)
        on_cpu.step(number, RATE, data)
    stepper.check()
    before = held(stepper)
    assert same(before, held(on_cpu))
    spoil(stepper, what, value, micro_batch)

    def diverge() -> None:
        stepper.step(2, RATE, batches(count))
        assert not checks_each_step
        assert all(torch.isfinite(stepper.step(number, RATE, batches()).loss) for number in (3, 4))
        stepper.check()

    with pytest.raises(NonFiniteError, match="at step 2;"):
        diverge()
    assert same(held(stepper), before)


@pytest.mark.parametrize(("grad_clip", "most"), [(0.01, 0.01), (1e6, None), (0.0, None)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_step_gives_loss_and_norm_before_the_update(
    dtype: torch.dtype, grad_clip: float, most: float | None
) -> None:
    """The scale that keeps float16 gradients from vanishing is removed before they are clipped."""
    stepper = build_stepper(dtype, grad_clip=grad_clip)
    reference = build_stepper().model
    data = batches(2)
    inputs = torch.cat([batch.inputs for batch in data])
    targets = torch.cat([batch.targets for batch in data])
    loss = torch.nn.functional.cross_entropy(reference(inputs).flatten(0, 1), targets.flatten())
    loss.backward()
    norm = torch.stack([gradient.norm() for gradient in gradients_of(reference)]).norm()
    rough = dtype != torch.float32
    result = stepper.step(0, RATE, data)
    torch.testing.assert_close(result.loss, loss.detach(), rtol=0.01 if rough else 1e-6, atol=0)
    torch.testing.assert_close(result.gradient_norm, norm, rtol=0.03 if rough else 1e-5, atol=0)
    left = torch.stack([gradient.norm() for gradient in gradients_of(stepper.model)]).norm()
    assert float(result.gradient_norm) > 0.05
    assert float(left) == pytest.approx(most or float(result.gradient_norm), rel=1e-3)
    assert stepper.scaler.is_enabled() is (dtype == torch.float16)
    assert all(parameter.dtype == torch.float32 for parameter in stepper.model.parameters())


def test_groups_have_their_shares_of_the_learning_rate() -> None:
    """The schedule is one, in units of the peak; the matrices of Muon have a peak of their own."""
    stepper = build_stepper(learning_rate=0.01, name="muon", muon_rate=0.3)
    before = [weight.detach().clone() for weight in stepper.model.parameters()]
    stepper.step(0, 0.0, batches())
    assert same([weight.detach() for weight in stepper.model.parameters()], before)
    stepper.step(1, 0.005, batches())
    rates = {
        name: [group["lr"] for group in part.param_groups]
        for name, part in stepper.optimizer.optimizers.items()
    }
    assert rates == {"muon": [pytest.approx(0.15)], "adamw": [pytest.approx(0.005)] * 2}
    assert not same([weight.detach() for weight in stepper.model.parameters()], before)


@OPTIMIZERS
def test_overflow_of_a_scaled_gradient_skips_the_step(name: str) -> None:
    stepper = build_stepper(torch.float16, name=name)
    stepper.step(0, RATE, batches())
    before = held(stepper)
    scale = stepper.scaler.get_scale()
    spoil(stepper, "gradient", math.inf)
    stepper.step(1, RATE, batches())
    assert same(held(stepper), before)
    assert stepper.scaler.get_scale() == scale / 2
    assert stepper.optimizer.found_inf is None  # of the next step
    stepper.step(2, RATE, batches())
    assert not same(held(stepper), before)
    other = build_stepper(torch.float16, name=name)
    resume(other, stepper)
    assert stepper.scaler.state_dict() == other.scaler.state_dict()
    assert other.scaler.get_scale() == scale / 2


@pytest.mark.parametrize(
    ("schedule", "changes", "expected"),
    [
        (
            "cosine",
            {},
            {
                10: 1.0,
                35: 0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2,  # a quarter of the way
                60: 0.55,
                85: 0.1 + 0.9 * (1 - math.sqrt(0.5)) / 2,
                110: 0.1,
                10_000: 0.1,
            },
        ),
        ("cosine", {"decay_steps": 60}, {35: 0.55, 60: 0.1, 109: 0.1}),
        ("cosine", {"decay_steps": 5}, {10: 1.0, 11: 0.1}),  # over before the warmup is
        ("cosine", {"warmup_steps": 0}, {0: 1.0, 55: 0.55}),
        # The decay takes a fifth of the steps, the last 22.
        ("wsd", {}, {10: 1.0, 88: 1.0, 99: 0.55, 109: 0.1 + 0.9 / 22, 110: 0.1, 500: 0.1}),
        ("wsd", {"decay_steps": 50}, {60: 1.0, 85: 0.55}),
        ("wsd", {"decay_steps": 1}, {109: 1.0}),
        ("wsd", {"decay_steps": 700}, {10: 1.0, 60: 0.55}),  # right after the warmup
        ("constant", {}, {10: 1.0, 10_000: 1.0}),
        ("constant", {"warmup_steps": 0}, {0: 1.0}),
    ],
)
def test_rates_worked_out_by_hand(
    schedule: str, changes: dict[str, int], expected: dict[int, float]
) -> None:
    values = {
        "learning_rate": 1.0,
        "min_lr": 0.1,
        "warmup_steps": 10,
        "schedule": schedule,
        **changes,
    }
    config = OptimConfig.model_validate(values)
    assert {step: learning_rate(step, config, 110) for step in expected} == pytest.approx(
        expected, rel=1e-12
    )


@given(
    schedule=st.sampled_from(SHIPPED["optim.schedule"]),
    peak=st.floats(1e-6, 10),
    share=st.floats(0, 1),
    warmup=st.integers(0, 50),
    decay=st.none() | st.integers(1, 200),
    max_steps=st.integers(1, 150),
)
def test_rate_is_within_bounds_and_only_falls_after_the_warmup(
    schedule: str, peak: float, share: float, warmup: int, decay: int | None, max_steps: int
) -> None:
    values = {
        "learning_rate": peak,
        "min_lr": peak * share,
        "warmup_steps": warmup,
        "decay_steps": decay,
    }
    config = OptimConfig.model_validate({**values, "schedule": schedule})
    rates = [learning_rate(step, config, max_steps) for step in range(max_steps + 60)]
    rounding = 1e-12 * peak
    assert all(0 < rate <= peak + rounding for rate in rates[:warmup])
    assert all(config.min_lr - rounding <= rate <= peak + rounding for rate in rates[warmup:])
    assert rates[:warmup] == sorted(rates[:warmup])
    assert all(later <= earlier + rounding for earlier, later in itertools.pairwise(rates[warmup:]))


@pytest.mark.parametrize("schedule", SHIPPED["optim.schedule"])
@pytest.mark.parametrize(("max_steps", "warmup"), [(1, 0), (9, 0), (20, 2), (100, 10), (101, 100)])
def test_warmup_that_would_take_the_whole_run_is_a_tenth_of_it(
    schedule: str, max_steps: int, warmup: int
) -> None:
    lines: list[str] = []
    values = {
        "optim": {"schedule": schedule, "warmup_steps": 100},
        "train": {"max_steps": max_steps},
    }
    fitted = fit_schedule(Config.model_validate(values), lines.append)
    assert fitted.optim.warmup_steps == warmup
    told = [f"optim.warmup_steps: {warmup} instead of 100, since train.max_steps is {max_steps}"]
    assert lines == (told if warmup < 100 else [])
    # A run that goes on by its own config.yaml fits its schedule a second time, in silence.
    assert fit_schedule(fitted, pytest.fail) == fitted
    assert learning_rate(warmup, fitted.optim, max_steps) == fitted.optim.learning_rate


@given(shares=st.lists(st.floats(0.01, 0.24), max_size=4), max_steps=st.integers(1, 300))
def test_length_doubles_after_each_share_of_the_steps(shares: list[float], max_steps: int) -> None:
    values = {
        "model": {"block_size": 128},
        "train": {"max_steps": max_steps, "length_warmup": shares},
    }
    config = Config.model_validate(values)
    found = [sequence_length(step, config) for step in range(max_steps)]
    assert found == sorted(found)
    parts = [*shares, 1 - sum(shares)]
    for cut, share in zip(itertools.count(len(shares), -1), parts, strict=False):
        assert abs(found.count(128 >> cut) - share * max_steps) < 1 + 1e-9
