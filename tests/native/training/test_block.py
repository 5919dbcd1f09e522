"""Models with native blocks against the same models with torch's, in the kernels' type and in
float32.
"""

import copy
import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch
from native_support import EMULATED, PROCESSORS_HERE, needs_compiler
from torch import Tensor, nn

from gpt.config import OptimConfig
from gpt.data.batches import StepBatch
from gpt.generation.kv_cache import KVCache
from gpt.model import GPT
from gpt.model.gpt import Block
from gpt.native.training.bindings import Kernels, load_kernels
from gpt.native.training.block import NativeBlock, replace_blocks, use_native_blocks
from gpt.system.device import Compute
from gpt.system.environment import read_settings
from gpt.system.errors import DeviceError
from gpt.training.optimizers import build_optimizer
from gpt.training.step import Stepper
from tiny import tiny_config
from tolerances import of_gradients

pytestmark = needs_compiler

CPU = torch.device("cpu")
FLOAT32 = Compute(CPU, torch.float32)
VARIANTS: list[dict[str, Any]] = [
    {},
    {"norm": "rmsnorm", "position": "rope", "mlp": "relu2", "qk_norm": True},
    {"position": "sinusoidal", "mlp": "relu", "tie_weights": False},
    {"position": "rope", "qk_norm": True, "n_head": 1},
    {"norm": "rmsnorm", "norm_eps": 1e-3, "mlp_width": 48},
    {"norm": "rmsnorm", "position": "rope", "mlp": "swiglu", "mlp_width": 176},
]


@pytest.fixture(
    scope="module", params=[PROCESSORS_HERE[0], EMULATED[1], EMULATED[-1]], ids=lambda one: one.name
)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """The ones of this machine, and one emulated in each type."""
    return load_kernels(request.param.matmul_dtype, read_settings(), processor=request.param)


def compute_of(kernels: Kernels) -> Compute:
    return Compute(CPU, kernels.dtype)


def build_model(kernels: Kernels | None, std: float = 0.1, **changes: Any) -> GPT:
    """Weights so large that attention is far from uniform; the same whether native or not."""
    torch.manual_seed(0)
    model = GPT(tiny_config(**{"n_embd": 64, "n_head": 2, "block_size": 40, **changes}))
    for parameter in model.parameters():
        nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=std)
    if kernels is not None:
        replace_blocks(model, kernels)
    return model


def build_stepper(kernels: Kernels | None, compute: Compute, **changes: Any) -> Stepper:
    model = build_model(kernels, **changes)
    return Stepper(model, build_optimizer(model, OptimConfig(), CPU), compute, 1.0)


def batch(rows: int = 3, length: int = 39) -> StepBatch:
    """Sequences that count upwards, but for a few steps of another width."""
    steps = torch.where(torch.rand(rows, length + 1) < 0.2, 5, 1)
    window = (torch.randint(23, (rows, 1)) + steps.cumsum(dim=1)) % 23
    return StepBatch(window[:, :-1], window[:, 1:])


def gradients(stepper: Stepper, data: list[StepBatch]) -> dict[str, Tensor]:
    stepper.gradients(data)
    return {
        name: p.grad.clone() for name, p in stepper.model.named_parameters() if p.grad is not None
    }


def difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Return the norm of the difference of all tensors, relative to the norm of the others."""
    assert one.keys() == other.keys()
    squares = [
        ((one[name] - other[name]).square().sum(), other[name].square().sum()) for name in one
    ]
    return float((sum(off for off, _ in squares) / sum(all_of for _, all_of in squares)) ** 0.5)


@pytest.mark.parametrize("changes", VARIANTS)
def test_gradients_are_as_near_to_float32_as_those_of_torch(
    kernels: Kernels, changes: dict[str, Any]
) -> None:
    data = [batch() for _ in range(4)]
    right = gradients(build_stepper(None, FLOAT32, **changes), data)
    torchs = gradients(build_stepper(None, compute_of(kernels), **changes), data)
    native = gradients(build_stepper(kernels, compute_of(kernels), **changes), data)
    assert difference(native, right) < of_gradients(kernels.dtype)
    # A tenth: both errors are norms over tens of thousands of roundings, which chance hardly moves.
    # Torch's own is nothing in float32, where `right` is its result.
    least = of_gradients(torch.float32)
    assert difference(native, right) < 1.1 * difference(torchs, right) + least
    # None is wrong that the others outweigh. Twice: a norm's weight has some tens of entries.
    for name in right:
        one, other = ({name: found[name]} for found in (native, torchs))
        assert (
            difference(one, {name: right[name]})
            < 2 * difference(other, {name: right[name]}) + least
        ), name


def test_dropout_follows_torchs_generator_and_ends_with_training(kernels: Kernels) -> None:
    model = build_model(kernels, dropout=0.3)
    inputs = batch().inputs

    def run(seed: int) -> Tensor:
        torch.manual_seed(seed)
        with compute_of(kernels).autocast():
            return model(inputs).detach()

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))
    model.eval()
    assert torch.equal(run(1), run(2))


@pytest.mark.parametrize("dropped", ["none", "mlp", "attn"])
def test_mode_of_each_dropout_counts(kernels: Kernels, dropped: str) -> None:
    """As in PyTorch: a callback may switch one off in training, or on in an evaluation."""
    data = batch().inputs

    def logits(trains: bool, only: str) -> Tensor:
        model = build_model(kernels, dropout=0.5).train(trains)
        model.drop.eval()
        for block in model.h:
            block.mlp.dropout.train(only == "mlp")
            for module in (block.attn.resid_dropout, block.attn.core, block.attn.core.reference):
                module.train(only == "attn")
        with compute_of(kernels).autocast():
            torch.manual_seed(3)
            return model(data).detach()

    assert torch.equal(logits(True, dropped), logits(False, dropped))
    assert torch.equal(logits(True, dropped), logits(False, "none")) is (dropped == "none")


def test_frozen_embeddings_change_no_other_gradient(kernels: Kernels) -> None:
    """The first block's input wants no gradient."""
    data = [batch()]
    found = []
    for blocks in (kernels, None):
        stepper = build_stepper(blocks, compute_of(kernels), tie_weights=False)
        stepper.model.wte.requires_grad_(False)
        stepper.model.wpe.requires_grad_(False)
        found.append(gradients(stepper, data))
    assert difference(*found) < 0.05


