"""Blocks that the kernels of `functions.py` compute, with the parameters of those they replace."""

from typing import Any

import torch
from torch import Tensor, nn

from gpt.config import ModelConfig
from gpt.model import GPT
from gpt.model.attention import Append
from gpt.model.gpt import Block
from gpt.model.positions import Rotation
from gpt.native.around_torch import around_torch
from gpt.native.coverage import changed_module, changed_tensor, has_hooks, uncovered
from gpt.native.fingerprint import TRAINING, changed_code
from gpt.native.training import functions as native
from gpt.native.training.bindings import Kernels, load_kernels
from gpt.native.training.functions import ACTIVATIONS, Dropout, HeadNorms, NormOptions
from gpt.system.device import Compute
from gpt.system.environment import Settings
from gpt.system.errors import DeviceError
from gpt.system.progress import Report, silent

NUM_SEEDS = 2**32
"""How many seeds there are for the kernels' dropout: a seed has 32 bits."""


class NativeBlock(Block):
    """A block that a dozen kernel calls compute.

    It shares the modules of the block that it replaces, so that parameters keep their names.

    PyTorch computes the block as before with a cache or a mask, inside a mode of torch, and after a
    module in it was changed or got a hook. PyTorch computes evaluations in float32 too, so that the
    loss of a checkpoint is the same to the last bit with and without kernels.
    """

    def __init__(self, block: Block, config: ModelConfig, kernels: Kernels) -> None:
        # Not `super().__init__`, which would make new modules.
        nn.Module.__init__(self)
        self.training = block.training
        # Typed as Any, because `use_native_blocks` has checked which classes these modules have.
        self.ln_1: Any = block.ln_1
        self.attn: Any = block.attn
        self.ln_2: Any = block.ln_2
        self.mlp: Any = block.mlp
        self._config = config
        self._kernels = kernels
        self._norm = NormOptions(centered=config.norm == "layernorm", eps=config.norm_eps)
        self._original = self._describe_modules()  # to notice later changes

    def __reduce__(self) -> tuple[Any, ...]:
        return _reduce_to_base(self, ("_config", "_kernels", "_norm", "_original"))

    def forward(
        self,
        x: Tensor,
        rotation: Rotation | None,
        mask: Tensor | None,
        append: Append | None = None,
    ) -> Tensor:
        """Map x (B, T, C) to (B, T, C), by the kernels if they cover the call."""
        if not self._is_covered(mask, append):
            return super().forward(x, rotation, mask, append)
        kernels = self._kernels
        config = self._config
        attn = self.attn
        mlp = self.mlp
        drop_weights, drop_attn, drop_mlp = self._sample_dropout()

        # x is the residual stream, h a normalized input, and y what a layer adds to the stream.
        x, h = native.add_norm(kernels, x, None, self.ln_1.weight, self._norm, Dropout())
        qkv = native.linear(kernels, h, attn.c_q.weight, attn.c_k.weight, attn.c_v.weight)
        norms = None
        if config.qk_norm:
            norms = HeadNorms(attn.q_norm.weight, attn.k_norm.weight, config.norm_eps)
        y = native.attention(kernels, qkv, config.n_head, norms, rotation, drop_weights)
        y = native.linear(kernels, y, attn.c_proj.weight)

        # One kernel adds what attention gives, with its dropout, and normalizes for the MLP.
        x, h = native.add_norm(kernels, x, y, self.ln_2.weight, self._norm, drop_attn)
        if config.mlp == "swiglu":
            h = native.linear(kernels, h, mlp.c_gate.weight, mlp.c_fc.weight)  # (B, T, 2 F)
        else:
            h = native.linear(kernels, h, mlp.c_fc.weight)  # (B, T, F)
        h = native.activate(kernels, h, config.mlp)  # (B, T, F)
        y = native.linear(kernels, h, mlp.c_proj.weight)
        return native.add(kernels, x, y, drop_mlp)

    def _is_covered(self, mask: Tensor | None, append: Append | None) -> bool:
        """Return whether the kernels may compute this call; the class says when PyTorch does."""
        if mask is not None or append is not None:
            return False
        # Asked in each call, since a user may change a module between two steps.
        if self._original != self._describe_modules():
            return False
        evaluates_in_float32 = not torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
        return not evaluates_in_float32 and around_torch() is None

    def _describe_modules(self) -> list[tuple[Any, ...]]:
        """Return the modules inside, each with all that a user may change in what it computes.

        Weights are left out: the kernels read them anew in each call.
        """
        names = ("p", "dropout", "activation", "eps", "forward")
        described: list[tuple[Any, ...]] = []
        for module in self.modules():
            if module is self:
                continue
            # Parameters by name and class: a user may have set a bias, or parametrized a weight.
            parameters = [(name, type(value)) for name, value in module._parameters.items()]
            # Of the instance only: a `forward` that was set on it hides that of its class.
            attributes = map(vars(module).get, names)
            described.append((module, type(module), has_hooks(module), parameters, *attributes))
        return described

    def _sample_dropout(self) -> tuple[Dropout, Dropout, Dropout]:
        """Return this call's dropout of the attention weights, after attention and after the MLP.

        Each follows the mode of its own module, since a user may put a single one into eval mode.
        """
        config = self._config
        core = self.attn.core
        # `AutoCore.forward` chooses one of its two modules in this way, and the mode of that module
        # counts. The reference has a dropout module inside, and the fused kernel drops by itself.
        uses_reference = torch.is_grad_enabled() and self._kernels.dtype == torch.bfloat16
        if uses_reference:
            drops_weights = core.reference.dropout.training
        else:
            drops_weights = core.sdpa.training
        # The seeds are drawn from torch's generator in this order, on which the results depend.
        weights = _dropout(config.weights_dropout, drops_weights)
        after_attn = _dropout(config.dropout, self.attn.resid_dropout.training)
        after_mlp = _dropout(config.dropout, self.mlp.dropout.training)
        return weights, after_attn, after_mlp


