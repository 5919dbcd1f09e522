"""Losses, logits and gradients by the library, against the same by `gpt.model` in float64.

Every class of processors that this machine is, or can act as, computes them.
"""

import math
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from native_support import EMULATED, PROCESSORS_HERE, error, needs_compiler
from torch import Tensor, nn

from gpt.data.batches import StepBatch
from gpt.data.tokens import IGNORE
from gpt.model import GPT
from gpt.native.training.bindings import CMicroBatch, Kernels, load_kernels
from gpt.native.training.native_model import LossWeights, NativeModel, load_native_model
from gpt.system.device import Compute
from gpt.system.environment import read_settings
from gpt.system.errors import DeviceError, InputError
from native.training.reference import (
    EVERY_PART,
    Result,
    build_model,
    dropout_mask,
    dropout_masks,
    exact_result,
    native_result,
    one_hot_teacher,
    random_batch,
)
from tolerances import of_gradients

pytestmark = needs_compiler

CPU = torch.device("cpu")
FLOAT32 = Compute(CPU, torch.float32)
ROUNDED = 5e-6
"""Bound on the relative error in float32, of any tensor. Measured: 1e-6."""
ROUNDED_AT_KINK = 1e-4
"""The same for ReLU, whose slope jumps: rounding may move a number to the other side of 0."""
VARIANTS: list[dict[str, Any]] = [
    {"norm": "layernorm", "position": "learned", "mlp": "gelu"},
    {"norm": "rmsnorm", "position": "rope", "mlp": "relu2", "qk_norm": True},
    {"norm": "layernorm", "position": "sinusoidal", "mlp": "relu", "tie_weights": False},
    {"norm": "rmsnorm", "position": "learned", "mlp": "swiglu", "tie_weights": False},
    {"norm": "layernorm", "position": "rope", "mlp": "swiglu", "qk_norm": True, "n_head": 1},
    {"norm": "rmsnorm", "position": "sinusoidal", "mlp": "gelu", "qk_norm": True},
    {"norm": "rmsnorm", "norm_eps": 0.3, "position": "rope", "mlp": "relu"},
]
"""Models that have each value of each option; biases and GPT-2's activation are in `BIASES`."""
BIASES: list[dict[str, Any]] = [
    {"norm": "layernorm", "position": "learned", "mlp": "gelu_tanh"},
    {"norm": "rmsnorm", "position": "rope", "mlp": "swiglu", "qk_norm": True},
    # The outputs of each half of the first layer have padding, which has no bias.
    {"norm": "layernorm", "mlp": "swiglu", "mlp_width": 80, "tie_weights": False},
]
"""Models with biases: each kind of norm and of feed-forward network."""
HEADS = [
    *({"n_head": 3, "n_embd": 96}, {"n_head": 1, "n_embd": 32}, {"n_head": 2, "n_embd": 128}),
    *({"n_head": 1, "n_embd": 96}, {"n_head": 2, "n_embd": 192}, {"n_head": 1, "n_embd": 256}),
]
"""Heads of 32, 64, 96 and 256 numbers, one or several."""
BATCHES = [(1, 1), (3, 1), (1, 31), (3, 32), (1, 33), (3, 33), (1, 129), (5, 129)]
"""Sequences and their length: less than a strip of 32 rows, one, more, and parts of strips.

The last batch has more than the 16 strips whose products are added before they are stored.
"""
SIZES: list[dict[str, Any]] = [
    *({"vocab_size": size} for size in (1, 2, 65, 300)),
    # Hidden widths that are no multiples of 32.
    *({"mlp": mlp, "mlp_width": width} for mlp in ("relu2", "swiglu") for width in (16, 48, 80)),
    {"n_layer": 1},
    {"n_layer": 3},
]
SEED = 63
"""Of the drawn architectures."""


@pytest.fixture(scope="module", params=PROCESSORS_HERE, ids=lambda processor: processor.name)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    processor = request.param
    return load_kernels(processor.matmul_dtype, read_settings(), processor=processor)


