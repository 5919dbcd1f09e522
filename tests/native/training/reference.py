"""Losses, logits and gradients of a model by its own modules in float64, with given dropout."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.config import ModelConfig
from gpt.data.batches import StepBatch
from gpt.data.tokens import IGNORE
from gpt.model import GPT
from gpt.native.training.native_model import LossWeights, NativeModel
from gpt.system.device import Compute
from gpt.training.objective import TEACHER, Objective

WORD = 2**32 - 1
"""The largest number of 32 bits."""
EVERY_PART = LossWeights(
    scale=0.01, temperature=0.8, later_weights=(0.5, 0.25), teacher_weight=0.3, z_weight=0.1
)
"""An objective with every part that the library computes."""


@dataclass(frozen=True)
class Result:
    """What a pass over a batch computes.

    Attributes:
        logits: (B, T, V), or (0,) where they were not asked for.
        gradients: by the names of the parameters.
    """

    cross_entropy: float
    z_loss: float
    logits: Tensor
    gradients: dict[str, Tensor]


def build_model(**config: Any) -> GPT:
    """Return a model whose weights are so large that every part of it matters to the losses."""
    values = {"n_layer": 2, "n_head": 2, "n_embd": 64, "block_size": 40, "vocab_size": 23}
    torch.manual_seed(0)
    model = GPT(ModelConfig.model_validate({**values, **config}))
    for name, parameter in model.named_parameters():
        is_vector = parameter.dim() == 1
        is_gain = is_vector and not name.endswith("bias")
        # A sum over a row of `fan_in` products then has about the size of one of its terms.
        std = 0.3 if is_vector else parameter.size(1) ** -0.5
        nn.init.normal_(parameter, mean=float(is_gain), std=std)
    return model


def random_batch(model: GPT, rows: int, length: int, with_teacher: bool = True) -> StepBatch:
    """Return random ids, of whose targets every fifth does not count."""
    inputs, targets = torch.randint(model.vocab_size, (2, rows, length))
    targets.view(-1)[2::5] = IGNORE
    batch = StepBatch(inputs, targets)
    if with_teacher:
        probs = torch.randn(rows, length, model.vocab_size).softmax(dim=-1)
        batch = StepBatch(inputs, targets, {TEACHER: probs})
    return batch


def native_result(native: NativeModel, batch: StepBatch, weights: LossWeights) -> Result:
    """Return what the library computes of a batch; the logits are those without dropout."""
    losses = native.compute_gradients(
        batch.inputs, batch.targets, weights, batch.fields.get(TEACHER)
    )
    gradients = {name: gradient.clone() for name, gradient in native.gradients.items()}
    was_training = native.model.training
    native.model.eval()
    logits = native.logits(batch.inputs)
    native.model.train(was_training)
    return Result(losses.cross_entropy, losses.z_loss, logits, gradients)


def exact_result(
    model: GPT,
    batch: StepBatch,
    weights: LossWeights,
    dtype: torch.dtype = torch.float32,
    masks: Mapping[str, Tensor] | None = None,
) -> Result:
    """Return what `gpt.model` and `gpt.training.objective` compute of a batch, in float64.

    Args:
        dtype: bfloat16 computes in bfloat16 instead, as a training by PyTorch does.
        masks: what dropout multiplies its input by, by the names of the modules.
    """
    exact = GPT(model.config)
    exact.load_state_dict(model.state_dict())
    computes_exactly = dtype != torch.bfloat16
    if computes_exactly:
        exact.double()
    _fix_dropout(exact, masks or {})
    objective = Objective(
        logit_temperature=weights.temperature,
        mtp_weights=weights.later_weights,
        teacher_weight=weights.teacher_weight,
        terms=(("z_loss", weights.z_weight),) if weights.z_weight else (),
    )
    forward = _KeepingLogits(exact)
    compute = Compute(torch.device("cpu"), dtype)
    mtp_scale = 1.0 if weights.later_weights else None
    losses = objective(forward, batch, compute, mtp_scale)
    torch.autograd.backward(losses.minimized * weights.scale)
    gradients: dict[str, Tensor] = {}
    for name, parameter in exact.named_parameters():
        assert parameter.grad is not None
        gradients[name] = parameter.grad
    z_loss = float(losses.terms.get("z_loss", torch.nan))
    return Result(float(losses.cross_entropy), z_loss, forward.logits, gradients)


class _KeepingLogits(nn.Module):
    """Calls a model, keeps its logits, and gives them in float64 to the objective."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model = model
        self.logits = torch.empty(0)

    def forward(self, idx: Tensor) -> Tensor:
        logits: Tensor = self.model(idx)
        self.logits = logits.detach()
        return logits.double()


