"""Run a model by the C++ decoder of `src/decoding`.

The decoder runs on every processor that has a C++ compiler. It computes in float32; weights, keys
and values may be stored in narrower types. The results for a token do not depend on the other
tokens of the pass, to the last bit.
"""

import ctypes
import math
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
"""Functions that return nothing, which ctypes calls None."""
RESULTS = {
    **VOID,
    "create": ctypes.c_void_p,
    "block_bytes": ctypes.c_int64,
    "generate": ctypes.c_int64,
}
"""Return types of the library's functions, by their names without the prefix `gpt_decoder_`."""
FLAGS = ("-ffp-contract=off",)
"""Compiler flags: multiplications and additions are fused only where the source says so.

Otherwise the compiler may fuse them in some instantiations of a template only, whose results then
differ from those of the others.
"""
KV_KINDS = {"fp32": Kind.FLOAT32, "bf16": Kind.BFLOAT16, "int8": Kind.INT8}
"""Types of keys and values in the cache, by their names in `kv_dtype`."""
MIN_PASS_TOKENS = 64
"""Smallest number of tokens that a decoder has room for in one pass.

With more tokens in a pass the weights are read less often, but activations need more memory.
"""
ERROR_BYTES = 200
"""Size of the buffer for the message that says why a decoder cannot be created."""


class TokenBatch(NamedTuple):
    """Tokens that one pass computes together.

    Attributes:
        tokens: the id of each token.
        sequences: the index of each token's sequence.
        positions: the position of each token in its sequence.
    """

    tokens: Sequence[int]
    sequences: Sequence[int]
    positions: Sequence[int]


class NotFiniteError(ArithmeticError):
    """Logits are not finite.

    Attributes:
        row: index of the token in the batch that was given to `generate`.
        step: the step of `generate` that computed the logits.
    """

    def __init__(self, row: int, step: int) -> None:
        super().__init__(f"logits of row {row} in step {step} are not finite")
        self.row = row
        self.step = step


def load_decoder(
    settings: Settings, report: Report = silent, processor: Processor | None = None
) -> tuple[ctypes.CDLL, Processor]:
    """Return the decoder's library and the processor class that it was compiled for.

    Args:
        processor: the class whose library is loaded without a trial; None means the best class of
            this machine whose library passes its trial.

    Raises:
        DeviceError: there is no compiler, or no library passes its trial.
        RuntimeError: the library's structures differ from those of `c_structs`.
    """
    if processor is None:
        processors = supported_processors(settings.processor)
        library, processor = load_usable(SOURCE, processors, settings, report, FLAGS)
    else:
        path = find_library(SOURCE, processor, settings.cache_dir, report, FLAGS)
        library = open_library(path)
    return check_and_declare(library), processor


def check_and_declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """Check the structures of a decoder library, and declare its functions' return types to ctypes.

    The library itself is returned.

    Raises:
        RuntimeError: its structures differ from those of `c_structs`, which would corrupt memory.
    """
    check_facts(library, *STRUCTURES)
    for name, return_type in RESULTS.items():
        getattr(library, f"gpt_decoder_{name}").restype = return_type
    return library