def largest_error(kernels: Kernels, torchs: float, has_kink: bool = False) -> float:
    """Return a bound on the error of a tensor, from the error that torch's operators make."""
    if kernels.dtype == torch.float32:
        return ROUNDED_AT_KINK if has_kink else ROUNDED
    # In bfloat16 the library rounds as often as torch does, but not at the same places. The errors
    # of small tensors, of which a few numbers decide, differ by up to a half.
    return 1.6 * torchs + 2**-9


def check_result(
    kernels: Kernels,
    model: GPT,
    batch: StepBatch,
    weights: LossWeights = EVERY_PART,
    drops: bool = False,
) -> None:
    """Compare what the library computes of a batch with float64, tensor by tensor."""
    random_state = torch.get_rng_state()
    found = native_result(NativeModel(model, kernels), batch, weights)
    torch.set_rng_state(random_state)
    masks = dropout_masks(model, *batch.inputs.shape) if drops else None
    expected = exact_result(model, batch, weights, masks=masks)
    torchs = expected
    if kernels.dtype == torch.bfloat16:
        torchs = exact_result(model, batch, weights, torch.bfloat16, masks)
    logits_error = ROUNDED
    if not drops:
        limit = largest_error(kernels, error(torchs.logits, expected.logits.double()))
        assert error(found.logits, expected.logits.double()) < limit
        logits_error = limit
    positions = batch.inputs.numel()
    # A loss is the mean of many positions, whose errors are as large as those of logits.
    tolerance = 3 * max(logits_error, of_gradients(kernels.dtype)) * positions
    assert abs(found.cross_entropy - expected.cross_entropy) <= tolerance
    if weights.z_weight:
        assert found.z_loss == pytest.approx(expected.z_loss, rel=tolerance / positions)
    check_gradients(kernels, found, expected, torchs, has_kink=model.config.mlp == "relu")


def check_gradients(
    kernels: Kernels, found: Result, expected: Result, torchs: Result, has_kink: bool
) -> None:
    assert found.gradients.keys() == expected.gradients.keys()
    total = math.hypot(*(float(gradient.norm()) for gradient in expected.gradients.values()))
    for name, gradient in expected.gradients.items():
        if gradient.norm() < 1e-6 * total:
            # Where there is one key, its weight is 1 and depends on no query.
            assert found.gradients[name].norm() < of_gradients(kernels.dtype) * total, name
            continue
        limit = largest_error(kernels, error(torchs.gradients[name], gradient), has_kink)
        assert error(found.gradients[name], gradient) < limit, name


def test_norm_eps_that_is_zero_in_float32(kernels: Kernels) -> None:
    """The padding of a batch, whose numbers are all zero, does not become NaN."""
    model = build_model(norm_eps=1e-50, qk_norm=True)
    check_result(kernels, model, random_batch(model, 1, 33))


def test_batch_whose_positions_int_cannot_count(kernels: Kernels) -> None:
    """The description alone is given: the memory is asked for before the batch is read."""
    model = build_model(n_layer=1)
    native = NativeModel(model, kernels)
    batch = CMicroBatch(batch=2**16, length=2**16)
    with pytest.raises(DeviceError, match="memory"):
        kernels.gradients(native._describe_model(), batch)


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_variants_of_the_architecture(kernels: Kernels, changes: dict[str, Any]) -> None:
    model = build_model(**changes)
    check_result(kernels, model, random_batch(model, 3, 39))


@pytest.mark.parametrize("changes", BIASES, ids=str)
def test_biases(kernels: Kernels, changes: dict[str, Any]) -> None:
    """Over more positions than elsewhere, since the error of a bias depends on few numbers."""
    model = build_model(**changes, bias=True)
    check_result(kernels, model, random_batch(model, 8, 40))


@pytest.mark.parametrize("changes", HEADS, ids=str)
@pytest.mark.parametrize("position", ["rope", "learned"])
def test_heads(kernels: Kernels, changes: dict[str, Any], position: str) -> None:
    """With norms of queries and keys where they are rotated, without where they are not."""
    model = build_model(**changes, position=position, qk_norm=position == "rope")
    check_result(kernels, model, random_batch(model, 2, 40))


