"""The decoder-only transformer: token ids in, next-token logits out.

On a CPU, native kernels compute the blocks in training, and a C++ engine decodes, since both are
faster. They are used only for exactly this code (`gpt/native/fingerprint.py`): after an edit
PyTorch computes what is written here, and a line says so. `run.kernels=torch` in training and
`--backend eager` in decoding ask for PyTorch too.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Self

import torch
from torch import Tensor, nn

from gpt.config import ModelConfig
from gpt.model.attention import Append, Attention, Cache, causal_mask
from gpt.model.layers import build_mlp, build_norm
from gpt.model.positions import (
    AddedPositions,
    RotatedPositions,
    Rotation,
    ScoreBias,
    build_position,
)
from gpt.system.errors import InputError, outside_vocabulary

INIT_STD = 0.02
"""Standard deviation of the initial matrices and embeddings, as in GPT-2."""


class Block(nn.Module):
    """A transformer block: `x + attn(ln_1(x))`, then `x + mlp(ln_2(x))`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.ln_1 = build_norm(config)
        self.attn = Attention(config)
        self.ln_2 = build_norm(config)
        self.mlp = build_mlp(config)

    def forward(
        self,
        x: Tensor,
        rotation: Rotation | None,
        mask: Tensor | None,
        append: Append | None = None,
    ) -> Tensor:
        """Map x (B, T, C) to (B, T, C)."""
        x = x + self.attn(self.ln_1(x), rotation, mask, append)
        return x + self.mlp(self.ln_2(x))


def _initialize_vector_math() -> None:
    """Make MKL choose its vector functions on one thread.

    PyTorch computes cos, sin, tanh and others of a large tensor by MKL on several threads. When
    that is the first such call of a process, one thread may get functions of lower accuracy (cos
    off by 7e-9 in float64, in one process of thousands), and a run is no longer bitwise
    reproducible. A call on one element is not shared between threads.
    """
    torch.zeros(1, dtype=torch.float64, device="cpu").cos()


class GPT(nn.Module):
    """Pre-LN decoder-only transformer, with float32 weights whatever torch's default type is.

    Args:
        config: the shape of the model, with its `vocab_size` set.
    """

    # A caller may be in inference mode, and weights created in that mode could never be trained.
    @torch.inference_mode(False)
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        _initialize_vector_math()
        if config.vocab_size is None:
            raise InputError(
                "model.vocab_size is not set; give ModelConfig the tokenizer's vocab_size"
            )
        self.config = config
        self.vocab_size = config.vocab_size
        self.wte = nn.Embedding(config.vocab_size, config.n_embd, dtype=torch.float32)
        # A position encoding acts in one of three places of `forward`; the other two are None.
        position = build_position(config)
        self.wpe = position if isinstance(position, AddedPositions) else None
        self.rotation = position if isinstance(position, RotatedPositions) else None
        self.score_bias = position if isinstance(position, ScoreBias) else None
        self.drop = nn.Dropout(config.dropout)
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = build_norm(config)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False, dtype=torch.float32)
        if config.tie_weights:
            # The head and the embedding are one parameter (Press and Wolf 2016, 1608.05859).
            self.lm_head.weight = self.wte.weight
        init_weights(self, config)

    def forward(
        self, idx: Tensor, attention_mask: Tensor | None = None, cache: Cache | None = None
    ) -> Tensor:
        """Compute the logits of the next token at every position, (B, T, V) float32, of ids (B, T).

        Args:
            attention_mask: (B, T) bool, or 0 and 1 as tokenizers give, False on padding, for
                sequences of different lengths. Positions count from the first token of each
                sequence; logits on padding are meaningless.
            cache: keys and values of earlier positions, to which those of `idx` are appended. It
                cannot be combined with a mask.
        """
        # The check reads the values of ids, which do not exist while operations are only recorded.
        if not _is_recorded():
            self.check(idx, attention_mask)
        if cache is not None and attention_mask is not None:
            raise InputError(
                "attention_mask is for calls without a cache; "
                "a cache knows the length of each sequence"
            )
        if cache is None:
            positions, mask = _positions_and_mask(idx, attention_mask)
        else:
            positions = cache.positions(idx.size(1))
            mask = cache.mask(idx.size(1))
        if self.score_bias is not None:
            mask = _biased(self.score_bias, positions, mask, from_start=cache is not None)
        x = self.wte(idx)  # (B, T, C)
        if self.wpe is not None:
            x = self.wpe(x, positions)
        x = self.drop(x)
        rotation = None if self.rotation is None else self.rotation(positions)
        for index, block in enumerate(self.h):
            append = None if cache is None else partial(cache.append, index)
            x = block(x, rotation, mask, append)
        # Only after the last block, since all blocks append at the same positions.
        if cache is not None:
            cache.advance(idx.size(1))
        logits: Tensor = self.lm_head(self.ln_f(x)).float()
        return logits

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move or convert the model, as `nn.Module.to` and others do, and fill tables of positions.

        Tables that leave the meta device are computed here: `to_empty` gives them memory but no
        values, and checkpoints do not contain them.
        """
        position = self.wpe or self.rotation or self.score_bias
        assert position is not None  # a model has one of the three
        were_meta = any(table.is_meta for table in position.buffers())
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if were_meta and not any(table.is_meta for table in position.buffers()):
            # The caller's default device may still be the meta device.
            with torch.device("cpu"):
                made = build_position(self.config)
            for name, table in position.named_buffers():
                table.copy_(made.get_buffer(name))
        return self

    def check(self, idx: Tensor, attention_mask: Tensor | None = None) -> None:
        """Raise InputError where `forward` would not take these arguments.

        On a CUDA device the values are not read, since that would wait for the device.
        """
        if not isinstance(idx, Tensor):
            raise InputError(
                f"token ids must be a tensor, not a {type(idx).__name__}; use torch.tensor([ids])"
            )
        if idx.dim() != 2:
            raise InputError(f"token ids must be (batch, time), got shape {tuple(idx.shape)}")
        if idx.dtype not in (torch.int64, torch.int32):
            raise InputError(
                f"token ids must be int64, not {str(idx.dtype).removeprefix('torch.')}; "
                "use idx.long()"
            )
        if idx.size(1) > self.config.block_size:
            raise InputError(
                f"sequence of {idx.size(1)} tokens is longer than block_size "
                f"{self.config.block_size}"
            )
        if attention_mask is not None:
            _check_mask(attention_mask, idx)
        # On CUDA the embedding itself asserts the range of its ids, without a synchronization.
        if idx.device.type == "cpu" and idx.numel():
            low, high = (int(bound) for bound in idx.aminmax())
            if low < 0:
                raise outside_vocabulary(low, self.vocab_size)
            if high >= self.vocab_size:
                raise outside_vocabulary(high, self.vocab_size)


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put a model in eval mode inside this context; afterward every module has its former mode."""
    # A module may be in training mode inside a model that is not, so `model.training` alone does
    # not tell which modules to restore.
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def init_weights(model: nn.Module, config: ModelConfig) -> None:
    """Set every weight in place, from torch's default generator.

    Matrices and embeddings are normal with deviation 0.02, biases zero, norm gains one. The
    projections back into the residual stream (`c_proj`) are smaller by `sqrt(2 n_layer)`, since
    2 n_layer of them add up in it (Radford et al. 2019, GPT-2, section 2.3), or zero: a block then
    begins as the identity (Zhang et al. 2019, 1901.09321). Parameters of an activation stay as they
    are.
    """
    projection_std = INIT_STD / math.sqrt(2 * config.n_layer) if config.init == "gpt2" else 0.0
    for name, parameter in model.named_parameters():
        if ".activation." in name:
            # The module of an activation has set its own parameters.
            continue
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif parameter.dim() == 1:
            nn.init.ones_(parameter)
        elif name.endswith("c_proj.weight"):
            nn.init.normal_(parameter, std=projection_std)
        else:
            nn.init.normal_(parameter, std=INIT_STD)


