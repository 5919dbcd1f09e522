"""Snapshots of a model while it trains: its token embedding, its attention to a line, a text."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from gpt.checkpoint.runs import MAX_VOCABULARY
from gpt.data.dataset import Dataset
from gpt.data.pairs import ANSWER
from gpt.data.tokenizers import Tokenizer
from gpt.extras.snapshot_text import SEARCHED_TOKENS, decoding_runtime, prompt_of, write_text
from gpt.model import GPT, eval_mode
from gpt.model.attention import masked_scores, weighted_sum
from gpt.system.errors import InputError, explained
from gpt.system.files import make_folder, write_atomic
from gpt.system.progress import Report
from gpt.training.acceleration import without_compilation
from gpt.training.callbacks import Callback, CloseEvent, StartEvent, StepEvent, Training

COUNT = 32
"""Snapshots of a run, at most.

Each step is about the same factor after the one before, since a model changes most at first.
"""
LINE_TOKENS = 32
"""Tokens of the line that is read: a picture of their attention weights still fits a page."""
TOLERANCE = 0.02
"""Largest norm of the difference between the attention of a fused kernel and that of its formula.

It is relative to the norm of the result. The two round differently in bfloat16.
"""


class Snapshots(Callback):
    """Writes `snapshots/step-000250.safetensors` into a run's folder, for pages that show learning.

    There is one at each of `snapshot_steps`, and one where a run ends before its last step.
    """

    only_observes = True

    def __init__(self, report: Report) -> None:
        self._report = report
        self._steps: set[int] = set()
        self._text_steps: set[int] = set()
        self._newest_step: int | None = None  # until the run has started
        # the one that was logged last: to read another back, a GPU would have to be waited for
        self._loss: float | None = None
        self._has_failed = False
        self._is_unwritable = False

    def on_start(self, event: StartEvent) -> None:
        """Take the snapshot of the initial weights; a run that is resumed has it already."""
        max_steps = event.trainer.config.train.max_steps
        self._steps = snapshot_steps(max_steps)
        self._text_steps = text_steps(max_steps)
        self._newest_step = event.step
        try:
            make_folder(event.trainer.run_folder.snapshots)
        except OSError as error:
            self._report_unwritable(error)
        if event.step == 0:
            self._write(event.trainer, event.step, has_text=True)

    def on_step(self, event: StepEvent) -> None:
        """Take a snapshot if one is due."""
        if event.is_logged:
            self._loss = event.loss
        if event.step in self._steps:
            self._write(event.trainer, event.step, event.step in self._text_steps)

    def on_close(self, event: CloseEvent) -> None:
        """Take a snapshot of the last step, so that the pages end with the model as it is."""
        if self._newest_step is not None and event.step > self._newest_step:
            self._write(event.trainer, event.step, has_text=True)

    def _write(self, trainer: Training, step: int, has_text: bool) -> None:
        if self._has_failed:
            return
        try:
            content = self._take(trainer, has_text)
        except Exception as error:
            # A failed snapshot must not abort training, whatever code of a user it runs.
            self._has_failed = True
            reason = f"no snapshots from step {step} on: {explained(error)}"
            self._report(f"warning: {reason}; training continues")
            return
        try:
            write_atomic(trainer.run_folder.snapshot(step), content)
        except OSError as error:
            # the next one may succeed: somebody may have made room on the disk
            self._report_unwritable(error)
            return
        self._newest_step = step

    def _take(self, trainer: Training, has_text: bool) -> bytes:
        config = trainer.config
        dataset = trainer.dataset
        model = trainer.model
        length = min(LINE_TOKENS, config.model.block_size)
        line = np.asarray(dataset.val[:length]).astype(np.int64)
        idx = torch.from_numpy(line).to(model.wte.weight.device)  # (T,)
        prompt = prompt_of(dataset, config)
        hardware = describe_hardware(idx.device)  # with the threads of the training
        text = ""
        # A few passes are not worth compiling for their shapes.
        with without_compilation(model), on_one_thread():
            if has_text:
                runtime = decoding_runtime(model, config.run.kernels)
                text = write_text(runtime, dataset, config, prompt)
            # a question is shown in a line of its own
            words = {
                "prompt": prompt.replace(ANSWER, "\n"),
                "sample": text,
                "loss": self._loss,
                "characters": count_characters(dataset),
                "hardware": hardware,
            }
            return take_snapshot(model, dataset.tokenizer, idx, words)

    def _report_unwritable(self, error: OSError) -> None:
        """Warn once: each further snapshot would fail for the same reason."""
        if not self._is_unwritable:
            self._is_unwritable = True
            reason = error.strerror or error
            self._report(f"warning: Snapshots cannot write: {reason}; training continues")


@contextmanager
def on_one_thread() -> Iterator[None]:
    """Let torch compute on one thread inside this context.

    A pass over a line is so short that threads would mostly wait for each other, for several times
    as long where other programs use the cores.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def snapshot_steps(max_steps: int) -> set[int]:
    """Return the steps of a run at which there is a snapshot, 0, 1 and the last included.

    But for step 0, they are about the same factor apart; there are at most `COUNT`.
    """
    intervals = COUNT - 2  # between step 1 and the last one; step 0 is one more
    return {0, *(round(max_steps ** (number / intervals)) for number in range(intervals + 1))}