@pytest.mark.parametrize(("rows", "length"), BATCHES)
def test_shapes_of_batches(kernels: Kernels, rows: int, length: int) -> None:
    model = build_model(block_size=129, position="rope", qk_norm=True)
    check_result(kernels, model, random_batch(model, rows, length))


@pytest.mark.parametrize("changes", SIZES, ids=str)
def test_sizes_of_layers(kernels: Kernels, changes: dict[str, Any]) -> None:
    model = build_model(**changes)
    check_result(kernels, model, random_batch(model, 2, 40))


@pytest.mark.parametrize("number", range(10))
def test_drawn_architectures(kernels: Kernels, number: int) -> None:
    """Each is the same in every session, and a failing one can be built by its number."""
    draw = random.Random(SEED + number)
    head_dim = draw.choice((32, 64, 96, 128))
    n_head = draw.choice((1, 2, 3))
    length = draw.randint(1, 80)
    changes = {
        "n_layer": draw.randint(1, 3),
        "n_head": n_head,
        "n_embd": head_dim * n_head,
        "block_size": length + draw.randint(0, 9),
        "vocab_size": draw.randint(2, 150),
        "norm": draw.choice(("layernorm", "rmsnorm")),
        "position": draw.choice(("learned", "sinusoidal", "rope")),
        "mlp": draw.choice(("relu", "relu2", "gelu", "gelu_tanh", "swiglu")),
        "bias": draw.random() < 0.5,
        "mlp_width": 16 * draw.randint(1, 20),
        "qk_norm": draw.random() < 0.5,
        "tie_weights": draw.random() < 0.5,
        "dropout": draw.choice((0.0, 0.1)),
        "attention_dropout": draw.choice((0.0, 0.2)),
    }
    model = build_model(**changes)
    drops = bool(changes["dropout"] or changes["attention_dropout"])
    check_result(kernels, model, random_batch(model, draw.randint(1, 4), length), drops=drops)


@pytest.mark.parametrize(
    "weights",
    [
        LossWeights(),
        LossWeights(scale=3.0),
        LossWeights(temperature=0.5),
        LossWeights(later_weights=(0.7,)),
        # More than there are positions after the first.
        LossWeights(later_weights=tuple(0.1 * n for n in range(1, 40))),
        LossWeights(z_weight=0.3),
        LossWeights(teacher_weight=0.4),
        LossWeights(teacher_weight=1.0),
        EVERY_PART,
    ],
    ids=lambda weights: str(weights).removeprefix("LossWeights")[:60],
)
def test_parts_of_the_objective(kernels: Kernels, weights: LossWeights) -> None:
    model = build_model()
    batch = random_batch(model, 3, 33, with_teacher=weights.teacher_weight > 0)
    check_result(kernels, model, batch, weights)


def test_ignored_targets_have_neither_loss_nor_gradient(kernels: Kernels) -> None:
    """As if the positions after the others had not been there."""
    model = build_model()
    native = NativeModel(model, kernels)
    batch = random_batch(model, 1, 40, with_teacher=False)
    targets = batch.targets.clone()
    targets[:, 20:] = IGNORE
    losses = native.compute_gradients(batch.inputs, targets)
    gradients = native.flat_gradients.clone()
    shorter = native.compute_gradients(batch.inputs[:, :20], targets[:, :20])
    assert losses.cross_entropy == pytest.approx(shorter.cross_entropy, rel=1e-6)
    assert error(gradients, native.flat_gradients.double()) < largest_error(kernels, 2**-9)
    # Every number below 0 stands for no target.
    native.compute_gradients(batch.inputs, torch.full_like(targets, -1))
    assert not native.flat_gradients.any()


