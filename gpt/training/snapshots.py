"""Snapshots of the model while it trains: its token embedding, its attention to one line, what it writes."""

import json
from contextlib import ExitStack
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from gpt.checkpoint.runs import MAX_VOCABULARY, RunFolder
from gpt.config import Config
from gpt.config.sections import SEEDS
from gpt.data.dataset import Dataset
from gpt.data.tokenizers import Tokenizer
from gpt.generation.reference import reference_texts
from gpt.model import GPT, eval_mode
from gpt.model.attention import masked_scores, weighted_sum
from gpt.system.errors import InputError, explained
from gpt.system.files import make_folder, write_atomic
from gpt.system.progress import Report
from gpt.training.acceleration import without_compilation
from gpt.training.monitor import Monitor

COUNT = 32
"""Snapshots of a run, about; each step is the same factor after the one before, since a model changes most at first."""
LINE_TOKENS = 32
SAMPLE_LINES, SAMPLE_TOKENS = 8, 24  # side by side, since steps take time, and sequences hardly any
TOLERANCE = 0.02
"""Norm of a difference relative to the result: fused kernels and formulas round differently in bfloat16."""


class Snapshots(Monitor):
    """Writes `snapshots/step-000250.safetensors` at `snapshot_steps` and the end, until one cannot be taken."""

    def __init__(self, run: RunFolder, config: Config, model: GPT, dataset: Dataset, report: Report) -> None:
        self._run, self._config, self._model, self._dataset, self._report = run, config, model, dataset, report
        self._steps, self._has_failed = snapshot_steps(config.train.max_steps), False
        self._loss: float | None = None

    def start(self, step: int, evaluated: bool = True) -> None:
        make_folder(self._run.snapshots)
        self._step = self._newest = step
        if step == 0:
            self._write()

    def progress(self, step: int, loss: float | None) -> None:
        self._step, self._loss = step, self._loss if loss is None else loss
        if step in self._steps:
            self._write()

    def close(self) -> None:
        """Take the last one of a run that ends before its last step."""
        if self._step > self._newest:
            self._write()

    def _write(self) -> None:
        if self._has_failed:
            return
        try:
            with without_compilation(self._model):
                content = take_snapshot(self._model, self._dataset.tokenizer, self._line(), self._sample(), self._loss)
        except Exception as error:  # a picture must not end a training, whatever user code it meets
            self._has_failed = True
            self._report(f"warning: no snapshots from step {self._step} on: {explained(error)}; training continues")
            return
        write_atomic(self._run.snapshot(self._step), content)
        self._newest = self._step

    def _line(self) -> Tensor:
        """Return the first tokens of the validation split, (T,) int64."""
        line = self._dataset.val[: min(LINE_TOKENS, self._config.model.block_size)]
        return torch.from_numpy(np.asarray(line).astype(np.int64)).to(self._model.wte.weight.device)

    def _sample(self) -> str:
        params = self._config.sample
        short = params.params(max_new_tokens=min(SAMPLE_TOKENS, self._config.train.sample_tokens))
        seeds = [(params.seed + row) % SEEDS for row in range(SAMPLE_LINES)]
        lines = reference_texts(self._model, self._dataset.tokenizer, short, seeds, poll=lambda: None)
        return "\n".join(line.replace("\n", "⏎") for line in lines).strip("\n")


def snapshot_steps(most: int) -> set[int]:
    """Return the steps of a run of `most` at which there is a snapshot, the first and the last included."""
    return {0, *(round(most ** (number / (COUNT - 2))) for number in range(COUNT - 1))}


def take_snapshot(model: GPT, tokenizer: Tokenizer, idx: Tensor, sample: str, loss: float | None) -> bytes:
    """Return a file of a snapshot, in float16, tokens as hexadecimal bytes; `idx` (T,) is the line."""
    known = tokenizer.vocab_size if tokenizer.vocab_size <= MAX_VOCABULARY else 0
    tensors = {"embedding": model.wte.weight.detach()[:known], "attention": _attention(model, idx)}
    tokens, line = ([tokenizer.token_bytes(each).hex() for each in ids] for ids in (range(known), idx.tolist()))
    words = {"tokens": tokens, "line": line, "sample": sample, "loss": loss}
    small = {name: tensor.to("cpu", torch.float16).contiguous() for name, tensor in tensors.items()}
    if not all(tensor.isfinite().all() for tensor in small.values()):
        raise InputError("the model's numbers are not finite")
    return safetensors.torch.save(small, {name: json.dumps(value) for name, value in words.items()})


@torch.no_grad()
def _attention(model: GPT, idx: Tensor) -> Tensor:
    """Compute the attention weights (n_layer, H, T, T) of ids (T,), which a fused kernel does not keep.

    They are written out from what a model's cores receive, and compared with what those return.
    """
    patterns: list[Tensor] = []

    def write_out(core: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        q, k, v, mask = inputs
        patterns.append(masked_scores(q, k, mask).softmax(dim=-1))
        written_out = weighted_sum(patterns[-1], v)
        if (output - written_out).norm() > TOLERANCE * output.norm():
            raise InputError("attention is not softmax(q k^T / sqrt(D)) v in this model")
        return written_out

    with eval_mode(model), ExitStack() as hooks:
        for block in model.h:
            hooks.enter_context(block.attn.core.register_forward_hook(write_out))  # type: ignore[union-attr]
        model(idx[None])
    return torch.cat(patterns)
