"""Compute the loss of a GPT and its gradients by one call of the compiled library.

The model is never changed: the library reads its parameters, and writes their gradients to one
buffer, whose parts have the shapes of the parameters.
"""

import ctypes
from ctypes import c_void_p
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpt.config import ModelConfig
from gpt.model import GPT
from gpt.model.positions import LearnedPositions, Rotary, SinusoidalPositions
from gpt.native.contract import Activation, floats, pointer
from gpt.native.coverage import changed_module, changed_tensor, uncovered_option
from gpt.native.fingerprint import TRAINING, changed_code
from gpt.native.training.bindings import (
    CBlockTensors,
    CLossSums,
    CMicroBatch,
    CModelTensors,
    CTrainedModel,
    Kernels,
    load_kernels,
)
from gpt.system.device import Compute
from gpt.system.environment import Settings
from gpt.system.errors import DeviceError
from gpt.system.progress import Report, silent

ACTIVATIONS = {
    "relu": Activation.RELU,
    "relu2": Activation.RELU_SQUARED,
    "gelu": Activation.GELU,
    "gelu_tanh": Activation.GELU_TANH,
    "swiglu": Activation.GATED_SILU,
}
"""Supported values of `ModelConfig.mlp`."""
NUM_SEEDS = 2**32
"""How many seeds there are for the dropout of the kernels: a seed has 32 bits."""
SEEDS_PER_BLOCK = 3
"""Dropouts of a block: of attention weights, after attention, and after the MLP."""
BLOCK_PARAMETERS = {
    "ln_1": "ln_1.weight",
    "c_q": "attn.c_q.weight",
    "c_k": "attn.c_k.weight",
    "c_v": "attn.c_v.weight",
    "q_norm": "attn.q_norm.weight",
    "k_norm": "attn.k_norm.weight",
    "c_proj": "attn.c_proj.weight",
    "ln_2": "ln_2.weight",
    "c_gate": "mlp.c_gate.weight",
    "c_fc": "mlp.c_fc.weight",
    "mlp_c_proj": "mlp.c_proj.weight",
    "ln_1_bias": "ln_1.bias",
    "c_q_bias": "attn.c_q.bias",
    "c_k_bias": "attn.c_k.bias",
    "c_v_bias": "attn.c_v.bias",
    "c_proj_bias": "attn.c_proj.bias",
    "ln_2_bias": "ln_2.bias",
    "c_gate_bias": "mlp.c_gate.bias",
    "c_fc_bias": "mlp.c_fc.bias",
    "mlp_c_proj_bias": "mlp.c_proj.bias",
}
"""Names of a block's parameters by the fields of `BlockTensors`; no model has all of them."""


@dataclass(frozen=True)
class LossWeights:
    """How the losses of a batch are weighted; see `gpt.training.objective.Objective`.

    Attributes:
        scale: factor of all gradients.
        later_weights: weights of the targets one, two, ... positions further.
    """

    scale: float = 1.0
    temperature: float = 1.0
    later_weights: tuple[float, ...] = ()
    teacher_weight: float = 0.0
    z_weight: float = 0.0


