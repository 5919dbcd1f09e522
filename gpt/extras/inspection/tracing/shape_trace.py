"""The shape trace: every tensor of a real forward pass, in flow order, with its symbolic shape.

The pass runs twice: as asked, and on the meta device with a model of the same kind whose every size
is a different large prime, so that a size tells which dimension it is.
"""

from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

from gpt.data.token_ids import TextOrIds, to_batch
from gpt.data.tokenizers import Tokenizer
from gpt.extras.inspection.tracing.hooks import unfused_copy
from gpt.extras.inspection.tracing.operation_descriptions import describe
from gpt.extras.inspection.tracing.recorder import Operation, Recorder
from gpt.model import GPT
from gpt.model.attention import ReferenceCore
from gpt.model.gpt import Block
from gpt.model.quantized import weights_format
from gpt.system.device import meta_device
from gpt.system.errors import InputError

BATCH, LENGTH, HEADS, HALF_HEAD, HIDDEN, VOCABULARY, POSITIONS = (
    1009, 1013, 1021, 1031, 1033, 1039, 100003,
)  # fmt: skip


@dataclass(frozen=True)
class ParameterUse:
    """A parameter that an operation reads."""

    name: (
        str  # its path in the model; `.T` after it where a linear layer multiplies by its transpose
    )
    symbols: str  # its symbolic shape, as used
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        return torch.Size(self.shape).numel()


@dataclass(frozen=True)
class TensorRow:
    """One tensor of the pass."""

    name: str  # module path and function
    about: str  # description for the reader
    symbols: str  # symbolic shape, such as `B H T S`; a size that is not a dimension of the model stays a number
    shape: tuple[int, ...]
    dtype: str
    nbytes: int  # size of its elements
    is_view: bool  # whether it shares its memory with another tensor
    parameters: tuple[ParameterUse, ...]
    flops: int  # FLOPs of the operation, a multiply-add counted as two; matmuls only
    layer: int | None  # number of its block, or None


@torch.inference_mode(False)  # in which torch would run other operations
@torch.no_grad()
def trace_shapes(model: GPT, idx: TextOrIds, tokenizer: Tokenizer | None = None) -> list[TensorRow]:
    """Trace one forward pass, with attention written out, of ids (B, T) or (T,), or of a text by its tokenizer.

    The model may be on any device, meta included, and in any mode: dropout is off. There is a row for each tensor that
    leads to the logits, in order of computation: the ids first, the logits last.
    """
    idx = to_batch(idx, tokenizer, model.wte.weight.device)
    if idx.numel() == 0:
        raise InputError("there are no token ids to trace")
    weights = weights_format(model)
    if weights != "float32":
        raise InputError(
            f"only float32 weights can be traced, not {weights}; trace the model before quantization"
        )
    operations = _record(model, idx)
    probe = Probe(model, idx.size(1))
    symbolic = _record(probe.model, probe.idx)
    if [op.function for op in operations] != [op.function for op in symbolic]:
        raise InputError(
            "the shapes cannot be traced: the model runs other operations than its configuration says; "
            "restore what was replaced, such as a forward (del module.forward)"
        )
    sizes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    return [
        TensorRow(
            name=name,
            about=about,
            symbols=probe.symbols(twin.result),
            shape=operation.result,
            dtype=operation.dtype,
            nbytes=operation.nbytes,
            is_view=operation.is_view,
            parameters=tuple(
                probe.use(path, sizes[path], operation.function) for path in operation.parameters
            ),
            flops=operation.flops,
            layer=int(operation.module.split(".")[1])
            if operation.module.startswith("h.")
            else None,
        )
        for operation, twin, about, name in zip(
            operations, symbolic, describe(operations), _names(operations), strict=True
        )
    ]


def _record(model: GPT, idx: Tensor) -> list[Operation]:
    copy = unfused_copy(model)
    for block in copy.h:
        assert isinstance(block, Block)
        block.attn.core = ReferenceCore(model.config.weights_dropout).eval()
    recorder = Recorder(copy)
    recorder.begin_with(idx, "idx")
    with recorder.recording():
        logits = copy(idx)
    return recorder.leading_to(logits)


class Probe:
    """A model of the same kind on the meta device, whose sizes tell dimensions apart; a single query stays 1."""

    def __init__(self, model: GPT, length: int) -> None:
        group = model.config.n_head // model.config.kv_heads
        self.config = model.config.model_copy(
            update={
                "n_head": HEADS * group,
                "n_kv_head": HEADS,
                "n_embd": HEADS * group * 2 * HALF_HEAD,
                "mlp_width": HIDDEN,
                "vocab_size": VOCABULARY,
                "block_size": POSITIONS,
            }
        )
        self._length = LENGTH if length > 1 else 1
        with meta_device():
            self.model = GPT(self.config).to(model.wte.weight.dtype).eval()
            self.idx = torch.zeros(BATCH, self._length, dtype=torch.long)
        self._shapes = {
            name: tuple(parameter.shape) for name, parameter in self.model.named_parameters()
        }
        self._letters = self._name_sizes()

    def symbols(self, shape: tuple[int, ...]) -> str:
        """Return the letters of a shape; of two T the second becomes S, the keys."""
        letters = [self._letters.get(size, str(size)) for size in shape]
        if letters.count("T") == 2:
            letters[len(letters) - 1 - letters[::-1].index("T")] = "S"
        return " ".join(letters)

    def use(self, name: str, shape: tuple[int, ...], function: str) -> ParameterUse:
        """Return how an operation reads a parameter: linear layers multiply by the transpose."""
        symbols = self.symbols(self._shapes[name])
        if function == "linear" and len(shape) == 2:
            return ParameterUse(f"{name}.T", " ".join(reversed(symbols.split())), shape[::-1])
        return ParameterUse(name, symbols, shape)

    def _name_sizes(self) -> dict[int, str]:
        config = self.config
        named = {
            BATCH: "B",
            self._length: "T",
            config.head_dim: "D",
            HALF_HEAD: "D/2",
            config.kv_heads * config.head_dim: "K*D",
            config.kv_heads: "K",
            config.n_head: "H",
            config.n_embd: "C",
            HIDDEN: "F",
            VOCABULARY: "V",
            POSITIONS: "block_size",
        }
        return {size: letter for size, letter in named.items() if size > 1}


def _names(operations: list[Operation]) -> list[str]:
    """Return module path and function, numbered where a module calls a function more than once."""
    seen: Counter[str] = Counter()
    names = []
    for operation in operations:
        name = f"{operation.module}.{operation.function}".lstrip(".")
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return names