class _Masked(nn.Module):
    """Multiplies its input by a mask, or returns the input where there is none."""

    def __init__(self, mask: Tensor | None) -> None:
        super().__init__()
        self.mask = mask

    def forward(self, x: Tensor) -> Tensor:
        return x if self.mask is None else x * self.mask.to(x.dtype)


def _fix_dropout(model: GPT, masks: Mapping[str, Tensor]) -> None:
    """Replace each dropout of a model by its mask."""
    model.set_submodule("drop", _Masked(masks.get("drop")))
    for number in range(model.config.n_layer):
        block = f"h.{number}"
        model.set_submodule(f"{block}.attn.resid_dropout", _Masked(masks.get(f"{block}.attn")))
        model.set_submodule(f"{block}.mlp.dropout", _Masked(masks.get(f"{block}.mlp")))
        # The reference writes attention out, so that its weights have a place for the mask.
        core = model.get_submodule(f"{block}.attn.core.reference")
        core.dropout = _Masked(masks.get(f"{block}.weights"))
        model.set_submodule(f"{block}.attn.core", core)


def dropout_masks(model: GPT, rows: int, length: int) -> dict[str, Tensor]:
    """Return what each dropout of the library multiplies by, by the names of `exact_result`.

    The seeds are drawn from torch's generator as the library's are, in the same order.
    """
    config = model.config
    width = config.n_embd
    positions = rows * length

    def residual() -> Tensor:
        mask = dropout_mask(_seed(config.dropout), positions, width, config.dropout)
        return mask.view(rows, length, width)

    masks = {"drop": residual()}
    for number in range(config.n_layer):
        # A query of a head of a sequence has a stream, with a number for each key.
        probability = config.weights_dropout
        queries = rows * config.n_head * length
        of_weights = dropout_mask(_seed(probability), queries, length, probability)
        masks[f"h.{number}.weights"] = of_weights.view(rows, config.n_head, length, length)
        masks[f"h.{number}.attn"] = residual()
        masks[f"h.{number}.mlp"] = residual()
    return masks


def _seed(probability: float) -> int:
    return int(torch.randint(2**32, ())) if probability > 0 else 0


def dropout_mask(seed: int, streams: int, count: int, probability: float) -> Tensor:
    """Return what `Dropout` of `src/training/dropout.h` multiplies by, (streams, count)."""
    stream = _hash(torch.tensor(seed) ^ _hash(torch.arange(streams))).unsqueeze(1)  # (streams, 1)
    hashes = _hash((stream + torch.arange(count)) & WORD)
    # The probability is a float32 in C.
    threshold = int(float(torch.tensor(probability)) * 2**32)
    return (hashes >= threshold).double() / (1 - probability)


def _hash(x: Tensor) -> Tensor:
    """Return the hash of each 32-bit number of an int64 tensor, as `hash` of `dropout.h` does.

    A product of two numbers of 32 bits overflows int64, but its lower 32 bits are right.
    """
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & WORD
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & WORD
    return x ^ (x >> 16)


def one_hot_teacher(targets: Tensor, vocab_size: int) -> Tensor:
    """Return probabilities (B, T, V) that are 1 at each target; ignored targets are id 0."""
    return F.one_hot(targets.clamp(min=0), vocab_size).double()