def text_steps(max_steps: int) -> set[int]:
    """Return the steps of a run whose snapshots have a text.

    They are steps of `snapshot_steps`, since 5 divides the number of its intervals. Step 1 and the
    next power have none: after so few steps a model writes noise, as it does at step 0.
    """
    return {0, *(round(max_steps ** (power / 5)) for power in (2, 3, 4, 5))}


def count_characters(dataset: Dataset) -> int:
    """Return about how many characters a corpus has, exactly if each is a token."""
    splits = (dataset.train, dataset.val, dataset.test)
    tokens = sum(len(split) for split in splits if split is not None)
    return round(tokens * dataset.chars_per_token(dataset.val[:SEARCHED_TOKENS]))


def describe_hardware(device: torch.device) -> str:
    """Return in words on what a model is trained."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "cpu":
        threads = torch.get_num_threads()
        return "one processor core" if threads == 1 else f"{threads} processor cores"
    return device.type


def take_snapshot(model: GPT, tokenizer: Tokenizer, idx: Tensor, words: dict[str, Any]) -> bytes:
    """Return the file of a snapshot: tensors in float16, tokens as hexadecimal bytes.

    Args:
        idx: the tokens of the line whose attention is kept, (T,) int64.
        words: `sample`, what the model wrote, empty where it wrote nothing; `prompt`, which it
            continued; `loss`, in nats per token or None; and perhaps `characters`, the length of
            the corpus, and `hardware`.

    Raises:
        InputError: a number of the model is not finite in float16.
    """
    num_embeddings = tokenizer.vocab_size
    if num_embeddings > MAX_VOCABULARY:
        num_embeddings = 0
    fields = {
        "tokens": [tokenizer.token_bytes(token).hex() for token in range(num_embeddings)],
        "line": [tokenizer.token_bytes(token).hex() for token in idx.tolist()],
        **words,
    }
    tensors = {
        "embedding": model.wte.weight.detach()[:num_embeddings],  # (V, C)
        "attention": _attention(model, idx),  # (n_layer, H, T, T)
    }
    small = {name: x.to("cpu", torch.float16).contiguous() for name, x in tensors.items()}
    if not all(tensor.isfinite().all() for tensor in small.values()):
        raise InputError("the model's numbers are not finite")
    # metadata of safetensors are texts
    metadata = {name: json.dumps(value) for name, value in fields.items()}
    return safetensors.torch.save(small, metadata)


class _AttentionWeights:
    """Collects the attention weights of a pass, which fused kernels do not return.

    It is a forward hook of attention cores: it computes the weights from their inputs, and compares
    what follows from them with their outputs.
    """

    def __init__(self) -> None:
        self.patterns: list[Tensor] = []  # (1, H, T, T) each

    def __call__(self, core: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        q, k, v, mask = inputs
        weights = masked_scores(q, k, mask).softmax(dim=-1)  # (1, H, T, T)
        self.patterns.append(weights)
        expected = weighted_sum(weights, v)
        if (output - expected).norm() > TOLERANCE * output.norm():
            raise InputError("attention is not softmax(q k^T / sqrt(D)) v in this model")
        # the later layers continue from the formula, so that all weights belong to one pass
        return expected


@torch.no_grad()
def _attention(model: GPT, idx: Tensor) -> Tensor:
    """Compute the attention weights (n_layer, H, T, T) of ids (T,)."""
    collect = _AttentionWeights()
    with eval_mode(model), ExitStack() as hooks:
        for block in model.h:
            core: nn.Module = block.attn.core  # type: ignore[union-attr, assignment]
            hooks.enter_context(core.register_forward_hook(collect))
        model(idx[None])
    return torch.cat(collect.patterns)
