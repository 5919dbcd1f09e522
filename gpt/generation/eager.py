"""A model prepared for decoding by PyTorch's operators."""

import torch

from gpt.data.tokenizers import Tokenizer
from gpt.generation.engine import REMEDY, Engine
from gpt.generation.paged import BLOCK
from gpt.generation.paged_store import KV_DTYPES
from gpt.generation.runner import Runner, TorchRunner
from gpt.model import GPT
from gpt.model.quantized import weights_format
from gpt.system.device import require_own_threads
from gpt.system.errors import GenerationError


class Runtime:
    """A model prepared for decoding; `name` has backend, weights and cache, for messages."""

    backend = "eager"

    def __init__(self, model: GPT, kv_dtype: str = "fp32") -> None:
        self.model, self.kv_dtype = model, kv_dtype
        parts = [self.backend, f"{weights_format(model)} weights", f"{kv_dtype} cache"]
        self.name = ", ".join(part for part in parts if part != "float32 weights")

    def runner(self, sequences: int, prefill_chunk: int = 0, blocks: int | None = None) -> Runner:
        """Return a runner for at most `sequences` sequences; see `engine`."""
        require_own_threads(torch.get_num_threads(), REMEDY)
        window = -(-self.model.config.block_size // BLOCK)
        blocks = sequences * window if blocks is None else blocks
        if blocks < window:
            raise GenerationError(f"{blocks} blocks of {BLOCK} positions; one window needs {window}")
        return self._runner(sequences, prefill_chunk, blocks)

    def _runner(self, sequences: int, prefill_chunk: int, blocks: int) -> Runner:
        return TorchRunner(self.model, blocks, KV_DTYPES[self.kv_dtype])

    def engine(
        self,
        tokenizer: Tokenizer | None,
        max_sequences: int,
        prefill_chunk: int | None = None,
        blocks: int | None = None,
    ) -> Engine:
        """Return an engine for requests that join and leave; see `Scheduler`.

        Args:
            tokenizer: of the model; None: ids are wanted, and no text.
            blocks: number of blocks in the cache; None: enough for full windows of all sequences.

        Raises:
            DeviceError: this is a forked process with several threads.
            GenerationError: the blocks are too few for one window, or no sequences or tokens are allowed.
        """
        for name, value in (("max_sequences", max_sequences), ("prefill_chunk", prefill_chunk)):
            if value is not None and value < 1:
                raise GenerationError(f"{name} is {value}, expected at least 1")
        return Engine(self.runner(max_sequences, prefill_chunk or 0, blocks), tokenizer, max_sequences, prefill_chunk)