class NativeDropout(nn.Dropout):
    """The dropout of the embeddings on all threads; torch's own uses one thread on a CPU."""

    def __init__(self, p: float, kernels: Kernels) -> None:
        super().__init__(p)
        self._kernels = kernels

    def __reduce__(self) -> tuple[Any, ...]:
        return _reduce_to_base(self, ("_kernels",))

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if around_torch() is not None:
            return super().forward(x)
        return native.drop_out(self._kernels, x, Dropout(self.p, _random_seed()))


def _dropout(probability: float, is_training: bool) -> Dropout:
    """Return a dropout with a new seed, or one that drops nothing, for which no seed is drawn."""
    if not is_training or probability == 0:
        return Dropout()
    return Dropout(probability, _random_seed())


def _random_seed() -> int:
    """Return a seed from torch's generator, whose state is saved in checkpoints."""
    return int(torch.randint(NUM_SEEDS, ()))


def _reduce_to_base(module: nn.Module, own: tuple[str, ...]) -> tuple[Any, ...]:
    """Return a result for `__reduce__` by which copies and pickles are modules of the base class.

    No copy or pickle can hold the loaded library of the kernels.

    Args:
        own: the attributes that the base class does not have.
    """
    state = {name: value for name, value in vars(module).items() if name not in own}
    # `object.__new__` makes the copy without a call of its constructor, and `state` fills it in.
    return object.__new__, (type(module).__base__,), state


def use_native_blocks(
    model: GPT, compute: Compute, settings: Settings, report: Report = silent
) -> str:
    """Make a model train with native kernels, and return a description of them for the user.

    Raises:
        DeviceError: there are no kernels for this device, dtype, model or edited code.
    """
    if compute.device.type != "cpu" or compute.dtype == torch.float16:
        raise DeviceError("the native kernels are for float32 and bfloat16 on a CPU")
    # The configuration is looked at first, since it gives the shortest reasons.
    reason = (
        _uncovered(model.config) or changed_module(model, trains=True) or changed_tensor(model.h)
    )
    if reason:
        raise DeviceError(f"the native kernels do not cover {reason}")
    # The kernels compute what the code of `gpt.model` said when they were written.
    edited = changed_code(TRAINING)
    if edited:
        raise DeviceError(edited)
    kernels = load_kernels(compute.dtype, settings, report)
    replace_blocks(model, kernels)
    return f"{kernels.processor.name}, {str(compute.dtype).removeprefix('torch.')}"


def replace_blocks(model: GPT, kernels: Kernels) -> None:
    """Replace every block, and the dropout before the blocks, in place.

    Parameters keep their names and identity, and modules their training or eval mode.
    """
    model.drop = NativeDropout(model.config.dropout, kernels).train(model.drop.training)
    for index, block in enumerate(model.h):
        model.h[index] = NativeBlock(block, model.config, kernels)  # type: ignore[arg-type]


def _uncovered(config: ModelConfig) -> str | None:
    """Return what a configuration has that the kernels do not compute; None if there is nothing."""
    reason = uncovered(config, ACTIVATIONS)
    if reason:
        return reason
    hidden = config.mlp_hidden
    head_dim = config.head_dim
    # Kernels compute whole vectors, and are written for these widths only.
    is_head_covered = head_dim % 32 == 0 and head_dim <= 256
    is_hidden_covered = hidden % 16 == 0
    reasons = {
        # whoever names an attention wants that one and no kernel
        f"model.attention={config.attention}": config.attention != "auto",
        "biases": config.bias,
        "grouped key and value heads": config.kv_heads != config.n_head,
        f"heads {head_dim} wide (a multiple of 32 is needed, at most 256)": not is_head_covered,
        f"a hidden width of {hidden} (model.mlp_width has to be a multiple of 16)": (
            not is_hidden_covered
        ),
    }
    for reason, holds in reasons.items():
        if holds:
            return reason
    return None
