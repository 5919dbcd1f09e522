"""Blocks computed by the kernels of `functions.py`, with the parameters of the blocks they replace."""

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
from gpt.native.training.functions import ACTIVATIONS, Dropout, NormOptions
from gpt.system.device import Compute
from gpt.system.environment import Settings
from gpt.system.errors import DeviceError
from gpt.system.progress import Report, silent

LARGEST_SEED = 2**32


def _as_plain(module: nn.Module) -> tuple[Any, ...]:
    """Reduce a native module to the plain one that it stands for, since no copy or pickle can hold a loaded library."""
    own = ("_config", "_kernels", "_norm", "_inner")
    state = {name: value for name, value in vars(module).items() if name not in own}
    return object.__new__, (type(module).__base__,), state


class NativeBlock(Block):
    """A block whose pass takes a dozen kernel calls.

    With a cache, a mask, hooks on modules inside it or changes of them, or a mode of torch around it, it is the
    original block's, and so is an evaluation in float32: that of a checkpoint to the last bit.

    It shares the modules of the block that it replaces, so that parameters keep their names.
    """

    __reduce__ = _as_plain

    def __init__(self, block: Block, config: ModelConfig, kernels: Kernels) -> None:
        nn.Module.__init__(self)
        self.training = block.training
        self.ln_1, self.attn, self.ln_2, self.mlp = block.ln_1, block.attn, block.ln_2, block.mlp
        self._config, self._kernels = config, kernels
        self._norm = NormOptions(config.norm == "layernorm", config.norm_eps)
        self._inner = self._in_use()

    def forward(
        self, x: Tensor, rotation: Rotation | None, mask: Tensor | None, append: Append | None = None
    ) -> Tensor:
        """Map x (B, T, C) to (B, T, C); by PyTorch with a mask or a cache, in float32 evaluations, or once edited."""
        evaluates_in_float32 = not torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
        is_other = append is not None or mask is not None or self._inner != self._in_use()
        if is_other or evaluates_in_float32 or around_torch() is not None:
            return super().forward(x, rotation, mask, append)
        kernels, config, norm = self._kernels, self._config, self._norm
        ln_1, attn, ln_2, mlp = self._parts
        drop_weights, drop_attn, drop_mlp = self._sample_dropout()
        x, h = native.add_norm(kernels, x, None, ln_1.weight, norm, Dropout())
        qkv = native.linear(kernels, h, attn.c_q.weight, attn.c_k.weight, attn.c_v.weight)
        gains = (attn.q_norm.weight, attn.k_norm.weight) if config.qk_norm else None
        y = native.attention(kernels, qkv, config.n_head, gains, rotation, config.norm_eps, drop_weights)
        x, h = native.add_norm(kernels, x, native.linear(kernels, y, attn.c_proj.weight), ln_2.weight, norm, drop_attn)
        hidden = (mlp.c_gate.weight, mlp.c_fc.weight) if config.mlp == "swiglu" else (mlp.c_fc.weight,)
        h = native.activate(kernels, native.linear(kernels, h, *hidden), config.mlp)
        return native.add(kernels, x, native.linear(kernels, h, mlp.c_proj.weight), drop_mlp)

    def _in_use(self) -> list[tuple[Any, ...]]:
        """Return the modules inside, and what decides what each computes."""
        names = ("p", "dropout", "activation", "eps", "forward")
        found: list[tuple[Any, ...]] = []
        for module in self.modules():
            if module is not self:
                attributes = map(vars(module).get, names)
                found.append((module, type(module), has_hooks(module), _kinds(module), *attributes))
        return found

    @property
    def _parts(self) -> tuple[Any, Any, Any, Any]:
        """The block's modules, untyped, since their classes were checked before."""
        return self.ln_1, self.attn, self.ln_2, self.mlp

    def _sample_dropout(self) -> list[Dropout]:
        """Return the dropout of attention weights, attention and MLP, each by the mode of its own module."""
        config, (_, attn, _, mlp) = self._config, self._parts
        # as `AutoCore` chooses
        written_out = torch.is_grad_enabled() and self._kernels.dtype == torch.bfloat16
        drops_weights = attn.core.reference.dropout.training if written_out else attn.core.sdpa.training
        weights = config.weights_dropout if drops_weights else 0.0
        after_attn = config.dropout if attn.resid_dropout.training else 0.0
        after_mlp = config.dropout if mlp.dropout.training else 0.0
        return [Dropout(p, _random_seed() if p else 0) for p in (weights, after_attn, after_mlp)]


def _kinds(module: nn.Module) -> list[tuple[str, type]]:
    """Return which parameters a module has by itself, and of which class: a bias may have been set later."""
    return [(name, type(parameter)) for name, parameter in module._parameters.items()]


class NativeDropout(nn.Dropout):
    """The dropout of the embeddings, on all threads; torch's generator on a CPU uses only one."""

    __reduce__ = _as_plain

    def __init__(self, p: float, kernels: Kernels) -> None:
        super().__init__(p)
        self._kernels = kernels

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if around_torch() is not None:
            return super().forward(x)
        return native.drop_out(self._kernels, x, Dropout(self.p, _random_seed()))


def _random_seed() -> int:
    """Return a seed from torch's generator, whose state is saved in checkpoints."""
    return int(torch.randint(LARGEST_SEED, ()))


def use_native_blocks(model: GPT, compute: Compute, settings: Settings, report: Report = silent) -> str:
    """Make a model train with native kernels; return a description of the instructions that they use."""
    if compute.device.type != "cpu" or compute.dtype == torch.float16:
        raise DeviceError("the native kernels are for float32 and bfloat16 on a CPU")
    if reason := _uncovered(model.config) or changed_module(model, trains=True) or changed_tensor(model.h):
        raise DeviceError(f"the native kernels do not cover {reason}")
    if reason := changed_code(TRAINING):
        raise DeviceError(reason)
    kernels = load_kernels(compute.dtype, settings, report)
    replace_blocks(model, kernels)
    return f"{kernels.processor.name}, {str(compute.dtype).removeprefix('torch.')}"


def replace_blocks(model: GPT, kernels: Kernels) -> None:
    """Replace every block and the dropout before them; parameters keep their names and identity, modules their mode."""
    model.drop = NativeDropout(model.config.dropout, kernels).train(model.drop.training)
    for index, block in enumerate(model.h):
        model.h[index] = NativeBlock(block, model.config, kernels)  # type: ignore[arg-type]


def _uncovered(config: ModelConfig) -> str | None:
    if unknown := uncovered(config, ACTIVATIONS):
        return unknown
    hidden, head_dim = config.mlp_hidden, config.head_dim
    reasons = {
        f"model.attention={config.attention}": config.attention != "auto",
        "biases": config.bias,
        "grouped key and value heads": config.kv_heads != config.n_head,
        f"heads {head_dim} wide (a multiple of 32 is needed, at most 256)": head_dim % 32 != 0 or head_dim > 256,
        f"a hidden width of {hidden} (model.mlp_width has to be a multiple of 16)": hidden % 16 != 0,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)