def test_later_ids_do_not_change_earlier_logits(kernels: Kernels) -> None:
    native = NativeModel(build_model(position="rope").eval(), kernels)
    idx = torch.randint(23, (2, 40))
    logits = native.logits(idx)
    for cut in (1, 16, 17, 33):
        changed = idx.clone()
        changed[:, cut:] = (changed[:, cut:] + 1) % 23
        assert torch.equal(native.logits(changed)[:, :cut], logits[:, :cut])


def test_gradients_are_added_where_they_are_wanted(kernels: Kernels) -> None:
    for tied in (True, False):
        native = NativeModel(build_model(tie_weights=tied, qk_norm=True), kernels)
        one, other = (random_batch(native.model, rows, 33) for rows in (3, 1))
        apart = [native_result(native, batch, EVERY_PART).gradients for batch in (one, other)]
        for adds, batch in ((False, one), (True, other)):
            native.compute_gradients(
                batch.inputs, batch.targets, EVERY_PART, batch.fields["teacher"], adds
            )
        for name, gradient in native.gradients.items():
            expected = apart[0][name].double() + apart[1][name].double()
            assert error(gradient, expected) < 1e-6, name


def test_memory_of_earlier_calls_has_no_effect(kernels: Kernels) -> None:
    """A call reads nothing that it has not written: neither NaN nor what a larger batch left."""
    model = build_model(mlp="swiglu", mlp_width=80, qk_norm=True, position="rope", dropout=0.2)
    native = NativeModel(model, kernels)
    large, small = (random_batch(model, rows, 33) for rows in (5, 1))
    torch.manual_seed(1)
    first = native_result(native, small, EVERY_PART)
    native_result(native, large, EVERY_PART)
    for memory in kernels._memory.values():
        memory.fill_(255)  # which is NaN in every type
    native.flat_gradients.fill_(math.nan)
    torch.manual_seed(1)
    second = native_result(native, small, EVERY_PART)
    assert first.cross_entropy == second.cross_entropy
    assert torch.equal(first.logits, second.logits)
    for name, gradient in first.gradients.items():
        assert torch.equal(gradient, second.gradients[name]), name


def test_bits_do_not_depend_on_the_number_of_threads(kernels: Kernels) -> None:
    model = build_model(qk_norm=True, position="rope", dropout=0.1, tie_weights=False)
    native = NativeModel(model, kernels)
    batch = random_batch(model, 5, 39)

    def computed(threads: int) -> Result:
        torch.set_num_threads(threads)
        torch.manual_seed(1)
        return native_result(native, batch, EVERY_PART)

    expected = computed(1)
    for threads in (1, 2, 3, 7, 2):
        found = computed(threads)
        assert found.cross_entropy == expected.cross_entropy
        assert found.z_loss == expected.z_loss
        assert torch.equal(found.logits, expected.logits)
        for name, gradient in expected.gradients.items():
            assert torch.equal(gradient, found.gradients[name]), name


# Dropout


DROPPING = [
    {"dropout": 0.3, "attention_dropout": 0.0},
    {"dropout": 0.0, "attention_dropout": 0.4, "position": "rope", "qk_norm": True},
    {"dropout": 0.2, "norm": "rmsnorm", "mlp": "swiglu", "n_embd": 96, "n_head": 1},
]


@pytest.mark.parametrize("changes", DROPPING, ids=str)
def test_dropout_drops_the_same_elements_on_the_way_back(
    kernels: Kernels, changes: dict[str, Any]
) -> None:
    """The gradients are those of a model in which masks of the same seeds multiply."""
    model = build_model(**changes)
    torch.manual_seed(4)
    check_result(kernels, model, random_batch(model, 3, 39), drops=True)