def _is_recorded() -> bool:
    """Return whether the values of tensors cannot be read now.

    Operations may be recorded for later (torch.compile, torch.jit.trace), or mapped over a batch
    (torch.func).
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]
        return True
    return torch._C._are_functorch_transforms_active()


def _check_mask(attention_mask: Tensor, idx: Tensor) -> None:
    """Raise InputError where a mask does not fit `idx`; any number but 0 marks a token."""
    if attention_mask.shape != idx.shape:
        shapes = f"{tuple(idx.shape)} of the ids, got {tuple(attention_mask.shape)}"
        raise InputError(f"attention_mask must have the shape {shapes}")
    if attention_mask.is_floating_point() or attention_mask.is_complex():
        dtype = str(attention_mask.dtype).removeprefix("torch.")
        raise InputError(
            f"attention_mask must be bool, or 0 and 1 as int64, not {dtype}; "
            "use attention_mask.bool()"
        )


def _positions_and_mask(idx: Tensor, attention_mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return positions and the mask for attention.

    Without padding the positions are (T,), and the mask is None; otherwise they are (B, T) and
    (B, 1, T, T).
    """
    length = idx.size(1)
    if attention_mask is None:
        return torch.arange(length, device=idx.device), None
    attention_mask = attention_mask.bool()
    # Each token's position is the number of tokens before it. Padding before the first token would
    # have position -1, and gets 0.
    positions = (attention_mask.cumsum(dim=1) - 1).clamp(min=0)
    # Padding attends to itself, since a softmax without any key would give NaN.
    itself = torch.eye(length, dtype=torch.bool, device=idx.device)
    mask = causal_mask(length, length, idx.device) & (attention_mask[:, None, None, :] | itself)
    return positions, mask


def _biased(bias: ScoreBias, positions: Tensor, mask: Tensor | None, from_start: bool) -> Tensor:
    """Return attention's mask as numbers to add to the scores.

    The numbers are the bias, or -inf where a query does not attend to a key.

    Args:
        positions: the positions of the queries, (T,) or (B, T).
        from_start: whether the keys come from a cache and have the positions from 0 on. Otherwise
            they have the positions of the queries.
    """
    keys = positions
    if from_start:
        # Without a mask all sequences have equally many keys, up to the position of the last query.
        length = int(positions[-1]) + 1 if mask is None else mask.size(-1)
        keys = torch.arange(length, device=positions.device)
    if mask is None:
        mask = causal_mask(positions.size(-1), keys.size(-1), positions.device)
    added: Tensor = bias(positions, keys).float()  # (H, T, S) or (B, H, T, S)
    if added.dim() == 3:
        added = added.unsqueeze(0)
    return added.masked_fill(~mask, -math.inf)
