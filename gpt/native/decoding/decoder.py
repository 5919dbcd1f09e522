"""The C++ decoder of `src/decoding`, which runs a model on weights laid out for it.

It runs on any processor for which there is a C++ compiler. It computes in float32; weights, keys
and values may be narrower. What it computes for a token does not depend on what else is in the
pass, to the last bit.
"""

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpt.config import SamplingParams
from gpt.native.build import find_library, load_usable, open_library
from gpt.native.contract import BLOCK, Kind, check_facts, floats, pointer
from gpt.native.decoding.c_structs import (
    STRUCTURES,
    CBatch,
    CCacheOptions,
    CSample,
    integers,
    sampling_in_c,
)
from gpt.native.decoding.weights import Weights
from gpt.system.environment import Settings
from gpt.system.errors import DeviceError
from gpt.system.processor import Processor, supported_processors
from gpt.system.progress import Report, silent

SOURCE = "decoding/engine.cpp"
"""Path of the library's source below `src`."""
VOID = dict.fromkeys(("free", "use_threads", "forward", "step", "copy_blocks"))
RESULTS = {
    **VOID,
    "create": ctypes.c_void_p,
    "block_bytes": ctypes.c_int64,
    "generate": ctypes.c_int64,
}
"""Return types of the library's functions, by their names without `gpt_decoder_`."""
FLAGS = ("-ffp-contract=off",)
"""Keeps the compiler from fusing multiplications and additions by itself.

The source says where to fuse them, so that every instantiation of a template rounds alike.
"""
KV_KINDS = {"fp32": Kind.FLOAT32, "bf16": Kind.BFLOAT16, "int8": Kind.INT8}
"""Types of keys and values."""
MIN_PASS_TOKENS = 64
"""Least number of tokens that fit into one pass.

More tokens would read the weights less often, but need more memory for activations.
"""
ERROR_BYTES = 200
"""Room for the message of a decoder that cannot be created."""


class TokenBatch(NamedTuple):
    """Tokens that go through the weights at once.

    Attributes:
        sequences: of each token, the number of its sequence.
        positions: of each token, its position in its sequence.
    """

    tokens: Sequence[int]
    sequences: Sequence[int]
    positions: Sequence[int]


class NotFiniteError(ArithmeticError):
    """Logits are not finite; `row` and `step` say which of a batch."""

    def __init__(self, row: int, step: int) -> None:
        super().__init__(f"logits of row {row} in step {step} are not finite")
        self.row = row
        self.step = step


def load_decoder(
    settings: Settings, report: Report = silent, processor: Processor | None = None
) -> tuple[ctypes.CDLL, Processor]:
    """Load the decoder's library, and return it with the processor class that it was compiled for.

    Args:
        processor: the class whose library is loaded, without a trial; None means the best class of
            this machine whose library passes its trial.

    Raises:
        DeviceError: there is no compiler, or no library passes its trial.
    """
    if processor is None:
        processors = supported_processors(settings.processor)
        library, processor = load_usable(SOURCE, processors, settings, report, FLAGS)
    else:
        path = find_library(SOURCE, processor, settings.cache_dir, report, FLAGS)
        library = open_library(path)
    return with_results(library), processor


def with_results(library: ctypes.CDLL) -> ctypes.CDLL:
    """Return a decoder's library with the return types of its functions declared to ctypes.

    Its structures are compared with those of `c_structs` first: a difference would corrupt memory.
    """
    check_facts(library, *STRUCTURES)
    for name, result in RESULTS.items():
        getattr(library, f"gpt_decoder_{name}").restype = result
    return library


