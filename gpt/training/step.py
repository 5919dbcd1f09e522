"""One optimizer step: forward and backward passes, clipping, the check for finite numbers, the update."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gpt.model import GPT
from gpt.system.device import Compute, to_device
from gpt.system.distributed import World
from gpt.system.errors import DeviceError, NonFiniteError, explained
from gpt.training.loss import IGNORE
from gpt.training.objective import Objective, StepBatch

if TYPE_CHECKING:  # whoever builds a step chooses the optimizer
    from gpt.training.optimizers import CombinedOptimizer


Change = Callable[[], None] | None  # of the gradients, in place
ONE_CAPTURE = threading.Lock()
"""Held while a graph is captured: a process captures one at a time, and trainings may run in several threads."""


@dataclass(frozen=True)
class Parallelism:
    """How the processes of a training run a model together.

    Attributes:
        forward: called for the forward pass, token ids (B, T) -> logits (B, T, V).
        no_sync: a context whose backward passes leave gradients in this process: all but the last of a step.
    """

    world: World
    forward: nn.Module
    no_sync: Callable[[], AbstractContextManager[None]] = nullcontext


@dataclass(frozen=True)
class StepResult:
    """The result of a step; its tensors are still on the device.

    Attributes:
        loss: mean over the step's tokens before the update, in nats per token.
        gradient_norm: before clipping.
        terms: means of the loss terms over the same tokens, unweighted, by name.
    """

    loss: Tensor
    gradient_norm: Tensor
    terms: dict[str, Tensor]


Replay = Callable[[Sequence[StepBatch]], StepResult]  # of a captured step, with the numbers and tokens of another


class NonFiniteGuard:
    """Blocks, on the device, the updates of steps whose loss or gradient is not finite.

    From such a step on `blocked` is 1, and the fused optimizer, which reads it as `found_inf`, skips its updates.
    `check` reads that back: on a CPU at every step, where that is free, on a GPU only together with other results.
    """

    def __init__(self, device: torch.device) -> None:
        # MPS has no fused optimizer to read `found_inf`
        self.sync_is_free = device.type in ("cpu", "mps")
        self.blocked = torch.zeros((), dtype=torch.float32, device=device)
        self._diverged_at = torch.full((), -1, dtype=torch.long, device=device)

    def observe(self, step: int | Tensor, loss: Tensor, gradient_norm: Tensor) -> None:
        """Judge step `step`, counted from 0, after its backward pass and before its update."""
        diverges_now = ~(torch.isfinite(loss) & torch.isfinite(gradient_norm)) & (self._diverged_at < 0)
        self._diverged_at.copy_(torch.where(diverges_now, step, self._diverged_at))  # in place, for a CUDA graph
        self.blocked.copy_(self._diverged_at >= 0)

    def check(self) -> None:
        """Raise NonFiniteError if a step was not finite: in it and after it no update was made."""
        step = int(self._diverged_at)
        if step >= 0:
            raise NonFiniteError(
                f"the loss or a gradient is not finite at step {step}; the update was not made. "
                "Try a lower optim.learning_rate, run.dtype=float32 or optim.grad_clip=1.0"
            )


class LossScaler(torch.amp.GradScaler):
    """Scales the loss of float16, whose gradients would underflow (Micikevicius et al. 2017, 1710.03740)."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state; an empty one is of a run that was not in float16."""
        if not all(isinstance(value, int | float) for value in state_dict.values()):
            raise ValueError("the loss scale is not a number")
        if state_dict:
            super().load_state_dict(state_dict)


