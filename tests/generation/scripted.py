"""A runtime whose logits are written down."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gpt.generation.runner import Runner
from gpt.generation.runtime import Runtime
from gpt.generation.sequence import Chunk, SequenceState
from gpt.system.progress import silent
from tiny import sharp_model


class Scripted(Runner):
    """A runner whose logits are a function of the tokens so far; notes how many rows it is asked for."""

    def __init__(self, logits: Callable[[Sequence[int]], list[float]]) -> None:
        super().__init__(block_size=64, blocks=400, block_bytes=0)
        self._logits = logits
        self.asked: list[int] = []

    def logits(self, chunks: Sequence[Chunk]) -> tuple[list[SequenceState], Tensor]:
        sequences = [chunk.sequence for chunk in chunks if chunk.steps]
        self.asked.append(len(sequences))
        return sequences, torch.tensor([self._logits(sequence.tokens) for sequence in sequences])


class ScriptedRuntime(Runtime):
    """Decodes by a given runner."""

    def __init__(self, runner: Runner) -> None:
        super().__init__(sharp_model(), "fp32", None, speculate=False, report=silent)
        self._given = runner

    def runner(self, sequences: int, prefill_chunk: int = 0, blocks: int | None = None) -> Runner:
        return self._given
