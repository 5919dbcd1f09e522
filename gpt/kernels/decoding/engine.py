"""The decoder of `src/decode.cpp`: a model's weights, laid out for it, and passes over them.

It runs on any processor that a C++ compiler is there for, in float32; weights may be narrower. What
it computes for a token does not depend on what else is in the pass, to the last bit.
"""

import ctypes
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from gpt.config import SamplingParams
from gpt.errors import DeviceError
from gpt.kernels.build import load_library
from gpt.kernels.decoding.layout import Weights
from gpt.kernels.decoding.structures import CLayer, integers, layer_in_c, model_in_c, pointer, sampling_in_c
from gpt.processor import Processor, supported_processors
from gpt.report import Report, silent

RESULTS = {"create": ctypes.c_void_p, "free": None, "cache_bytes": ctypes.c_int64, "generate": ctypes.c_int64}
"""What functions of the library return."""
MOST_SLOTS = 64
"""Positions computed in one pass: more of them read the weights less often, and take more memory."""


class NotFiniteError(ArithmeticError):
    """Logits are not finite; `row` and `step` say which."""

    def __init__(self, row: int, step: int) -> None:
        super().__init__(f"logits of row {row} in step {step} are not finite")
        self.row, self.step = row, step


def load_engine(
    cache: Path, report: Report = silent, processor: Processor | None = None, flags: Sequence[str] = ()
) -> ctypes.CDLL:
    """Load the library of engines, compiled for a processor; see `load_library`.

    Raises:
        DeviceError: there is no compiler, or it fails.
    """
    library = load_library("decoding/engine.cpp", processor or supported_processors()[0], cache, report, flags)
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
        self._weights, self._layers = weights, [layer_in_c(layer) for layer in weights.layers]
        model = model_in_c(weights, (CLayer * len(self._layers))(*self._layers))
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
            *map(integers, (tokens, rows, positions)),
            len(wanted),
            integers(wanted),
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
            *map(integers, (rows, tokens, positions)),
            steps,
            ctypes.byref(sampling_in_c(params)),
            pointer(uniforms),
            pointer(seen),
            drawn,
            pointer(logits),
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
            *map(integers, (tokens, rows, positions)),
            ctypes.byref(sampling_in_c(params)),
            (ctypes.c_float * count)(*uniforms),
            pointer(seen),
            drawn,
            pointer(logits),
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