class Stepper:
    """Updates a model: gradients of micro-batches, clipping, optimizer step.

    Args:
        grad_clip: largest global gradient norm; 0 for none.
        parallelism: None: this process trains alone.
    """

    def __init__(
        self,
        model: GPT,
        optimizer: CombinedOptimizer,
        compute: Compute,
        grad_clip: float,
        objective: Objective = Objective(),  # noqa: B008  # without state
        parallelism: Parallelism | None = None,
    ) -> None:
        self.model, self.optimizer, self.compute, self.objective = model, optimizer, compute, objective
        self.parallelism = parallelism or Parallelism(World(), model)
        self.max_norm = grad_clip or math.inf
        self.scaler = LossScaler(compute.device.type, enabled=compute.dtype == torch.float16)
        self.guard = NonFiniteGuard(compute.device)

    def step(
        self, number: int, learning_rate: float, micro_batches: Sequence[StepBatch], change_gradients: Change = None
    ) -> StepResult:
        """Do update `number`, counted from 0; before a NonFiniteError the weights stay as they are.

        `change_gradients` is called after clipping.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate * group["lr_factor"]
        scale = self.objective.mtp_scale(number)
        loss, terms = self._gradients(micro_batches, self._tokens(micro_batches), scale)
        return StepResult(loss, self._update(number, loss, change_gradients), terms)

    def _update(self, number: int | Tensor, loss: Tensor, change_gradients: Change = None) -> Tensor:
        """Clip the gradients and make the update; return their norm before clipping."""
        self.scaler.unscale_(self.optimizer)  # type: ignore[arg-type]  # it needs only groups and step
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        if change_gradients is not None:
            change_gradients()
        # Gradients in float16 may overflow now and then: GradScaler skips such a step itself, and lowers the scale.
        # The guard then judges the loss alone.
        self.guard.observe(number, loss, torch.zeros_like(norm) if self.scaler.is_enabled() else norm)
        if self.guard.sync_is_free:
            self.guard.check()
        elif not self.scaler.is_enabled():
            # A GPU must not wait for the host: the fused optimizer reads this on the device.
            self.optimizer.found_inf = self.guard.blocked
        self.scaler.step(self.optimizer)  # type: ignore[arg-type]
        self.scaler.update()
        return norm

    def check(self) -> None:
        """Raise NonFiniteError if training has diverged; this waits for the device."""
        self.guard.check()
        if self.scaler.is_enabled() and self.scaler.get_scale() < 1:
            raise NonFiniteError("float16 gradients overflow even unscaled; set run.dtype=bfloat16 or float32")

    def gradients(self, micro_batches: Sequence[StepBatch], step: int = 0) -> Tensor:
        """Set the gradients to those of several micro-batches, as if they were one batch; return the loss.

        That is the mean cross-entropy of the targets, in nats per token, detached. Each loss is divided by the number
        of tokens of the whole step, not of its micro-batch, so that all tokens have the same weight even if
        micro-batches, or those of other processes, differ in size or padding.
        """
        loss, _ = self._gradients(micro_batches, self._tokens(micro_batches), self.objective.mtp_scale(step))
        return loss

    def _tokens(self, micro_batches: Sequence[StepBatch]) -> float:
        """Count the targets of a step; with several processes their mean, since their gradients are averaged."""
        own = sum(int((batch[1] != IGNORE).sum()) for batch in micro_batches)
        return self.parallelism.world.all_reduce_sum(own) / self.parallelism.world.size

    def _gradients(
        self, micro_batches: Sequence[StepBatch], tokens: float | Tensor, mtp_scale: float | Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        self.optimizer.zero_grad(set_to_none=True)
        forward, no_sync = self.parallelism.forward, self.parallelism.no_sync
        losses: list[Tensor] = []
        terms: dict[str, list[Tensor]] = {}
        with self.compute.allow_tf32():
            for number, batch in enumerate(micro_batches, start=1):
                with nullcontext() if number == len(micro_batches) else no_sync():
                    minimized, loss, found = self.objective(forward, batch, self.compute, mtp_scale)
                    self.scaler.scale(minimized / tokens).backward()  # type: ignore[no-untyped-call]
                losses.append(loss / tokens)
                for name, term in found.items():
                    terms.setdefault(name, []).append(term / tokens)
        return self._of_all(losses), {name: self._of_all(values) for name, values in terms.items()}

    def _of_all(self, parts: list[Tensor]) -> Tensor:
        """Add up the parts of micro-batches; with several processes, return the mean of their sums."""
        return self.parallelism.world.all_reduce_mean(torch.stack(parts).sum())


class GraphedStepper(Stepper):
    """Replays a step as one CUDA graph: the kernels of a small model take several times longer to launch than to run.

    The first step with batches of a shape makes what stays, as moments; the second is captured. Numbers that change
    from step to step are on the device, for which no part may wait; hooks and other Python do not run.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._graphs: dict[Hashable, Replay | None] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(self.compute.device)  # type: ignore[no-untyped-call]

    def step(
        self, number: int, learning_rate: float, micro_batches: Sequence[StepBatch], change_gradients: Change = None
    ) -> StepResult:
        scale = self.objective.mtp_scale(number)
        key = (scale is None, *(tensor.shape for batch in micro_batches for tensor in batch))
        if change_gradients is not None or key not in self._graphs:
            self._graphs.setdefault(key, None)
            with self._on_own_stream():
                return super().step(number, learning_rate, micro_batches, change_gradients)
        replay = self._graphs[key] = self._graphs[key] or self._capture(micro_batches, scale is not None)
        rates = [learning_rate * group["lr_factor"] for group in self.optimizer.param_groups]
        return replay([(torch.tensor([number, self._tokens(micro_batches), scale or 0.0, *rates]),), *micro_batches])

    @contextmanager
    def _on_own_stream(self) -> Iterator[None]:
        """Queue work, within, on the stream that is captured: after what is queued, before what comes later.

        The first steps run on it too, since gradients are accumulated on the stream where that began.
        The run's device is the current one meanwhile: a capture sees the current device alone.
        """
        with torch.cuda.device(self.compute.device):
            usual = torch.cuda.current_stream()
            self._stream.wait_stream(usual)
            try:
                with torch.cuda.stream(self._stream):
                    yield
            finally:
                usual.wait_stream(self._stream)

    def _capture(self, micro_batches: Sequence[StepBatch], has_mtp: bool) -> Replay:
        device, groups, graph = self.compute.device, self.optimizer.param_groups, torch.cuda.CUDAGraph()
        numbers = torch.ones(3 + len(groups), device=device)
        inputs = [(numbers,), *(tuple(to_device(tensor, device) for tensor in batch) for batch in micro_batches)]
        number, tokens, scale, *rates = numbers.unbind()
        before = [dict(group) for group in groups]
        # the graph allocates its own, and would hold them beside those of the last step
        self.optimizer.zero_grad(set_to_none=True)
        try:
            # other threads may allocate meanwhile
            capture = torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local")
            with ONE_CAPTURE, self._on_own_stream(), capture:
                for group, rate in zip(groups, rates, strict=True):
                    group.update(lr=rate, capturable=True)
                loss, terms = self._gradients(inputs[1:], tokens, scale if has_mtp else None)
                norm = self._update(number, loss)
        except torch.AcceleratorError as error:
            cause = explained(_first_error(error))
            raise DeviceError(f"no CUDA graph of a step: {cause}; set run.kernels=torch") from error
        for group, old in zip(groups, before, strict=True):
            group.update(old)

        def replay(given: Sequence[StepBatch]) -> StepResult:
            for place, tensor in zip(chain(*inputs), chain(*given), strict=True):
                place.copy_(to_device(tensor, device))
            graph.replay()
            # the next one overwrites them
            return StepResult(loss.clone(), norm.clone(), {name: term.clone() for name, term in terms.items()})

        return replay


def _first_error(error: BaseException) -> BaseException:
    """Return the error that ended a capture; closing it then raised another, which says only that it failed."""
    while isinstance(error.__context__, RuntimeError):
        error = error.__context__
    return error
