"""The shape trace: every tensor of a real forward pass, in flow order, with its symbolic shape.

The pass runs twice: as asked, and on the meta device with a model of the same kind, whose sizes are
built from different large primes. So a size of this second pass tells which dimension it is.
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

# Sizes of the second pass. All are primes, so that products of different ones differ too.
BATCH = 1009
LENGTH = 1013
KV_HEADS = 1021
HALF_HEAD = 1031  # half of head_dim, which rotary positions turn against the other half
HIDDEN = 1033
VOCABULARY = 1039
POSITIONS = 100003


@dataclass(frozen=True)
class ParameterUse:
    """A parameter that an operation reads."""

    name: str  # its path in the model; ends with `.T` where a linear layer reads the transpose
    symbols: str  # its symbolic shape, as used
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """Return how many numbers it has."""
        return torch.Size(self.shape).numel()


@dataclass(frozen=True)
class TensorRow:
    """One tensor of the pass."""

    name: str  # module path and function
    about: str  # description for the reader
    # symbolic shape, such as `B H T S`; a size that is not a dimension of the model stays a number
    symbols: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int  # size of its elements
    is_view: bool  # whether it shares its memory with another tensor
    parameters: tuple[ParameterUse, ...]
    flops: int  # FLOPs of the operation, a multiply-add counted as two; matmuls only
    layer: int | None  # number of its block, or None


@torch.inference_mode(False)  # torch runs other operations in that mode
@torch.no_grad()
def trace_shapes(model: GPT, idx: TextOrIds, tokenizer: Tokenizer | None = None) -> list[TensorRow]:
    """Trace one forward pass, with attention written out.

    Args:
        model: may be on any device, meta included, and in any mode: dropout is off.
        idx: ids (B, T) or (T,), or a text with its tokenizer.

    Returns:
        A row for each tensor that leads to the logits, in order of computation: the ids first, the
        logits last.
    """
    idx = to_batch(idx, tokenizer, model.wte.weight.device)
    if idx.numel() == 0:
        raise InputError("there are no token ids to trace")
    weights = weights_format(model)
    if weights != "float32":
        raise InputError(
            f"only float32 weights can be traced, not {weights}; trace the model before "
            "quantization"
        )
    operations = _record(model, idx)
    probe = Probe(model, idx.size(1))
    twins = _record(probe.model, probe.idx)
    if [op.function for op in operations] != [op.function for op in twins]:
        raise InputError(
            "the shapes cannot be traced: the model runs other operations than its configuration "
            "says; restore what was replaced, such as a forward (del module.forward)"
        )
    shapes = _parameter_shapes(model)
    descriptions = describe(operations)
    names = _names(operations)
    rows = []
    for operation, twin, about, name in zip(operations, twins, descriptions, names, strict=True):
        uses = [probe.use(path, shapes[path], operation) for path in operation.parameters]
        rows.append(
            TensorRow(
                name=name,
                about=about,
                symbols=probe.symbols(twin.result),
                shape=operation.result,
                dtype=operation.dtype,
                nbytes=operation.nbytes,
                is_view=operation.is_view,
                parameters=tuple(uses),
                flops=operation.flops,
                layer=_layer_of(operation.module),
            )
        )
    return rows


def _record(model: GPT, idx: Tensor) -> list[Operation]:
    """Return the operations of a forward pass that lead to its logits."""
    copy = unfused_copy(model)
    for block in copy.h:
        assert isinstance(block, Block)
        # A fused kernel would be one operation, without scores and attention weights.
        block.attn.core = ReferenceCore(model.config.weights_dropout).eval()
    recorder = Recorder(copy)
    recorder.begin_with(idx, "idx")
    with recorder.recording():
        logits = copy(idx)
    return recorder.leading_to(logits)


def _parameter_shapes(model: GPT) -> dict[str, tuple[int, ...]]:
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def _layer_of(module: str) -> int | None:
    """Return the number of the block that a module is in, by its path, such as `h.3.attn`."""
    if not module.startswith("h."):
        return None
    return int(module.split(".")[1])


class Probe:
    """A model of the same kind on the meta device, whose sizes tell dimensions apart.

    Where only one token is read, there is one here too: other operations run for several.
    """

    def __init__(self, model: GPT, length: int) -> None:
        queries_per_key = model.config.n_head // model.config.kv_heads
        n_head = KV_HEADS * queries_per_key
        self.config = model.config.model_copy(
            update={
                "n_head": n_head,
                "n_kv_head": KV_HEADS,
                "n_embd": n_head * 2 * HALF_HEAD,
                "mlp_width": HIDDEN,
                "vocab_size": VOCABULARY,
                "block_size": POSITIONS,
            }
        )
        self._length = LENGTH if length > 1 else 1
        with meta_device():  # sizes of this kind would take gigabytes
            self.model = GPT(self.config).to(model.wte.weight.dtype).eval()
            self.idx = torch.zeros(BATCH, self._length, dtype=torch.long)
        self._shapes = _parameter_shapes(self.model)
        self._letters = self._name_sizes()

    def symbols(self, shape: tuple[int, ...]) -> str:
        """Return the letters of a shape in the pass of the probe."""
        letters = [self._letters.get(size, str(size)) for size in shape]
        if letters.count("T") == 2:
            # Queries and keys are equally many. The axis of keys comes last.
            last = max(axis for axis, letter in enumerate(letters) if letter == "T")
            letters[last] = "S"
        return " ".join(letters)

    def use(self, name: str, shape: tuple[int, ...], operation: Operation) -> ParameterUse:
        """Return how an operation reads a parameter; its `shape` is that in the traced model."""
        symbols = self.symbols(self._shapes[name])
        is_matrix = len(shape) == 2
        if operation.function == "linear" and is_matrix:
            # torch's `linear` multiplies by the transpose of the weights.
            reversed_symbols = " ".join(reversed(symbols.split()))
            return ParameterUse(f"{name}.T", reversed_symbols, shape[::-1])
        return ParameterUse(name, symbols, shape)

    def _name_sizes(self) -> dict[int, str]:
        """Return the letters by their sizes; of two letters for one size, the later one counts."""
        config = self.config
        letters = {
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
        letters.pop(1, None)  # a single token: 1 is also the size of axes that are broadcast
        return letters


def _names(operations: list[Operation]) -> list[str]:
    """Return the path of the module and the function of each operation.

    They are numbered where a module calls a function more than once.
    """
    seen: Counter[str] = Counter()
    names = []
    for operation in operations:
        name = operation.function
        if operation.module:  # not the model itself
            name = f"{operation.module}.{name}"
        seen[name] += 1
        if seen[name] > 1:
            names.append(f"{name}_{seen[name]}")
        else:
            names.append(name)
    return names
