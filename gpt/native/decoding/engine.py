"""The C++ engine of `src/decoding`, which runs a model on weights laid out for it.

It runs on any processor for which there is a C++ compiler. It computes in float32; weights, keys and values may be
narrower. What it computes for a token does not depend on what else is in the pass, to the last bit.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gpt.config import SamplingParams
from gpt.native.build import find_library, load_usable, open_library
from gpt.native.contract import Kind, check_facts, floats, pointer
from gpt.native.decoding.c_structs import STRUCTURES, CBatch, CCacheOptions, CSample, integers, sampling_in_c
from gpt.native.decoding.weights import BLOCK, Weights
from gpt.system.environment import Settings
from gpt.system.errors import DeviceError
from gpt.system.processor import Processor, supported_processors
from gpt.system.progress import Report, silent

SOURCE = "decoding/engine.cpp"
VOID = dict.fromkeys(("free", "use_threads", "forward", "step", "copy_blocks"))
RESULTS = {**VOID, "create": ctypes.c_void_p, "block_bytes": ctypes.c_int64, "generate": ctypes.c_int64}
"""Return types of the library's functions."""
FLAGS = ("-ffp-contract=off",)
"""The source says where to fuse a multiplication and an addition, so that every instantiation rounds alike."""
KV_KINDS = {"fp32": Kind.FLOAT32, "bf16": Kind.BFLOAT16, "int8": Kind.INT8}
"""Types of keys and values."""
MAX_TOKENS = 64
"""Most tokens computed in one pass: with more, weights are read less often, but more memory is needed."""


class NotFiniteError(ArithmeticError):
    """Logits are not finite; `row` and `step` say which of a batch."""

    def __init__(self, row: int, step: int) -> None:
        super().__init__(f"logits of row {row} in step {step} are not finite")
        self.row, self.step = row, step


def load_engine(
    settings: Settings, report: Report = silent, processor: Processor | None = None
) -> tuple[ctypes.CDLL, Processor]:
    """Load the library of engines for a processor class, untried; None: the best here that passes its trial."""
    if processor is None:
        library, processor = load_usable(SOURCE, supported_processors(settings.processor), settings, report, FLAGS)
    else:
        library = open_library(find_library(SOURCE, processor, settings.cache_dir, report, FLAGS))
    return with_results(library), processor


def with_results(library: ctypes.CDLL) -> ctypes.CDLL:
    """Return a library of engines whose structures were compared, and whose functions have their types of results."""
    check_facts(library, *STRUCTURES)
    for name, result in RESULTS.items():
        getattr(library, f"gpt_decoder_{name}").restype = result
    return library