class Decoder:
    """Runs a model over sequences whose keys and values are stored in blocks of `BLOCK` positions.

    All memory is allocated on construction; a pass allocates only its result. The operating system
    provides the memory of a block when it is first written. Initially sequence i has the i-th part
    of the blocks, if there are enough.

    Args:
        tokens_per_sequence: number of tokens of each sequence that fit into one pass.
        blocks: number of physical blocks; None means as many as all sequences need without sharing.
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
        self._weights = weights  # kept alive: the decoder reads the weights where they lie
        self.sequences = sequences
        self.max_tokens = max(MIN_PASS_TOKENS, sequences * tokens_per_sequence)
        self.threads = torch.get_num_threads()
        self.blocks_per_sequence = -(-weights.model.block_size // BLOCK)  # rounded up
        entries = sequences * self.blocks_per_sequence  # of all block tables
        self.blocks = entries if blocks is None else blocks
        # C++ reads the block tables here in every pass, so `set_blocks` writes into this memory. At
        # first sequence 0 has the first blocks, sequence 1 the next ones; entries beyond are 0.
        first_blocks = range(min(entries, self.blocks))
        self._tables = (ctypes.c_int32 * entries)(*first_blocks)
        cache = CCacheOptions(ctypes.addressof(self._tables), KV_KINDS[kv_dtype], self.blocks)
        error = ctypes.create_string_buffer(ERROR_BYTES)  # C++ writes a message into it
        address = library.gpt_decoder_create(
            ctypes.byref(weights.model),
            weights.layers,
            ctypes.byref(cache),
            self.max_tokens,
            self.threads,
            error,
            len(error),
        )
        if not address:  # a null pointer, for example because there is too little memory
            raise DeviceError(f"no engine for {sequences} sequences: {error.value.decode()}")
        self._decoder = ctypes.c_void_p(address)

    def __del__(self) -> None:
        # The constructor may have raised before it had anything to free.
        if hasattr(self, "_decoder"):
            self._library.gpt_decoder_free(self._decoder)

    @property
    def block_bytes(self) -> int:
        return int(self._library.gpt_decoder_block_bytes(self._decoder))

    def use_threads(self, threads: int) -> None:
        """Compute the next calls with this many threads, at most `self.threads`.

        The results are the same bits.
        """
        self._library.gpt_decoder_use_threads(self._decoder, threads)

    def set_blocks(self, sequence: int, blocks: Sequence[int]) -> None:
        """Set where a sequence is stored: position p lies in block `blocks[p // BLOCK]`."""
        assert sequence < self.sequences
        assert len(blocks) <= self.blocks_per_sequence
        assert all(0 <= block < self.blocks for block in blocks)
        # An index outside the memory of the blocks would corrupt other memory.
        start = sequence * self.blocks_per_sequence
        self._tables[start : start + len(blocks)] = list(blocks)

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy blocks: the first of each pair becomes a copy of the second."""
        if not copies:
            return
        targets, sources = zip(*copies, strict=True)
        assert all(0 <= block < self.blocks for block in (*targets, *sources))
        self._library.gpt_decoder_copy_blocks(
            self._decoder, len(copies), integers(targets), integers(sources)
        )

    def forward(self, batch: TokenBatch, wanted: Sequence[int]) -> Tensor:
        """Store the keys and values of some tokens, and return logits (wanted, V) float32.

        Args:
            batch: at most `max_tokens` tokens. Those of one sequence are adjacent and in order, and
                all earlier positions of it are stored.
            wanted: indices of the tokens after which logits are computed.
        """
        logits = torch.empty(len(wanted), self._weights.model.vocab_size, dtype=torch.float32)
        self._library.gpt_decoder_forward(
            self._decoder, self._in_c(batch), len(wanted), integers(wanted), floats(logits)
        )
        return logits

    def generate(
        self,
        newest: TokenBatch,
        uniforms: Tensor,
        params: SamplingParams,
        seen: Tensor | None = None,
        keep_logits: bool = False,
        by_sequence: bool = False,
    ) -> tuple[list[list[int]], Tensor | None]:
        """Sample several tokens for each of B different sequences, one token a step.

        Return the tokens of each sequence, and the logits (steps, B, V) if they are to be kept.

        Args:
            newest: the newest token of each sequence, which is not stored yet. The last token that
                is sampled may lie outside the window.
            uniforms: (B, steps) float32 in [0, 1), one for each token to sample.
            seen: (B, V) uint8, 1 for tokens to which the repetition penalty applies; C++ adds the
                sampled ones.
            by_sequence: whether each thread computes some sequences, instead of a part of every
                token; the results are the same bits.

        Raises:
            NotFiniteError: logits are not finite.
        """
        num_sequences, steps = uniforms.shape
        vocab_size = self._weights.model.vocab_size
        assert num_sequences == len(newest.tokens)
        assert max(newest.positions) + steps <= self._weights.model.block_size
        assert seen is None or seen.shape == (num_sequences, vocab_size)
        logits = None
        if keep_logits:
            logits = torch.empty(steps, num_sequences, vocab_size, dtype=torch.float32)
        sampled = (ctypes.c_int32 * (num_sequences * steps))()
        failed = self._library.gpt_decoder_generate(
            self._decoder,
            self._in_c(newest),
            int(by_sequence),
            steps,
            ctypes.byref(sampling_in_c(params)),
            floats(uniforms),
            pointer(seen, torch.uint8),
            sampled,
            floats(logits),
        )
        if failed:  # 1 + step * B + row; 0 means that all logits are finite
            step, row = divmod(failed - 1, num_sequences)
            raise NotFiniteError(row, step)
        flat = list(sampled)
        rows = [flat[start : start + steps] for start in range(0, len(flat), steps)]
        return rows, logits

    def step(
        self, batch: TokenBatch, wanted: Sequence[int], samples: Sequence[CSample]
    ) -> list[int]:
        """Store some tokens' keys and values, as `forward` does, and sample after the wanted ones.

        Args:
            wanted: indices of the tokens after which a token is sampled.
            samples: how a token is sampled after each of them.

        Returns:
            The token sampled after each, -1 where the logits are not finite.
        """
        assert len(wanted) == len(samples)
        sampled = (ctypes.c_int32 * len(wanted))()
        self._library.gpt_decoder_step(
            self._decoder,
            self._in_c(batch),
            len(wanted),
            integers(wanted),
            (CSample * len(samples))(*samples),
            sampled,
        )
        return list(sampled)

    def _in_c(self, batch: TokenBatch) -> Any:
        """Return a pointer to a `CBatch`, which keeps the arrays of the batch alive."""
        tokens, sequences, positions = batch
        assert len(tokens) == len(sequences) == len(positions) <= self.max_tokens
        arrays = map(integers, batch)
        return ctypes.byref(CBatch(*arrays, len(tokens)))