def test_dropout_is_that_of_torchs_generator_and_of_the_mode(kernels: Kernels) -> None:
    model = build_model(dropout=0.3)
    native = NativeModel(model, kernels)
    batch = random_batch(model, 2, 33)

    def gradients(seed: int) -> Tensor:
        torch.manual_seed(seed)
        native.compute_gradients(batch.inputs, batch.targets)
        return native.flat_gradients.clone()

    assert torch.equal(gradients(1), gradients(1))
    assert not torch.equal(gradients(1), gradients(2))
    state = torch.get_rng_state()
    following = gradients_after(native, batch, state)
    assert torch.equal(gradients_after(native, batch, state), following)
    model.eval()
    in_eval_mode = gradients(1)
    without_dropout = NativeModel(build_model(), kernels)
    without_dropout.compute_gradients(batch.inputs, batch.targets)
    assert torch.equal(in_eval_mode, without_dropout.flat_gradients)
    # No number is drawn where nothing is dropped.
    state = torch.get_rng_state()
    native.compute_gradients(batch.inputs, batch.targets)
    assert torch.equal(torch.get_rng_state(), state)


def gradients_after(native: NativeModel, batch: StepBatch, state: Tensor) -> Tensor:
    """Return the gradients of a batch, computed from a state of torch's generator on."""
    torch.set_rng_state(state)
    native.compute_gradients(batch.inputs, batch.targets)
    return native.flat_gradients.clone()


@pytest.mark.parametrize(("probability", "seed"), [(0.01, 0), (0.2, 1), (0.5, 2**32 - 1), (0.9, 1)])
def test_masks_drop_so_many_and_scale_up_the_rest(probability: float, seed: int) -> None:
    """By five standard deviations; the comparisons above show that the kernels have these masks."""
    mask = dropout_mask(seed, 128, 384, probability)
    deviation = math.sqrt(probability * (1 - probability) / mask.numel())
    assert abs(float((mask == 0).double().mean()) - probability) < 5 * deviation
    assert mask[mask != 0].unique().tolist() == [pytest.approx(1 / (1 - probability))]


def test_masks_of_rows_columns_and_seeds_are_independent() -> None:
    mask = dropout_mask(3, 256, 512, 0.5) - 1
    # Of every two rows, and of every two columns.
    for matrix, count in ((mask @ mask.T, 512), (mask.T @ mask, 256)):
        assert matrix.fill_diagonal_(0).abs().max() / math.sqrt(count) < 6.5
    for lag in (1, 2, 15, 16, 17, 32):
        assert _correlation(mask[:, lag:], mask[:, :-lag]) < 5
        assert _correlation(mask[lag:], mask[:-lag]) < 5
    for seed in (2, 4, 2**31 + 3):
        other = dropout_mask(seed, 256, 512, 0.5) - 1
        assert _correlation(mask, other) < 5
        assert (mask @ other.T).abs().max() / math.sqrt(512) < 6.5  # of any two rows


def _correlation(one: Tensor, other: Tensor) -> float:
    """Return how two masks correlate, in standard deviations of what independent ones would."""
    one = one.flatten() - one.mean()
    other = other.flatten() - other.mean()
    return float(abs(one @ other) / (one.norm() * other.norm()) * math.sqrt(one.numel()))


# What is not finite, and what is refused


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["wte.weight", "h.0.attn.c_k.weight", "h.1.mlp.c_proj.weight"])
def test_what_is_not_finite_is_seen_in_the_loss(kernels: Kernels, value: float, name: str) -> None:
    model = build_model()
    model.get_parameter(name).data[3, 5] = value
    batch = random_batch(model, 2, 33)
    batch.inputs[0, 7] = 3
    native = NativeModel(model, kernels)
    losses = native.compute_gradients(batch.inputs, batch.targets)
    assert not math.isfinite(losses.cross_entropy)
    assert not math.isfinite(kernels.norm(native.flat_gradients))


def test_scores_however_large_choose_a_key(kernels: Kernels) -> None:
    model = build_model(n_layer=1)
    for name in ("c_q", "c_k"):
        model.h[0].attn.get_submodule(name).weight.data.mul_(1e3)
    batch = random_batch(model, 2, 39)
    native = NativeModel(model, kernels)
    assert math.isfinite(native.compute_gradients(batch.inputs, batch.targets).cross_entropy)
    assert native.flat_gradients.isfinite().all()