class Engine:
    """Runs a model over sequences whose keys and values are stored in blocks of 64 positions.

    All memory is allocated on construction; a pass allocates only its result. The system provides a block's memory when
    it is first written. Initially sequence i has the i-th part of the blocks, if there are enough.

    Args:
        tokens_per_sequence: number of tokens of each that fit into one pass.
        blocks: number of physical blocks; None: as many as all sequences need without sharing.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        weights: Weights,
        sequences: int,
        tokens_per_sequence: int = 1,
        kv_dtype: str = "fp32",
        blocks: int | None = None,
    ) -> None:
        self._library = library
        self.sequences, self.max_tokens = sequences, max(MAX_TOKENS, sequences * tokens_per_sequence)
        self.blocks_per_sequence = -(-weights.model.block_size // BLOCK)
        self.blocks = sequences * self.blocks_per_sequence if blocks is None else blocks
        entries = sequences * self.blocks_per_sequence
        self._tables = (ctypes.c_int32 * entries)(*range(min(entries, self.blocks)))
        self._weights = weights  # the engine reads them where they lie
        cache = CCacheOptions(ctypes.addressof(self._tables), KV_KINDS[kv_dtype], self.blocks)
        error = ctypes.create_string_buffer(200)
        structures = (ctypes.byref(weights.model), weights.layers, ctypes.byref(cache))
        self.threads = torch.get_num_threads()
        sizes = (self.max_tokens, self.threads)
        address = self._library.gpt_decoder_create(*structures, *sizes, error, len(error))
        if not address:
            raise DeviceError(f"no engine for {sequences} sequences: {error.value.decode()}")
        self._decoder = ctypes.c_void_p(address)

    def __del__(self) -> None:
        if hasattr(self, "_decoder"):
            self._library.gpt_decoder_free(self._decoder)

    @property
    def block_bytes(self) -> int:
        return int(self._library.gpt_decoder_block_bytes(self._decoder))

    def use_threads(self, threads: int) -> None:
        """Let fewer than `threads`, those it was made with, compute the next calls; the results are the same bits."""
        self._library.gpt_decoder_use_threads(self._decoder, threads)

    def set_blocks(self, sequence: int, blocks: Sequence[int]) -> None:
        """Set where a sequence's keys and values are stored: position p in block `blocks[p // 64]`."""
        assert sequence < self.sequences
        assert len(blocks) <= self.blocks_per_sequence
        assert all(0 <= block < self.blocks for block in blocks)
        start = sequence * self.blocks_per_sequence
        self._tables[start : start + len(blocks)] = list(blocks)

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy blocks: the first of each pair becomes a copy of the second."""
        if copies:
            assert all(0 <= block < self.blocks for pair in copies for block in pair)
            targets, sources = zip(*copies, strict=True)
            self._library.gpt_decoder_copy_blocks(self._decoder, len(copies), integers(targets), integers(sources))

    def forward(
        self, tokens: Sequence[int], sequences: Sequence[int], positions: Sequence[int], wanted: Sequence[int]
    ) -> Tensor:
        """Store the keys and values of at most `max_tokens` tokens, and compute logits (wanted, V) float32.

        Tokens of one sequence are adjacent and in order, and all earlier positions are stored. Logits are those after
        the tokens at the indices `wanted`.
        """
        logits = torch.empty(len(wanted), self._weights.model.vocab_size, dtype=torch.float32)
        batch = self._batch(tokens, sequences, positions)
        self._library.gpt_decoder_forward(self._decoder, batch, len(wanted), integers(wanted), floats(logits))
        return logits

    def generate(
        self,
        sequences: Sequence[int],
        tokens: Sequence[int],
        positions: Sequence[int],
        uniforms: Tensor,
        params: SamplingParams,
        seen: Tensor | None = None,
        keep_logits: bool = False,
        by_sequence: bool = False,
    ) -> tuple[list[list[int]], Tensor | None]:
        """Sample several tokens for each of B different sequences; return them, and the logits (steps, B, V) if kept.

        Args:
            tokens: the newest of each, not stored yet.
            positions: of these tokens; the last sampled token may lie outside the window.
            uniforms: (B, steps) float32 in [0, 1), one for each token.
            seen: (B, V) uint8, 1 for tokens to which the repetition penalty applies; kept up to date.
            by_sequence: whether each thread computes some sequences, instead of a part of every token; the same bits.
        """
        batch, steps = uniforms.shape
        in_c = self._batch(tokens, sequences, positions)
        assert batch == len(tokens)
        assert max(positions) + steps <= self._weights.model.block_size
        assert seen is None or seen.shape == (batch, self._weights.model.vocab_size)
        logits = torch.empty(steps, batch, self._weights.model.vocab_size, dtype=torch.float32) if keep_logits else None
        sampled, sampling = (ctypes.c_int32 * (batch * steps))(), ctypes.byref(sampling_in_c(params))
        pointers = (floats(uniforms), pointer(seen, torch.uint8), sampled, floats(logits))
        failed = self._library.gpt_decoder_generate(self._decoder, in_c, int(by_sequence), steps, sampling, *pointers)
        if failed:
            raise NotFiniteError((failed - 1) % batch, (failed - 1) // batch)
        flat = list(sampled)
        return [flat[i : i + steps] for i in range(0, batch * steps, steps)], logits

    def step(
        self,
        tokens: Sequence[int],
        sequences: Sequence[int],
        positions: Sequence[int],
        wanted: Sequence[int],
        samples: Sequence[CSample],
    ) -> list[int]:
        """Store some tokens' keys and values, as `forward` does, and sample after those at the indices `wanted`.

        Return the token sampled after each by its `samples`, -1 where the logits are not finite.
        """
        assert len(wanted) == len(samples)
        batch, sampled = self._batch(tokens, sequences, positions), (ctypes.c_int32 * len(wanted))()
        arguments = (len(wanted), integers(wanted), (CSample * len(samples))(*samples), sampled)
        self._library.gpt_decoder_step(self._decoder, batch, *arguments)
        return list(sampled)

    def _batch(self, tokens: Sequence[int], sequences: Sequence[int], positions: Sequence[int]) -> Any:
        assert len(tokens) == len(sequences) == len(positions) <= self.max_tokens
        # it keeps its arrays alive
        return ctypes.byref(CBatch(integers(tokens), integers(sequences), integers(positions), len(tokens)))
