"""Steps by the compiled library, against the steps of `Stepper` by PyTorch."""

import copy
import math
import multiprocessing
import os
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from native_support import EMULATED, PROCESSORS_HERE, error, needs_compiler
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from gpt.config import OptimConfig
from gpt.data.batches import StepBatch
from gpt.data.tokens import IGNORE
from gpt.model import GPT
from gpt.model.attention import SDPACore
from gpt.native.training.bindings import Kernels, load_kernels
from gpt.native.training.native_model import NativeModel
from gpt.system.device import Compute
from gpt.system.distributed import World
from gpt.system.environment import read_settings
from gpt.system.errors import NonFiniteError
from gpt.training.native_step import NativeStepper, uncovered_objective
from gpt.training.objective import LOSS_TERMS, TEACHER, Objective
from gpt.training.optimizers import OPTIMIZERS, CombinedOptimizer, build_optimizer
from gpt.training.step import Parallelism, Stepper, StepResult
from tiny import tiny_config
from training.sessions import start_session

pytestmark = needs_compiler

CPU = torch.device("cpu")
RATE = 1e-2
STEPS = 4
EVERY_PART = Objective(
    logit_temperature=0.8,
    mtp_weights=(0.5, 0.25),
    mtp_steps=3,  # so that the last step has none
    teacher_weight=0.3,
    terms=(("z_loss", 0.1),),
)
ANY_OBJECTIVE = pytest.mark.parametrize(
    "objective", [Objective(), EVERY_PART], ids=["plain", "all"]
)
ANY_OPTIMIZER = pytest.mark.parametrize("name", ["adamw", "muon"])


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(
    scope="module", params=[PROCESSORS_HERE[0], EMULATED[1], EMULATED[-1]], ids=lambda one: one.name
)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """The ones of this machine, and one emulated in each type."""
    return load_kernels(request.param.matmul_dtype, read_settings(), processor=request.param)


@pytest.fixture(scope="module")
def float_kernels() -> Kernels:
    return load_kernels(torch.float32, read_settings(), processor=EMULATED[1])


def build_model(**changes: Any) -> GPT:
    torch.manual_seed(0)
    shape = {"n_embd": 64, "n_head": 2, "block_size": 40, "norm": "rmsnorm", "qk_norm": True}
    model = GPT(tiny_config(**{**shape, "position": "rope", **changes}))
    for parameter in model.parameters():
        nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.1)
    return model


def build_steppers(
    kernels: Kernels,
    objective: Objective = Objective(),  # noqa: B008  # without state
    grad_clip: float = 1.0,
    report: Callable[[str], None] = pytest.fail,
    optim: str = "adamw",
    **changes: Any,
) -> tuple[NativeStepper, Stepper]:
    """Return a native stepper and one by PyTorch, each with a model of the same weights."""
    compute = Compute(CPU, kernels.dtype)
    models = [build_model(**changes) for _ in range(2)]
    config = OptimConfig(name=optim, weight_decay=0.1)
    optimizers = [build_optimizer(model, config, CPU, kernels.dtype) for model in models]
    native_model = NativeModel(models[0], kernels, report)
    native = NativeStepper(native_model, optimizers[0], compute, grad_clip, objective)
    return native, Stepper(models[1], optimizers[1], compute, grad_clip, objective)


def batches(count: int = 2, rows: int = 3, with_teacher: bool = False) -> list[StepBatch]:
    """Return micro-batches of random ids, some of whose targets do not count."""
    made: list[StepBatch] = []
    for number in range(count):
        inputs, targets = torch.randint(23, (2, rows, 33))
        targets[:, number::4] = IGNORE
        probs = torch.randn(rows, 33, 23).softmax(dim=-1)
        made.append(StepBatch(inputs, targets, {TEACHER: probs} if with_teacher else {}))
    return made


def weights_of(stepper: Stepper) -> dict[str, Tensor]:
    """Return copies of the weights and of what the optimizers keep, by name."""
    kept = {name: weight.detach().clone() for name, weight in stepper.model.named_parameters()}
    for name, optimizer in stepper.optimizer.optimizers.items():
        for number, state in optimizer.state_dict()["state"].items():
            for key, value in state.items():
                kept[f"{name}.{number}.{key}"] = torch.as_tensor(value).clone()
    return kept


def is_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    assert one.keys() == other.keys()
    return all(torch.equal(one[name], other[name]) for name in one)


