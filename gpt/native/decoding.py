"""The decoder of `src/decode.cpp`: a model's weights, laid out for it, and passes over them.

It runs on any processor that a C++ compiler is there for, in float32; weights may be narrower. What
it computes for a token does not depend on what else is in the pass, to the last bit.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from gpt.config import ModelConfig, SamplingParams
from gpt.errors import DeviceError
from gpt.native.build import load_library
from gpt.report import Report, silent

BLOCK = 64
"""Outputs of a matrix that lie side by side, as in decode.cpp."""
KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}
INT4 = 3
ACTIVATIONS = {"gelu": 0, "gelu_tanh": 1, "relu": 2, "relu2": 3, "swiglu": 4}
RESULTS = {"create": ctypes.c_void_p, "free": None, "cache_bytes": ctypes.c_int64, "generate": ctypes.c_int64}
"""What functions of the library return."""
MOST_SLOTS = 64
"""Positions computed in one pass: more of them read the weights less often, and take more memory."""


@dataclass(frozen=True)
class Matrix:
    """A linear layer, laid out in blocks of outputs; a matrix without outputs stands for none.

    Attributes:
        weights: (outputs / 64, inputs, 64), or of int4 (outputs / 64, inputs / 2, 64), two in a byte.
        scales: (outputs / 64, inputs / group, 64) float32 that weights are multiplied by; None: 1.
        bias: (outputs,) float32, filled up, or None.
        kind: of the weights.
        outputs: without what they are filled up with.
        inputs: width of what it is multiplied with.
        group: inputs that share a scale.
    """

    weights: Tensor
    scales: Tensor | None
    bias: Tensor | None
    kind: int
    outputs: int
    inputs: int
    group: int

    @classmethod
    def from_floats(cls, weight: Tensor, bias: Tensor | None = None) -> "Matrix":
        """From (outputs, inputs) float32 or bfloat16."""
        outputs, inputs = weight.shape
        return cls(_blocks(weight), None, filled_up(bias), KINDS[weight.dtype], outputs, inputs, max(inputs, 1))

    @classmethod
    def from_integers(cls, integers: Tensor, scales: Tensor, bias: Tensor | None = None, bits: int = 8) -> "Matrix":
        """From (outputs, inputs) int8 and (outputs, inputs / group) float32; of 4 bits: -8 to 7, inputs even."""
        outputs, inputs = integers.shape
        blocks, kind = _blocks(integers), KINDS[torch.int8]
        if bits == 4:
            blocks, kind = (blocks[:, 0::2] & 15 | blocks[:, 1::2] << 4).contiguous(), INT4
        return cls(blocks, _blocks(scales), filled_up(bias), kind, outputs, inputs, inputs // scales.size(1))


def _blocks(weight: Tensor) -> Tensor:
    """(outputs, inputs) -> (outputs / 64, inputs, 64), filled up with zeros."""
    weight = F.pad(weight.detach(), (0, 0, 0, -weight.size(0) % BLOCK))
    return weight.view(-1, BLOCK, weight.size(1)).transpose(1, 2).contiguous()


def filled_up(vector: Tensor | None) -> Tensor | None:
    """With zeros, to a multiple of 64."""
    return None if vector is None else F.pad(vector.detach().float(), (0, -vector.numel() % BLOCK)).clone()


@dataclass(frozen=True)
class LayerWeights:
    """Of one block; gains and biases of norms are filled up to a multiple of 64, those of heads are not.

    Attributes:
        qkv: queries, keys and values in one matrix.
        projection: of attention's result.
        gate: of a gated feed-forward network; None elsewhere.
        up: into its hidden layer.
        down: out of it.
        norms: gain and bias of both norms, the biases None where there are none.
        head_norms: gains of the norms of query and key heads, or None.
    """

    qkv: Matrix
    projection: Matrix
    gate: Matrix | None
    up: Matrix
    down: Matrix
    norms: tuple[Tensor, Tensor | None, Tensor, Tensor | None]
    head_norms: tuple[Tensor, Tensor] | None


@dataclass(frozen=True)
class Weights:
    """Of a whole model, float32 but for the matrices.

    Attributes:
        config: its architecture.
        tokens: (V, C) embedding.
        positions: (T, C) added to it, or None.
        rotation: cos and sin, (T, D) each, or None.
        layers: from the first to the last.
        norm: gain and bias of the last norm, filled up.
        head: (V, C).
    """

    config: ModelConfig
    tokens: Tensor
    positions: Tensor | None
    rotation: tuple[Tensor, Tensor] | None
    layers: Sequence[LayerWeights]
    norm: tuple[Tensor, Tensor | None]
    head: Matrix


class _Matrix(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("weights", "scales", "bias")] + [
        (name, ctypes.c_int32) for name in ("kind", "outputs", "inputs", "group")
    ]


class _Layer(ctypes.Structure):
    _fields_ = [(name, _Matrix) for name in ("qkv", "projection", "gate", "up", "down")] + [
        (name, ctypes.c_void_p) for name in ("norm_1", "norm_1_bias", "norm_2", "norm_2_bias", "q_norm", "k_norm")
    ]


class _Model(ctypes.Structure):
    _fields_ = [
        *(
            (name, ctypes.c_int32)
            for name in ("layers", "heads", "kv_heads", "head_width", "width", "hidden", "vocabulary", "window")
        ),
        ("is_centred", ctypes.c_int32),
        ("activation", ctypes.c_int32),
        ("eps", ctypes.c_float),
        ("softcap", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in ("tokens", "positions", "cosine", "sine", "norm", "norm_bias")),
        ("head", _Matrix),
        ("layer", ctypes.POINTER(_Layer)),
    ]


class _Sampling(ctypes.Structure):
    _fields_ = [(name, ctypes.c_float) for name in ("temperature", "top_p", "min_p", "penalty")] + [
        ("top_k", ctypes.c_int32)
    ]


class NotFiniteError(ArithmeticError):
    """Logits are not finite; `row` and `step` say which."""

    def __init__(self, row: int, step: int) -> None:
        super().__init__(f"logits of row {row} in step {step} are not finite")
        self.row, self.step = row, step


def load_engine(cache: Path, report: Report = silent, flags: Sequence[str] = ()) -> ctypes.CDLL:
    """The compiled library of engines; see `load_library`.

    Raises:
        DeviceError: there is no compiler, or it fails.
    """
    library = load_library("decode", cache, report, flags)
    for name, result in RESULTS.items():
        getattr(library, f"gpt_decoder_{name}").restype = result
    return library


class Engine:
    """Passes of a model over rows that each have a key and value cache.

    All memory is taken here; a pass takes none but for what it returns.

    Args:
        library: from `load_engine`.
        weights: kept, not copied.
        rows: that there is a cache for.
        slots_per_row: tokens that a pass is to have room for, for every row.

    Raises:
        DeviceError: the memory does not suffice.
    """

    def __init__(self, library: ctypes.CDLL, weights: Weights, rows: int, slots_per_row: int = 1) -> None:
        self._library = library
        self.rows, self.slots = rows, max(MOST_SLOTS, rows * slots_per_row)
        self._weights, self._layers = weights, [_layer_in_c(layer) for layer in weights.layers]
        model = _model_in_c(weights, (_Layer * len(self._layers))(*self._layers))
        threads = torch.get_num_threads()
        address = self._library.gpt_decoder_create(ctypes.byref(model), rows, self.slots, threads)
        if not address:
            raise DeviceError(f"there is not enough memory for the caches of {rows} rows")
        self._decoder = ctypes.c_void_p(address)

    def __del__(self) -> None:
        if hasattr(self, "_decoder"):
            self._library.gpt_decoder_free(self._decoder)

    @property
    def cache_bytes(self) -> int:
        """Of keys and values, all of them taken from the start."""
        return int(self._library.gpt_decoder_cache_bytes(self._decoder))

    def forward(
        self, tokens: Sequence[int], rows: Sequence[int], positions: Sequence[int], wanted: Sequence[int]
    ) -> Tensor:
        """Store some tokens' keys and values, and compute logits.

        Args:
            tokens: ids, at most `slots` of them.
            rows: of each; the tokens of a row stand together and in order.
            positions: of each in its row; all positions before are stored.
            wanted: numbers of the tokens after which logits are wanted.

        Returns:
            (wanted, V) float32.
        """
        assert len(tokens) <= self.slots
        logits = torch.empty(len(wanted), self._vocab_size)
        self._library.gpt_decoder_forward(
            self._decoder,
            len(tokens),
            *map(_integers, (tokens, rows, positions)),
            len(wanted),
            _integers(wanted),
            ctypes.c_void_p(logits.data_ptr()),
        )
        return logits

    def generate(
        self,
        rows: Sequence[int],
        tokens: Sequence[int],
        positions: Sequence[int],
        uniforms: Tensor,
        params: SamplingParams,
        seen: Tensor | None = None,
        keep_logits: bool = False,
    ) -> tuple[list[list[int]], Tensor | None]:
        """Draw several tokens for every row, each from the logits after the one before.

        Args:
            rows: B different ones.
            tokens: the newest of each, not stored yet.
            positions: theirs; the last one that is drawn may lie outside the window.
            uniforms: (B, steps) float32 in [0, 1), one for every token.
            params: how to draw.
            seen: (B, V) uint8, 1 for tokens that the repetition penalty is for; kept up to date.
            keep_logits: return them.

        Returns:
            The tokens drawn for each row, and the logits (steps, B, V) or None.

        Raises:
            NotFiniteError: logits are not finite.
        """
        batch, steps = uniforms.shape
        assert max(positions) + steps <= self._weights.config.block_size
        logits = torch.empty(steps, batch, self._vocab_size) if keep_logits else None
        drawn = (ctypes.c_int32 * (batch * steps))()
        uniforms = uniforms.contiguous()
        failed = self._library.gpt_decoder_generate(
            self._decoder,
            batch,
            *map(_integers, (rows, tokens, positions)),
            steps,
            ctypes.byref(_sampling_in_c(params)),
            _pointer(uniforms),
            _pointer(seen),
            drawn,
            _pointer(logits),
        )
        if failed:
            raise NotFiniteError((failed - 1) % batch, (failed - 1) // batch)
        flat = list(drawn)
        return [flat[i : i + steps] for i in range(0, batch * steps, steps)], logits

    def verify(
        self,
        tokens: Sequence[int],
        rows: Sequence[int],
        positions: Sequence[int],
        uniforms: Sequence[float],
        params: SamplingParams,
        seen: Tensor | None = None,
        keep_logits: bool = False,
    ) -> tuple[list[int], Tensor | None]:
        """What would be drawn after each of some tokens, all of them given: after drafts, for example.

        Args:
            tokens: as for `forward`.
            rows: as for `forward`.
            positions: as for `forward`.
            uniforms: one for each token.
            params: how to draw.
            seen: (rows that occur, V) uint8, as for `generate`, before their first token here; spoiled.
            keep_logits: return them.

        Returns:
            The token drawn after each, -1 where the logits are not finite; and the logits (tokens, V) or None.
        """
        count = len(tokens)
        assert count <= self.slots
        logits = torch.empty(count, self._vocab_size) if keep_logits else None
        drawn = (ctypes.c_int32 * count)()
        self._library.gpt_decoder_verify(
            self._decoder,
            count,
            *map(_integers, (tokens, rows, positions)),
            ctypes.byref(_sampling_in_c(params)),
            (ctypes.c_float * count)(*uniforms),
            _pointer(seen),
            drawn,
            _pointer(logits),
        )
        return list(drawn), logits

    def copy(self, to: int, source: int, positions: int) -> None:
        """Make the first positions of one row what they are in another."""
        self._library.gpt_decoder_copy(self._decoder, to, source, positions)

    @property
    def _vocab_size(self) -> int:
        size = self._weights.config.vocab_size
        assert size is not None
        return size


def _integers(values: Sequence[int]) -> ctypes.Array[ctypes.c_int32]:
    return (ctypes.c_int32 * len(values))(*values)


def _pointer(x: Tensor | None) -> ctypes.c_void_p:
    assert x is None or x.is_contiguous()
    return ctypes.c_void_p(None if x is None else x.data_ptr())


def _sampling_in_c(params: SamplingParams) -> _Sampling:
    temperature = max(params.temperature, torch.finfo(torch.float32).tiny) if params.temperature else 0.0
    return _Sampling(temperature, params.top_p, params.min_p, params.repetition_penalty, params.top_k)


def _matrix_in_c(matrix: Matrix | None) -> _Matrix:
    if matrix is None:
        return _Matrix()
    pointers = map(_pointer, (matrix.weights, matrix.scales, matrix.bias))
    return _Matrix(*pointers, matrix.kind, matrix.outputs, matrix.inputs, matrix.group)


def _layer_in_c(layer: LayerWeights) -> _Layer:
    matrices = map(_matrix_in_c, (layer.qkv, layer.projection, layer.gate, layer.up, layer.down))
    return _Layer(*matrices, *map(_pointer, (*layer.norms, *(layer.head_norms or (None, None)))))


def _model_in_c(weights: Weights, layers: ctypes.Array[_Layer]) -> _Model:
    config = weights.config
    return _Model(
        config.n_layer,
        config.n_head,
        config.kv_heads,
        config.head_width,
        config.n_embd,
        config.mlp_hidden,
        config.vocab_size,
        config.block_size,
        config.norm == "layernorm",
        ACTIVATIONS[config.mlp],
        config.norm_eps,
        config.logit_softcap or 0.0,
        *map(_pointer, (weights.tokens, weights.positions, *(weights.rotation or (None, None)), *weights.norm)),
        _matrix_in_c(weights.head),
        layers,
    )