def test_logits_however_large_have_a_loss(kernels: Kernels) -> None:
    """The softmax subtracts the largest logit, whose weight then is 1."""
    model = build_model(tie_weights=False)
    model.lm_head.weight.data.mul_(1e4)
    batch = random_batch(model, 2, 39, with_teacher=False)
    teacher = one_hot_teacher(batch.targets, 23)
    native = NativeModel(model, kernels)
    losses = native.compute_gradients(
        batch.inputs, batch.targets, replace(EVERY_PART, z_weight=0.0), teacher
    )
    assert math.isfinite(losses.cross_entropy)
    assert losses.cross_entropy > 1e4
    assert native.flat_gradients.isfinite().all()


def test_model_stays_as_it_is_and_weights_are_read_anew() -> None:
    kernels = load_kernels(torch.float32, read_settings(), processor=EMULATED[1])
    model = build_model()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    modules = [type(module) for module in model.modules()]
    native = NativeModel(model, kernels)
    batch = random_batch(model, 2, 33)
    first = native_result(native, batch, EVERY_PART)
    assert [type(module) for module in model.modules()] == modules
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, before[name])
    assert all(parameter.grad is None for parameter in model.parameters())
    # In place, and at new addresses.
    model.ln_f.weight.data.mul_(2)
    in_place = native_result(native, batch, EVERY_PART)
    model.ln_f.weight.data = model.ln_f.weight.data / 2
    replaced = native_result(native, batch, EVERY_PART)
    assert in_place.cross_entropy != first.cross_entropy == replaced.cross_entropy


def test_wrong_ids_are_refused() -> None:
    kernels = load_kernels(torch.float32, read_settings(), processor=EMULATED[1])
    native = NativeModel(build_model(), kernels)
    idx = torch.randint(23, (2, 9))
    with pytest.raises(InputError, match="vocabulary"):
        native.compute_gradients(idx + 20, idx)
    with pytest.raises(InputError, match="longer than block_size"):
        native.logits(torch.zeros(1, 41, dtype=torch.int64))
    with pytest.raises(IndexError, match="a target is"):
        native.compute_gradients(idx, torch.full_like(idx, 23))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"n_kv_head": 1}, "grouped key and value heads"),
        ({"n_embd": 96}, "heads 48 wide"),
        ({"n_embd": 576}, "heads 288 wide"),
        ({"mlp_width": 24}, "a hidden width of 24"),
        ({"attention": "reference"}, "model.attention=reference"),
    ],
)
def test_options_without_a_kernel_are_named(changes: dict[str, Any], what: str) -> None:
    model = build_model(**{"n_layer": 1, **changes})
    with pytest.raises(DeviceError, match=f"^the native kernels do not cover {what}[^\n]*$"):
        load_native_model(model, FLOAT32, read_settings())


@pytest.mark.parametrize(
    ("edit", "what"),
    [
        (lambda model: model.h[0].register_forward_hook(lambda *_: None), "hooks, and h.0 has one"),
        (lambda model: setattr(model.h[0].mlp.dropout, "p", 0.5), "h.0.mlp.dropout.p"),
        (lambda model: setattr(model, "ln_f", nn.Identity()), "modules of class Identity"),
    ],
    ids=["hook", "dropout", "module"],
)
def test_edited_models_are_refused(edit: Any, what: str) -> None:
    model = build_model()
    edit(model)
    with pytest.raises(DeviceError, match=f"^the native kernels do not cover {what}"):
        load_native_model(model, FLOAT32, read_settings())


def test_types_without_kernels_are_refused() -> None:
    with pytest.raises(
        DeviceError, match=r"^the native kernels are for float32 and bfloat16 on a CPU$"
    ):
        load_native_model(build_model(), Compute(CPU, torch.float16), read_settings())
    with pytest.raises(
        DeviceError, match=r"^this processor \(generic\) has no instructions for bfloat16$"
    ):
        load_kernels(torch.bfloat16, replace(read_settings(), processor="generic"))