def check_weights(native: Stepper, torchs: Stepper, dtype: torch.dtype) -> None:
    """Compare how far the weights have moved from where `build_model` puts them."""
    initial = dict(build_model_like(native.model).named_parameters())
    expected = dict(torchs.model.named_parameters())
    # In its first steps AdamW moves each weight by the rate, in the direction of a gradient's sign.
    # Rounding decides the sign of a gradient near 0.
    limit = 2e-3 if dtype == torch.float32 else 0.5
    for name, weight in native.model.named_parameters():
        moved = expected[name].double() - initial[name].double()
        assert error(weight.double() - initial[name].double(), moved) < limit, name


def build_model_like(model: GPT) -> GPT:
    config = model.config.model_dump()
    return build_model(**config)


def check_result(found: StepResult, expected: StepResult, dtype: torch.dtype) -> None:
    rough = dtype == torch.bfloat16
    relative = 0.02 if rough else 1e-5
    torch.testing.assert_close(found.loss, expected.loss, rtol=relative, atol=0)
    torch.testing.assert_close(
        found.gradient_norm, expected.gradient_norm, rtol=0.05 if rough else 1e-5, atol=0
    )
    assert found.terms.keys() == expected.terms.keys()
    for name, term in expected.terms.items():
        torch.testing.assert_close(found.terms[name], term, rtol=relative, atol=0)


@ANY_OPTIMIZER
@ANY_OBJECTIVE
@pytest.mark.parametrize(("grad_clip", "count"), [(0.0, 1), (1.0, 3), (0.01, 2)])
def test_steps_are_those_of_pytorch(
    kernels: Kernels, objective: Objective, name: str, grad_clip: float, count: int
) -> None:
    """Several, of micro-batches whose sizes differ; the gradient norm is that before clipping."""
    native, torchs = build_steppers(kernels, objective, grad_clip, optim=name)
    for number in range(STEPS):
        torch.manual_seed(number)
        data = batches(count, with_teacher=bool(objective.teacher_weight))
        data[-1] = data[-1].map(lambda tensor: tensor[:1])
        found = native.step(number, RATE, data)
        check_result(found, torchs.step(number, RATE, data), kernels.dtype)
    check_weights(native, torchs, kernels.dtype)
    # What a checkpoint has of both is the same, so that either can continue the other's run.
    assert weights_of(native).keys() == weights_of(torchs).keys()


@pytest.mark.parametrize(
    "changes", [{"tie_weights": False}, {"mlp": "swiglu", "norm": "layernorm"}]
)
def test_gradients_are_set_and_nothing_is_updated(
    kernels: Kernels, changes: dict[str, Any]
) -> None:
    native, torchs = build_steppers(kernels, **changes)
    before = weights_of(native)
    data = batches()
    loss = native.gradients(data)
    torch.testing.assert_close(loss, torchs.gradients(data), rtol=5e-3, atol=0)
    expected = dict(torchs.model.named_parameters())
    limit = 1e-5 if kernels.dtype == torch.float32 else 0.1
    for name, parameter in native.model.named_parameters():
        assert parameter.grad is not None
        gradient = expected[name].grad
        assert gradient is not None
        assert error(parameter.grad, gradient) < limit, name
    assert is_same(before, weights_of(native))


# Callbacks on gradients


def halve(model: GPT) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(0.5)


def clear_one(model: GPT) -> None:
    gradient = model.h[0].mlp.c_fc.weight.grad
    assert gradient is not None
    gradient.zero_()


def replace_all(model: GPT) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        halved = 0.5 * parameter.grad
        if halved.dim() == 2:  # with strides that C does not read
            halved = halved.T.contiguous().T
        parameter.grad = halved


def remove_one(model: GPT) -> None:
    model.ln_f.weight.grad = None


@ANY_OPTIMIZER
@pytest.mark.parametrize("change", [halve, clear_one, replace_all, remove_one])
def test_callbacks_change_the_gradients_of_the_update(
    float_kernels: Kernels, name: str, change: Callable[[GPT], None]
) -> None:
    native, torchs = build_steppers(float_kernels, optim=name)
    for number in range(STEPS):
        data = batches()
        for stepper in (native, torchs):
            # In the second step only: the gradients of the next are whole again.
            changes = (lambda model=stepper.model: change(model)) if number == 1 else None
            stepper.step(number, RATE, data, changes)
    check_weights(native, torchs, torch.float32)


