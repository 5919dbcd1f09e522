"""Blocks computed by the kernels of `functions.py`; they share modules with those they replace."""

from typing import Any, NamedTuple

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

SEEDS = 2**32
"""Number of seeds of the kernels' dropout, which have 32 bits."""
ATTRIBUTES_OF_NATIVE = ("_config", "_kernels", "_norm", "_states_when_built")
"""What native modules have beside the attributes of the plain ones."""


class ModuleState(NamedTuple):
    """What decides what a module computes, as far as a user can change it after the model is built.

    Attributes:
        has_hooks: hooks change what a call computes, or look at what kernels do not compute.
        parameters: their names and classes: a bias may have been set later, or a quantized weight.
        p: of a Dropout.
        dropout: of attention.
        activation: of an MLP.
        eps: of a norm.
        forward: a function that was set in place of the method.
    """

    module: nn.Module
    kind: type[nn.Module]
    has_hooks: bool
    parameters: list[tuple[str, type]]
    p: Any
    dropout: Any
    activation: Any
    eps: Any
    forward: Any

    @classmethod
    def of(cls, module: nn.Module) -> "ModuleState":
        attributes = vars(module)
        return cls(
            module=module,
            kind=type(module),
            has_hooks=has_hooks(module),
            parameters=[(name, type(x)) for name, x in module._parameters.items()],
            p=attributes.get("p"),
            dropout=attributes.get("dropout"),
            activation=attributes.get("activation"),
            eps=attributes.get("eps"),
            forward=attributes.get("forward"),
        )


def reduce_to(plain: type[nn.Module], module: nn.Module) -> tuple[Any, ...]:
    """Return, as for `__reduce__`, how to make the plain module that a native one stands for.

    A copy or a pickle cannot hold a loaded library.
    """
    state = dict(vars(module))
    for name in ATTRIBUTES_OF_NATIVE:
        state.pop(name, None)
    return object.__new__, (plain,), state


class NativeBlock(Block):
    """A block whose pass takes a dozen kernel calls.

    It computes as the original block, by PyTorch, with a cache, with a mask, with hooks on modules
    inside it or changes of them, and with a mode of torch around it. So it does in evaluations in
    float32, whose losses then are those of the checkpoint to the last bit.

    It shares the modules of the block that it replaces, so that parameters keep their names.
    """

    def __init__(self, block: Block, config: ModelConfig, kernels: Kernels) -> None:
        nn.Module.__init__(self)  # Block's own would make new modules
        self.training = block.training
        self.ln_1 = block.ln_1
        self.attn = block.attn
        self.ln_2 = block.ln_2
        self.mlp = block.mlp
        self._config = config
        self._kernels = kernels
        self._norm = NormOptions(config.norm == "layernorm", config.norm_eps)
        self._states_when_built = self._module_states()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle it as the plain block."""
        return reduce_to(Block, self)

    def forward(
        self,
        x: Tensor,
        rotation: Rotation | None,
        mask: Tensor | None,
        append: Append | None = None,
    ) -> Tensor:
        """Map x (B, T, C) to (B, T, C), by the kernels or by PyTorch."""
        if mask is not None or append is not None or not self._can_use_kernels():
            return super().forward(x, rotation, mask, append)
        kernels = self._kernels
        config = self._config
        # the classes of these modules were checked before, which a type checker cannot know
        ln_1: Any = self.ln_1
        attn: Any = self.attn
        ln_2: Any = self.ln_2
        mlp: Any = self.mlp
        # The order of the three decides which seed each gets.
        drop_weights = _sample_dropout(config.weights_dropout, self._drops_attention_weights())
        drop_attn = _sample_dropout(config.dropout, attn.resid_dropout.training)
        drop_mlp = _sample_dropout(config.dropout, mlp.dropout.training)

        # x is the residual stream (B, T, C) float32, h its norm in the kernels' type
        x, h = native.add_norm(kernels, x, None, ln_1.weight, self._norm, Dropout())
        qkv = native.linear(kernels, h, attn.c_q.weight, attn.c_k.weight, attn.c_v.weight)
        gains = None
        if config.qk_norm:
            gains = (attn.q_norm.weight, attn.k_norm.weight)
        y = native.attention(
            kernels, qkv, config.n_head, gains, rotation, config.norm_eps, drop_weights
        )
        y = native.linear(kernels, y, attn.c_proj.weight)
        x, h = native.add_norm(kernels, x, y, ln_2.weight, self._norm, drop_attn)

        hidden_weights = [mlp.c_fc.weight]
        if config.mlp == "swiglu":
            hidden_weights = [mlp.c_gate.weight, mlp.c_fc.weight]
        h = native.linear(kernels, h, *hidden_weights)
        h = native.activate(kernels, h, config.mlp)
        return native.add(kernels, x, native.linear(kernels, h, mlp.c_proj.weight), drop_mlp)

    def _drops_attention_weights(self) -> bool:
        """Return the mode of the core that `AutoCore` would choose to drop attention weights."""
        core: Any = self.attn.core
        if torch.is_grad_enabled() and self._kernels.dtype == torch.bfloat16:
            return core.reference.dropout.training
        return core.sdpa.training

    def _can_use_kernels(self) -> bool:
        """Return whether the kernels compute what this block would compute by PyTorch now.

        A user may have changed a module since the last pass, and so this looks each time.
        """
        evaluates = not torch.is_grad_enabled()
        if evaluates and not torch.is_autocast_enabled("cpu"):
            return False  # in float32
        if around_torch() is not None:
            return False
        return self._module_states() == self._states_when_built

    def _module_states(self) -> list[ModuleState]:
        """Return the states of the modules inside."""
        return [ModuleState.of(module) for module in self.modules() if module is not self]


def _sample_dropout(p: float, is_training: bool) -> Dropout:
    """Return the dropout of one call; without any, torch's generator is left as it is."""
    if not is_training or p == 0:
        return Dropout()
    return Dropout(p, _random_seed())