class NativeModel:
    """A GPT whose gradients the compiled library computes.

    Attributes:
        report: called with a line for the user if PyTorch has to compute instead.
        flat_gradients: the gradients of all parameters, (N,) float32.
        gradients: views of `flat_gradients` in the shapes of the parameters, by the names of the
            parameters; a tied weight has one name.
    """

    def __init__(self, model: GPT, kernels: Kernels, report: Report = silent) -> None:
        self.model = model
        self.kernels = kernels
        self.report = report
        self.parameters = dict(model.named_parameters())
        sizes = [parameter.numel() for parameter in self.parameters.values()]
        # One tensor for all, so that one call of the library computes their norm, and another one
        # clips it.
        self.flat_gradients = torch.zeros(sum(sizes), dtype=torch.float32)
        parts = torch.split(self.flat_gradients, sizes)
        self.gradients = {
            name: part.view(parameter.shape)
            for part, (name, parameter) in zip(parts, self.parameters.items(), strict=True)
        }
        # `_describe_model` makes the C structure when it is needed first, and again whenever the
        # addresses of the parameters have changed. An empty list differs from any addresses.
        self._description = CTrainedModel()
        self._addresses: list[int] = []
        # Keeps the arrays alive that the description points to.
        self._blocks: list[Any] = []

    def compute_gradients(
        self,
        inputs: Tensor,
        targets: Tensor,
        weights: LossWeights = LossWeights(),
        teacher: Tensor | None = None,
        adds: bool = False,
    ) -> CLossSums:
        """Compute `flat_gradients` and return the sums of the losses over positions.

        There is dropout if the model is in training mode.

        Args:
            inputs: (B, T) int64.
            targets: (B, T) int64; those below 0 do not count.
            teacher: probabilities of the next token, (B, T, V).
            adds: whether to add the gradients to those of the call before, as is done for several
                micro-batches.

        Raises:
            DeviceError: there is not enough memory.
            IndexError: a target is not in the vocabulary.
        """
        # C++ does not check targets: too large a target would make it read other memory.
        largest_target = int(targets.max())
        if largest_target >= self.model.vocab_size:
            raise IndexError(f"a target is {largest_target}, outside of the vocabulary")
        batch = self._describe_batch(inputs, weights)
        # The batch has only addresses of these tensors, which live until this method returns.
        targets = targets.long().contiguous()
        batch.targets = pointer(targets, torch.int64)
        if teacher is not None:
            teacher = teacher.float().contiguous()
            batch.teacher = floats(teacher)
        batch.adds = adds
        return self.kernels.gradients(self._describe_model(), batch)

    def logits(self, inputs: Tensor) -> Tensor:
        """Return the logits (B, T, V) of ids (B, T), without gradients."""
        logits = torch.empty(*inputs.shape, self.model.vocab_size, dtype=torch.float32)
        batch = self._describe_batch(inputs, LossWeights())
        batch.logits = floats(logits)
        self.kernels.gradients(self._describe_model(), batch)
        return logits

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return `logits(inputs)`, as the model itself does."""
        return self.logits(inputs)

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    def _describe_batch(self, inputs: Tensor, weights: LossWeights) -> CMicroBatch:
        """Return the C structure of a batch, which has new seeds for dropout."""
        self.model.check(inputs)  # C++ does not check ids
        inputs = inputs.long().contiguous()  # the library reads int64 only
        sampled_seeds = self._sample_seeds()
        seeds = (ctypes.c_uint32 * len(sampled_seeds))(*sampled_seeds)
        later_weights = (ctypes.c_float * len(weights.later_weights))(*weights.later_weights)
        batch = CMicroBatch(
            inputs=pointer(inputs, torch.int64),
            seeds=ctypes.cast(seeds, c_void_p),
            later_weights=ctypes.cast(later_weights, c_void_p),
            scale=weights.scale,
            temperature=weights.temperature,
            teacher_weight=weights.teacher_weight,
            z_weight=weights.z_weight,
            later=len(later_weights),
            batch=inputs.size(0),
            length=inputs.size(1),
        )
        # The structure holds only addresses. This attribute keeps alive what they point to.
        batch.kept = (inputs, seeds, later_weights)
        return batch

    def _sample_seeds(self) -> list[int]:
        """Sample a seed for each dropout of the model: of the embeddings, then three of each block.

        The seeds come from torch's generator, whose state is saved in checkpoints, so that a
        resumed training has the same dropout. A dropout that drops nothing takes no random number.
        """
        config = self.model.config
        is_training = self.model.training
        dropout = config.dropout if is_training else 0.0
        weights_dropout = config.weights_dropout if is_training else 0.0
        seeds = [_sample_seed(dropout)]  # of the embeddings
        for _ in self.model.h:
            seeds.append(_sample_seed(weights_dropout))  # of the attention weights
            seeds.append(_sample_seed(dropout))  # after attention
            seeds.append(_sample_seed(dropout))  # after the MLP
        return seeds

    def _describe_model(self) -> CTrainedModel:
        """Return the C structure of the model, with the addresses that its tensors have now."""
        addresses = [parameter.data_ptr() for parameter in self.parameters.values()]
        description = self._description
        if addresses != self._addresses:
            # A parameter has other memory than before, and may have another dtype or device too.
            # `floats` checks that: it raises TypeError for a parameter that C could not read.
            for parameter in self.parameters.values():
                floats(parameter.detach())
            description = self._describe_tensors()
            self._description = description
            self._addresses = addresses
        config = self.model.config
        description.dropout = config.dropout if self.model.training else 0.0
        description.weights_dropout = config.weights_dropout if self.model.training else 0.0
        return description

    def _describe_tensors(self) -> CTrainedModel:
        """Return a new C structure of the model, still without the probabilities of dropout.

        Pointers that no assignment sets are null: rotary models add no position table, for example.
        """
        config = self.model.config
        weights = {name: parameter.detach() for name, parameter in self.parameters.items()}
        self._blocks = []
        description = CTrainedModel(
            weights=self._describe_set(weights),
            gradients=self._describe_set(self.gradients),
            norm_eps=config.norm_eps,
            layers=config.n_layer,
            heads=config.n_head,
            width=config.n_embd,
            hidden=config.mlp_hidden,
            vocab=self.model.vocab_size,
            block_size=config.block_size,
            is_layer_norm=config.norm == "layernorm",
            activation=ACTIVATIONS[config.mlp],
        )
        added = self.model.wpe  # the positions that are added to the token embeddings
        if isinstance(added, LearnedPositions):
            description.added = floats(added.weight.detach())
        elif isinstance(added, SinusoidalPositions):
            description.added = floats(added.table)
        rotation = self.model.rotation
        if isinstance(rotation, Rotary):
            description.cosine = floats(rotation.cos)
            description.sine = floats(rotation.sin)
        return description

    def _describe_set(self, tensors: dict[str, Tensor]) -> CModelTensors:
        """Return the C structure of the model's weights, or of their gradients.

        A parameter that the model does not have, such as a bias, becomes a null pointer.
        """
        blocks = (CBlockTensors * self.model.config.n_layer)()
        for number, block in enumerate(blocks):
            for field, name in BLOCK_PARAMETERS.items():
                setattr(block, field, floats(tensors.get(f"h.{number}.{name}")))
        # `CModelTensors` has only the address of the array, which is kept alive here.
        self._blocks.append(blocks)
        wte = tensors["wte.weight"]
        return CModelTensors(
            wte=floats(wte),
            wpe=floats(tensors.get("wpe.weight")),
            ln_f=floats(tensors["ln_f.weight"]),
            ln_f_bias=floats(tensors.get("ln_f.bias")),
            # A tied head is the matrix `wte`, and has no entry of its own.
            lm_head=floats(tensors.get("lm_head.weight", wte)),
            blocks=ctypes.cast(blocks, c_void_p),
        )


def _sample_seed(probability: float) -> int:
    return int(torch.randint(NUM_SEEDS, ())) if probability > 0 else 0


def load_native_model(
    model: GPT, compute: Compute, settings: Settings, report: Report = silent
) -> NativeModel:
    """Return a model whose gradients the kernels compute.

    Raises:
        DeviceError: there are no kernels for this device, dtype, model or edited code.
    """
    if compute.device.type != "cpu" or compute.dtype == torch.float16:
        raise DeviceError("the native kernels are for float32 and bfloat16 on a CPU")
    # The configuration is looked at first, since it gives the shortest reasons.
    reason = _uncovered_in_training(model.config)
    reason = reason or changed_module(model, trains=True) or changed_tensor(model)
    if reason:
        raise DeviceError(f"the native kernels do not cover {reason}")
    # The kernels compute what the code of the package did when they were written. If somebody has
    # edited the code since, PyTorch computes what it says now.
    edited = changed_code(TRAINING)
    if edited:
        raise DeviceError(edited)
    return NativeModel(model, load_kernels(compute.dtype, settings, report), report)


def _uncovered_in_training(config: ModelConfig) -> str | None:
    """Return what a configuration has that the kernels do not compute; None if there is nothing."""
    reason = uncovered_option(config, ACTIVATIONS)
    if reason is not None:
        return reason
    if config.attention != "auto":
        # Whoever names one of PyTorch's ways to compute attention wants that one, and no kernel.
        return f"model.attention={config.attention}"
    if config.kv_heads != config.n_head:
        return "grouped key and value heads"
    # The kernels compute whole vectors, and are written for heads and hidden layers that fill them.
    head_dim = config.head_dim
    if head_dim % 32 != 0 or head_dim > 256:
        return f"heads {head_dim} wide (a multiple of 32 is needed, at most 256)"
    hidden = config.mlp_hidden
    if hidden % 16 != 0:
        return f"a hidden width of {hidden} (model.mlp_width has to be a multiple of 16)"
    return None