@ANY_OPTIMIZER
def test_frozen_parameters_stay(kernels: Kernels, name: str) -> None:
    """They have no gradient, and no part in the norm; before and after they are trained."""
    native, torchs = build_steppers(kernels, optim=name, tie_weights=False)
    names = ("wte.weight", "h.0.ln_1.weight", "h.1.attn.c_q.weight")
    for number in range(STEPS):
        data = batches()
        is_frozen = number in (1, 2)
        for stepper in (native, torchs):
            for each in names:
                stepper.model.get_parameter(each).requires_grad_(not is_frozen)
        before = weights_of(native)
        found = native.step(number, RATE, data)
        check_result(found, torchs.step(number, RATE, data), kernels.dtype)
        for each in names:
            parameter = native.model.get_parameter(each)
            assert (parameter.grad is None) is is_frozen
            assert torch.equal(parameter, before[each]) is is_frozen
    check_weights(native, torchs, kernels.dtype)


# Changes of the model between two steps


class Negated(SDPACore):
    def forward(self, *arguments: Any) -> Tensor:
        return -super().forward(*arguments)


class Halved(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * super().forward(x)


def replace_weight(model: GPT) -> None:
    layer = model.h[1].attn.c_v
    layer.weight = nn.Parameter(layer.weight.detach() * 2)


def hook_weight(model: GPT) -> None:
    model.h[1].attn.c_v.weight.register_hook(lambda gradient: 2 * gradient)


def hook_accumulated(model: GPT) -> None:
    def double(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.mul_(2)

    model.ln_f.weight.register_post_accumulate_grad_hook(double)


HOOKED = "a parameter has a hook"
MIXED = "some modules are in training mode, and others are not"
CHANGED = "a module of the model was changed"
CHANGES: dict[str, tuple[str, Callable[[GPT], object]]] = {
    "hook of a module": (
        "MLP has a hook",
        lambda model: model.h[0].mlp.register_forward_hook(lambda m, a, y: 2 * y),
    ),
    "hook of the model": (
        "GPT has a hook",
        lambda model: model.register_forward_hook(lambda m, a, y: 2 * y),
    ),
    "hook of a gradient": (HOOKED, hook_weight),
    "hook of a sum of gradients": (HOOKED, hook_accumulated),
    "mode": (MIXED, lambda model: model.h[0].mlp.eval()),
    "eps": (CHANGED, lambda model: setattr(model.h[0].ln_1, "eps", 1.0)),
    "activation": (CHANGED, lambda model: setattr(model.h[0].mlp, "activation", torch.sin)),
    "core": (CHANGED, lambda model: setattr(model.h[0].attn, "core", Negated(0.0))),
    "class": (CHANGED, lambda model: setattr(model.h[0].attn.c_v, "__class__", Halved)),
    "bias": (
        CHANGED,
        lambda model: setattr(model.h[0].attn.c_q, "bias", nn.Parameter(torch.ones(64))),
    ),
    "weight": (CHANGED, replace_weight),
    "module": (CHANGED, lambda model: setattr(model, "ln_f", nn.Identity())),
}
"""What a callback may do to a model, and the reason that is then said."""


@pytest.mark.parametrize(("reason", "change"), CHANGES.values(), ids=CHANGES)
def test_changed_model_is_trained_by_pytorch(
    float_kernels: Kernels, reason: str, change: Callable[[GPT], object]
) -> None:
    lines: list[str] = []
    native, torchs = build_steppers(float_kernels, report=lines.append, dropout=0.1)
    for number in range(STEPS):
        if number == 2:
            assert lines == []
            # Kernels have dropout of their own, so that what is compared begins here.
            torchs.model.load_state_dict(native.model.state_dict())
            torchs.optimizer.load_state_dict(copy.deepcopy(native.optimizer.state_dict()))
            change(native.model)
            change(torchs.model)
        data = batches()
        torch.manual_seed(number)
        found = native.step(number, RATE, data)
        if number >= 2:
            torch.manual_seed(number)
            expected = torchs.step(number, RATE, data)
            assert torch.equal(found.loss, expected.loss)
            assert torch.equal(found.gradient_norm, expected.gradient_norm)
    assert lines == [f"training with PyTorch's operators: {reason}"]
    assert is_same(weights_of(native), weights_of(torchs))


def test_changed_probability_of_dropout_counts(float_kernels: Kernels) -> None:
    lines: list[str] = []
    native, torchs = build_steppers(float_kernels, report=lines.append)
    for stepper in (native, torchs):
        stepper.model.drop.p = 0.5
        torch.manual_seed(0)
    data = batches()
    torch.manual_seed(1)
    found = native.step(0, RATE, data)
    torch.manual_seed(1)
    assert torch.equal(found.loss, torchs.step(0, RATE, data).loss)
    assert lines == [f"training with PyTorch's operators: {CHANGED}"]


def test_steps_are_native_again_when_a_hook_is_removed(float_kernels: Kernels) -> None:
    """The line is not repeated by the next hook."""
    lines: list[str] = []
    native, torchs = build_steppers(float_kernels, report=lines.append)
    for number in range(STEPS):
        data = batches()
        if number % 2:
            handle = native.model.register_forward_hook(lambda module, idx, logits: None)
        found = native.step(number, RATE, data)
        is_native = native.model.ln_f.weight.grad is native._native.gradients["ln_f.weight"]
        assert is_native is (number % 2 == 0)
        if number % 2:
            handle.remove()
        check_result(found, torchs.step(number, RATE, data), torch.float32)
    assert len(lines) == 1
    check_weights(native, torchs, torch.float32)


class OtherHasChanged(World):
    """A process whose peer has changed its model."""

    def all_reduce_max(self, value: int) -> int:
        return 1


def test_process_makes_the_kind_of_step_that_the_others_make(float_kernels: Kernels) -> None:
    """A step by the library waits for the others elsewhere than one by PyTorch."""
    lines: list[str] = []
    native, torchs = build_steppers(float_kernels, report=lines.append)
    native.parallelism = Parallelism(OtherHasChanged(), native.model)
    data = batches()
    found = native.step(0, RATE, data)
    assert torch.equal(found.loss, torchs.step(0, RATE, data).loss)
    assert lines == ["training with PyTorch's operators: the model of another process was changed"]


def test_ids_may_be_int32_as_for_the_model(float_kernels: Kernels) -> None:
    native, torchs = build_steppers(float_kernels)
    for number in range(2):
        data = [batch.map(as_int32) for batch in batches()]
        found = native.step(number, RATE, data)
        expected = torchs.step(number, RATE, [batch.map(as_int64) for batch in data])
        check_result(found, expected, torch.float32)


def as_int32(tensor: Tensor) -> Tensor:
    return tensor.to(torch.int32)


def as_int64(tensor: Tensor) -> Tensor:
    return tensor.to(torch.int64)


def test_whole_model_in_eval_mode_has_no_dropout(kernels: Kernels) -> None:
    native, torchs = build_steppers(kernels, dropout=0.5)
    for number in range(STEPS):
        for stepper in (native, torchs):
            stepper.model.eval()
        data = batches()
        found = native.step(number, RATE, data)
        check_result(found, torchs.step(number, RATE, data), kernels.dtype)


class Watching(TorchDispatchMode):
    """Counts the operators of torch that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_steps_inside_a_mode_are_by_pytorch(float_kernels: Kernels) -> None:
    lines: list[str] = []
    native, torchs = build_steppers(float_kernels, report=lines.append)
    data = batches()
    with Watching() as one:
        native.step(0, RATE, data)
    with Watching() as other:
        torchs.step(0, RATE, data)
    assert one.count == other.count
    assert "Watching" in lines[0]


# Steps that are not finite


@ANY_OPTIMIZER
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("grad_clip", [0.0, 1.0])
def test_bad_step_is_named_and_changes_nothing(
    kernels: Kernels, name: str, value: float, grad_clip: float
) -> None:
    for stepper in build_steppers(kernels, grad_clip=grad_clip, optim=name):
        stepper.step(0, RATE, batches())
        weight = stepper.model.h[0].mlp.c_fc.weight
        weight.data[3, 3] = value
        before = weights_of(stepper)
        with pytest.raises(NonFiniteError, match="at step 1;"):
            stepper.step(1, RATE, batches())
        after = weights_of(stepper)
        assert before.keys() == after.keys()
        for each in before:
            torch.testing.assert_close(after[each], before[each], rtol=0, atol=0, equal_nan=True)


def test_step_without_targets_is_not_finite(kernels: Kernels) -> None:
    """The mean over no targets is NaN, in both."""
    data = [StepBatch(batch.inputs, torch.full_like(batch.targets, IGNORE)) for batch in batches()]
    for stepper in build_steppers(kernels):
        with pytest.raises(NonFiniteError, match="at step 0;"):
            stepper.step(0, RATE, data)


# Threads and processes


def make_step(stepper: Stepper, number: int) -> None:
    """Make a step whose data and dropout depend on its number alone."""
    generator = torch.Generator().manual_seed(number)
    inputs, targets = torch.randint(23, (2, 5, 33), generator=generator)
    torch.manual_seed(number)
    stepper.step(number, RATE, [StepBatch(inputs, targets)])


def trained(
    kernels: Kernels, between: Callable[[Stepper, int], object] = lambda stepper, number: None
) -> dict[str, Tensor]:
    """Return the state after some steps; `between` is called before each."""
    native, _ = build_steppers(kernels, dropout=0.1, optim="muon")
    for number in range(STEPS):
        between(native, number)
        make_step(native, number)
    return weights_of(native)


def test_number_of_threads_changes_no_bit(kernels: Kernels) -> None:
    expected = trained(kernels)
    for counts in ((2, 2, 2, 2), (1, 7, 2, 3)):
        assert is_same(
            expected, trained(kernels, lambda _, number, c=counts: torch.set_num_threads(c[number]))
        )


def test_two_trainings_at_once_compute_what_each_computes_alone() -> None:
    """Each has kernels of its own, as two trainers have; one of them gets the threads."""

    def without_dropout(seed: int) -> dict[str, Tensor]:
        torch.set_num_threads(2)
        processor = EMULATED[1]
        kernels = load_kernels(torch.float32, read_settings(), processor=processor)
        model = GPT(tiny_config(n_embd=64, n_head=2, block_size=40))
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
        optimizer = build_optimizer(model, OptimConfig(name="muon"), CPU)
        native = NativeModel(model, kernels)
        stepper = NativeStepper(native, optimizer, Compute(CPU, torch.float32), 1.0, Objective())
        for number in range(30):
            inputs, targets = torch.randint(23, (2, 5, 33), generator=generator)
            stepper.step(number, RATE, [StepBatch(inputs, targets)])
        return weights_of(stepper)

    expected = [without_dropout(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(without_dropout, range(4)))
    assert all(map(is_same, expected, found))


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="processes cannot be forked here"
)
def test_forked_process_trains_on_as_its_parent_does(kernels: Kernels) -> None:
    """The threads of the parent are not in the new process, which makes its own."""
    torch.set_num_threads(2)
    expected = trained(kernels)

    def fork(stepper: Stepper, number: int) -> None:
        def go_on() -> None:
            for later in range(number, STEPS):
                make_step(stepper, later)
            os._exit(0 if is_same(expected, weights_of(stepper)) else 1)

        if number == 2:
            child = multiprocessing.get_context("fork").Process(target=go_on)
            child.start()
            child.join(60)
            child.kill()
            assert child.exitcode == 0

    assert is_same(expected, trained(kernels, fork))


# Optimizers and terms of plugins


@ANY_OPTIMIZER
def test_states_are_loaded_between_steps(kernels: Kernels, name: str) -> None:
    """Another training goes on from weights and moments, and ends with the same bits."""
    native, _ = build_steppers(kernels, optim=name)
    data = [batches() for _ in range(STEPS)]
    other, torchs = build_steppers(kernels, optim=name)
    for number in range(STEPS):
        if number == 2:
            for stepper in (other, torchs):
                stepper.model.load_state_dict(native.model.state_dict())
                stepper.optimizer.load_state_dict(copy.deepcopy(native.optimizer.state_dict()))
        native.step(number, RATE, data[number])
        if number < 2:
            other.step(number, RATE, batches())  # which has moments and addresses of its own
        else:
            other.step(number, RATE, data[number])
            torchs.step(number, RATE, data[number])
    assert is_same(weights_of(native), weights_of(other))
    check_weights(native, torchs, kernels.dtype)


def sgd(model: GPT) -> CombinedOptimizer:
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    optimizer.param_groups[0]["lr_factor"] = 1.0
    return CombinedOptimizer({"sgd": optimizer})


def amsgrad(model: GPT) -> CombinedOptimizer:
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, amsgrad=True)
    optimizer.param_groups[0]["lr_factor"] = 1.0
    return CombinedOptimizer({"adamw": optimizer})


def hooked(model: GPT) -> CombinedOptimizer:
    """Clear the gradient of one weight before each step."""
    optimizer = build_optimizer(model, OptimConfig(), CPU)
    adamw = optimizer.optimizers["adamw"]
    adamw.register_step_pre_hook(lambda *_: clear_one(model))
    return optimizer


def wrapped(model: GPT) -> CombinedOptimizer:
    """Do the same in a `step` of the object, around that of the class, as schedulers do."""
    optimizer = build_optimizer(model, OptimConfig(), CPU)
    adamw = optimizer.optimizers["adamw"]
    own_step = adamw.step

    def step() -> None:
        clear_one(model)
        own_step()

    setattr(adamw, "step", step)  # noqa: B010  # mypy refuses to assign to a method
    return optimizer


@pytest.mark.parametrize("build", [sgd, amsgrad, hooked, wrapped])
def test_other_optimizers_update_the_native_gradients(
    float_kernels: Kernels, build: Callable[[GPT], CombinedOptimizer]
) -> None:
    compute = Compute(CPU, torch.float32)
    one = build_model()
    other = build_model()
    native_model = NativeModel(one, float_kernels, pytest.fail)
    native = NativeStepper(native_model, build(one), compute, 1.0, Objective())
    torchs = Stepper(other, build(other), compute, 1.0)
    for number in range(STEPS):
        data = batches()
        found = native.step(number, RATE, data)
        check_result(found, torchs.step(number, RATE, data), torch.float32)
    check_weights(native, torchs, torch.float32)


def test_hook_of_all_optimizers_is_called(float_kernels: Kernels) -> None:
    def clear_first(optimizer: Optimizer, *_: object) -> None:
        optimizer.param_groups[0]["params"][0].grad.zero_()

    native, torchs = build_steppers(float_kernels)
    handle = register_optimizer_step_pre_hook(clear_first)
    try:
        for number in range(STEPS):
            data = batches()
            native.step(number, RATE, data)
            torchs.step(number, RATE, data)
    finally:
        handle.remove()
    check_weights(native, torchs, torch.float32)


def own_term(logits: Tensor, targets: Tensor) -> Tensor:
    return logits.square().sum() * 1e-3


NATIVE = ("run.kernels=auto", "run.dtype=auto", "model.n_embd=64", "train.max_steps=2")


@pytest.mark.parametrize("name", ["own", "z_loss"])
def test_terms_of_plugins_are_computed_by_pytorch(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that has the name of a shipped term."""
    assert uncovered_objective(Objective(terms=(("z_loss", 0.1),))) is None
    monkeypatch.setitem(LOSS_TERMS, name, own_term)
    assert uncovered_objective(Objective(terms=((name, 0.1),))) == f"train.loss_terms={name}"
    if name == "z_loss":
        return  # by which the code of the package is not what it was, which is another reason
    lines: list[str] = []
    trainer = start_session(tmp_path, *NATIVE, "train.loss_terms={own: 0.1}", report=lines.append)
    assert type(trainer.stepper) is Stepper
    reason = "the native kernels do not cover train.loss_terms=own"
    assert lines.count(f"training with PyTorch's operators: {reason}") == 1
    assert trainer.run().step == 2


class Plain(torch.optim.SGD):
    """An optimizer as a plugin may add it."""

    def __init__(self, groups: Any, config: OptimConfig) -> None:
        super().__init__(groups, lr=config.learning_rate)


def test_optimizers_of_plugins_update_in_a_native_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(OPTIMIZERS, "plain", Plain)
    trainer = start_session(tmp_path, *NATIVE, "optim.name=plain")
    assert type(trainer.stepper) is NativeStepper
    before = {name: weight.clone() for name, weight in trainer.model.state_dict().items()}
    assert trainer.run().step == 2
    assert any(
        not torch.equal(before[name], weight) for name, weight in trainer.model.state_dict().items()
    )


def test_second_training_of_a_process_is_native_too(tmp_path: Path) -> None:
    """torch wraps the method `step` of an optimizer's class when the first one is made."""
    for folder in ("one", "other"):
        trainer = start_session(tmp_path / folder, *NATIVE, "run.kernels=native", "optim.name=muon")
        assert type(trainer.stepper) is NativeStepper
        trainer.run()


def test_copies_and_pickles_are_plain_models(float_kernels: Kernels) -> None:
    native, _ = build_steppers(float_kernels)
    native.step(0, RATE, batches())
    model = native.model
    idx = batches()[0].inputs
    expected = model(idx)
    names = [name for name, _ in model.named_modules()]
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(twin) is GPT
        assert [name for name, _ in twin.named_modules()] == names
        assert torch.equal(twin(idx), expected)
    # The copy shares no memory with the model, which is trained on.
    twin = copy.deepcopy(model)
    native.step(1, RATE, batches())
    assert torch.equal(twin(idx), expected)
    assert not torch.equal(model(idx), expected)