@pytest.mark.parametrize("training", [True, False])
def test_names_order_and_identity_of_parameters_and_modes_stay(
    kernels: Kernels, training: bool
) -> None:
    model = build_model(None, **VARIANTS[1]).train(training)
    model.h[1].train(not training)

    def facts() -> object:
        modes = {name: module.training for name, module in model.named_modules()}
        return (
            [(name, id(p)) for name, p in model.named_parameters()],
            list(model.state_dict()),
            modes,
        )

    before = facts()
    replace_blocks(model, kernels)
    assert all(isinstance(block, NativeBlock) for block in model.h)
    assert facts() == before


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("changes", VARIANTS[:2])
def test_passes_without_gradients_are_the_blocks_own(
    kernels: Kernels, changes: dict[str, Any], training: bool
) -> None:
    """So that evaluations and samples in float32 are those of the checkpoint, bit for bit."""
    inputs = batch().inputs
    ours, theirs = (build_model(native, **changes).train(training) for native in (kernels, None))
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            assert torch.equal(ours(inputs), theirs(inputs))


@pytest.mark.parametrize("changes", VARIANTS[:2])
def test_evaluations_in_bfloat16_take_the_kernels_of_training(
    kernels: Kernels, changes: dict[str, Any]
) -> None:
    inputs = batch().inputs
    model = build_model(kernels, **changes).eval()
    compute = compute_of(kernels)
    with compute.autocast():
        trained = model(inputs).detach()
        with torch.no_grad():
            evaluated = model(inputs)
    tolerance = 0 if compute.dtype == torch.bfloat16 else 1e-4
    torch.testing.assert_close(evaluated, trained, atol=tolerance, rtol=0)


def test_passes_with_padding_or_a_cache_are_the_blocks_own(kernels: Kernels) -> None:
    inputs = batch().inputs
    mask = torch.ones_like(inputs, dtype=torch.bool)
    mask[0, :9] = False
    results = []
    for native in (kernels, None):
        model = build_model(native)
        with compute_of(kernels).autocast():
            padded = model(inputs, attention_mask=mask)
            padded[mask].square().sum().backward()
            cache = KVCache(model.config, batch=3)
            cached = [model(part, cache=cache) for part in inputs.split(13, dim=1)]
        results.append([padded, *cached, *[p.grad for p in model.parameters()]])
    assert all(map(torch.equal, *results))


def test_copies_and_pickles_are_plain_models(kernels: Kernels) -> None:
    model = build_model(kernels, dropout=0.1).eval()
    inputs = batch().inputs
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert (type(twin.h[0]), type(twin.drop)) == (Block, nn.Dropout)
        assert torch.equal(twin(inputs), build_model(None).eval()(inputs))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"mlp": "gelu_tanh"}, "model.mlp=gelu_tanh"),
        ({"bias": True}, "biases"),
        ({"n_kv_head": 1}, "grouped key and value heads"),
        ({"n_embd": 96}, "heads 48 wide"),
        ({"n_embd": 576}, "heads 288 wide"),
        ({"mlp_width": 24}, "a hidden width of 24"),
    ],
)
def test_options_without_a_kernel_are_named(changes: dict[str, Any], what: str) -> None:
    model = build_model(None, n_layer=1, **changes)
    with pytest.raises(DeviceError, match=f"^the native kernels do not cover {what}[^\n]*$"):
        use_native_blocks(model, FLOAT32, read_settings())
    assert [type(block) for block in model.h] == [Block]


def test_types_without_kernels_are_refused() -> None:
    with pytest.raises(
        DeviceError, match=r"^the native kernels are for float32 and bfloat16 on a CPU$"
    ):
        use_native_blocks(build_model(None), Compute(CPU, torch.float16), read_settings())
    with pytest.raises(
        DeviceError, match=r"^this processor \(generic\) has no instructions for bfloat16$"
    ):
        load_kernels(torch.bfloat16, replace(read_settings(), processor="generic"))