class NativeDropout(nn.Dropout):
    """The dropout of the embeddings, on all threads; torch's own uses one thread on a CPU."""

    def __init__(self, p: float, kernels: Kernels) -> None:
        super().__init__(p)
        self._kernels = kernels

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle it as the plain dropout."""
        return reduce_to(nn.Dropout, self)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if around_torch() is not None:
            return super().forward(x)
        return native.drop_out(self._kernels, x, Dropout(self.p, _random_seed()))


def _random_seed() -> int:
    """Return a seed from torch's generator, whose state is saved in checkpoints."""
    return int(torch.randint(SEEDS, ()))


def use_native_blocks(
    model: GPT, compute: Compute, settings: Settings, report: Report = silent
) -> str:
    """Make a model train with native kernels; return which instructions they use, in words.

    Raises:
        DeviceError: they do not compute what this model computes on this device.
    """
    if compute.device.type != "cpu" or compute.dtype == torch.float16:
        raise DeviceError("the native kernels are for float32 and bfloat16 on a CPU")
    unknown = _uncovered(model.config)
    if unknown is None:
        unknown = changed_module(model, trains=True)
    if unknown is None:
        unknown = changed_tensor(model.h)
    if unknown is not None:
        raise DeviceError(f"the native kernels do not cover {unknown}")
    edit = changed_code(TRAINING)
    if edit is not None:
        raise DeviceError(edit)
    kernels = load_kernels(compute.dtype, settings, report)
    replace_blocks(model, kernels)
    dtype = str(compute.dtype).removeprefix("torch.")
    return f"{kernels.processor.name}, {dtype}"


def replace_blocks(model: GPT, kernels: Kernels) -> None:
    """Replace every block and the dropout before them.

    Parameters keep their names and identity, and modules their mode.
    """
    model.drop = NativeDropout(model.config.dropout, kernels).train(model.drop.training)
    for index, block in enumerate(model.h):
        model.h[index] = NativeBlock(block, model.config, kernels)  # type: ignore[arg-type]


def _uncovered(config: ModelConfig) -> str | None:
    """Return the first option that the kernels do not know; None: they know all."""
    unknown = uncovered(config, ACTIVATIONS)
    if unknown:
        return unknown
    head_dim = config.head_dim
    hidden = config.mlp_hidden
    if config.attention != "auto":
        return f"model.attention={config.attention}"
    if config.bias:
        return "biases"
    if config.kv_heads != config.n_head:
        return "grouped key and value heads"
    if head_dim % 32 != 0 or head_dim > 256:
        return f"heads {head_dim} wide (a multiple of 32 is needed, at most 256)"
    if hidden % 16 != 0:
        return f"a hidden width of {hidden} (model.mlp_width has to be a multiple of 16)"
    return None