class Decoder:
    """Runs a model over sequences whose keys and values are stored in blocks of `BLOCK` positions.

    All memory is allocated on construction; a pass allocates only its result. The operating system
    provides the memory of a block when the block is first written. At first, sequence 0 has the
    first blocks, sequence 1 the blocks after them, and so on; see `set_blocks`.

    Args:
        sequences: number of sequences.
        tokens_per_sequence: number of tokens of each sequence that fit into one pass.
        kv_dtype: type of the stored keys and values, a key of `KV_KINDS`.
        blocks: number of physical blocks; None means as many as all sequences need without sharing.

    Raises:
        DeviceError: there is not enough memory, or the system does not grant the AMX tiles.
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
        self._weights = weights  # kept alive, since the decoder does not copy them
        self.sequences = sequences
        # Prompts are divided into passes, each of which reads all weights. So a pass has room for
        # many tokens even if a step of all sequences needs only a few.
        self.max_tokens = max(MIN_PASS_TOKENS, sequences * tokens_per_sequence)
        self.threads = torch.get_num_threads()
        self.blocks_per_sequence = math.ceil(weights.model.block_size / BLOCK)
        num_entries = sequences * self.blocks_per_sequence  # of the block tables of all sequences
        self.blocks = num_entries if blocks is None else blocks
        # C++ reads the block tables from this array in every pass, and `set_blocks` changes them.
        # Initially, entry i names block i. If there are fewer blocks than entries, ctypes sets the
        # other entries to 0.
        first_blocks = range(min(num_entries, self.blocks))
        self._tables = (ctypes.c_int32 * num_entries)(*first_blocks)
        cache = CCacheOptions(ctypes.addressof(self._tables), KV_KINDS[kv_dtype], self.blocks)
        error = ctypes.create_string_buffer(ERROR_BYTES)  # for a message of C++
        address = library.gpt_decoder_create(
            ctypes.byref(weights.model),
            weights.layers,
            ctypes.byref(cache),
            self.max_tokens,
            self.threads,
            error,
            len(error),
        )
        if not address:  # a null pointer: C++ has written why into `error`
            raise DeviceError(f"no engine for {sequences} sequences: {error.value.decode()}")
        self._decoder = ctypes.c_void_p(address)

    def __del__(self) -> None:
        # If the constructor raised an exception, there is nothing to free.
        if hasattr(self, "_decoder"):
            self._library.gpt_decoder_free(self._decoder)

    @property
    def block_bytes(self) -> int:
        return int(self._library.gpt_decoder_block_bytes(self._decoder))

    def use_threads(self, threads: int) -> None:
        """Set the number of threads that compute the next calls, at most `self.threads`.

        The results are the same for every number, to the last bit.
        """
        self._library.gpt_decoder_use_threads(self._decoder, threads)

    def set_blocks(self, sequence: int, blocks: Sequence[int]) -> None:
        """Set where a sequence is stored: position p lies in block `blocks[p // BLOCK]`."""
        assert sequence < self.sequences
        assert len(blocks) <= self.blocks_per_sequence
        # C++ does not check the indices of blocks: a wrong one would corrupt other memory.
        assert all(0 <= block < self.blocks for block in blocks)
        start = sequence * self.blocks_per_sequence
        self._tables[start : start + len(blocks)] = list(blocks)

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy the contents of physical blocks.

        Args:
            copies: pairs of a target and its source.
        """
        if not copies:
            return
        targets, sources = zip(*copies, strict=True)
        assert all(0 <= block < self.blocks for block in (*targets, *sources))
        self._library.gpt_decoder_copy_blocks(
            self._decoder, len(copies), integers(targets), integers(sources)
        )

    def forward(self, batch: TokenBatch, wanted: Sequence[int]) -> Tensor:
        """Store the keys and values of some tokens; return logits (len(wanted), V) float32.

        Args:
            batch: at most `max_tokens` tokens. Tokens of one sequence are adjacent and in order,
                and all earlier positions of the sequence are stored already.
            wanted: indices in the batch of the tokens whose logits are returned.
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
        """Sample several tokens for each of B different sequences, one token of each per step.

        Args:
            newest: the newest token of each sequence, whose keys and values are not stored yet.
                Their positions and the steps have to fit into the window; only the last sampled
                token, which is not computed any more, may lie outside.
            uniforms: (B, steps) float32 random numbers in [0, 1), one for each token to sample.
            seen: (B, V) uint8, 1 for tokens to which the repetition penalty applies. C++ sets 1 for
                each token that it samples.
            keep_logits: whether to return the logits too.
            by_sequence: whether each thread computes some of the sequences alone. By default all
                threads share the work on each token. The results are the same, to the last bit.

        Returns:
            The sampled tokens of each sequence, and the logits (steps, B, V) or None.

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
        failure = self._library.gpt_decoder_generate(
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
        # C++ returns 0 if all logits are finite, else 1 + step * B + row of some that are not.
        if failure:
            step, row = divmod(failure - 1, num_sequences)
            raise NotFiniteError(row, step)
        tokens = list(sampled)  # those of the first sequence, then those of the second, and so on
        rows = [tokens[start : start + steps] for start in range(0, len(tokens), steps)]
        return rows, logits

    def step(
        self, batch: TokenBatch, wanted: Sequence[int], samples: Sequence[CSample]
    ) -> list[int]:
        """Store some tokens' keys and values, as `forward` does; sample a token after some of them.

        Args:
            batch: as in `forward`.
            wanted: indices in the batch of the tokens after which a token is sampled.
            samples: how to sample each of these tokens.

        Returns:
            The sampled tokens; -1 where the logits are not finite.
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
        """Return a pointer to a batch in C++; the pointer object keeps the batch's memory alive."""
        tokens, sequences, positions = batch
        assert len(tokens) == len(sequences) == len(positions) <= self.max_tokens
        arrays = map(integers, batch)
        return ctypes.byref(CBatch(*arrays, len(tokens)))
