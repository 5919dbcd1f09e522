"""One optimizer step: gradients of micro-batches, clipping, a check for NaN and inf, an update."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gpt.data.batches import StepBatch
from gpt.data.tokens import IGNORE
from gpt.model import GPT
from gpt.system.device import Compute
from gpt.system.distributed import World
from gpt.system.errors import NonFiniteError
from gpt.training.objective import Objective

if TYPE_CHECKING:  # a step works with any optimizer, and so does not import them
    from gpt.training.optimizers import CombinedOptimizer


ChangeGradients = Callable[[], None]
"""Changes the gradients of the model's parameters in place, between clipping and the update."""
Terms = dict[str, Tensor]
"""Values of the loss terms by their names in `train.loss_terms`, without their weights."""


@dataclass(frozen=True)
class Parallelism:
    """How the processes of a training run a model together.

    Attributes:
        forward: the model as it is called for the forward pass, ids (B, T) -> logits (B, T, V).
        no_sync: returns a context in which backward passes do not average gradients over the
            processes. All micro-batches of a step but the last run in it.
    """

    world: World
    forward: nn.Module
    no_sync: Callable[[], AbstractContextManager[None]] = nullcontext


@dataclass(frozen=True)
class StepInputs:
    """Everything that an update depends on besides the model and the optimizer.

    In a captured step the numbers are tensors on the device, which a replay overwrites.

    Attributes:
        step: the number of the update, counted from 0.
        num_tokens: the number of targets of the whole step, by which every loss is divided.
        mtp_scale: the factor of `Objective.mtp_weights`; None if the factor is 0.
        learning_rates: one for each parameter group of the optimizer, in their order.
        micro_batches: the batches of the step, whose gradients are added.
    """

    step: int | Tensor
    num_tokens: float | Tensor
    mtp_scale: float | Tensor | None
    learning_rates: Sequence[float | Tensor]
    micro_batches: Sequence[StepBatch]


@dataclass(frozen=True)
class StepResult:
    """The result of a step; its tensors are still on the device.

    Attributes:
        loss: mean over the step's tokens before the update, in nats per token.
        gradient_norm: global norm of the gradients before clipping.
        terms: means of the loss terms over the same tokens.
    """

    loss: Tensor
    gradient_norm: Tensor
    terms: Terms


class NonFiniteGuard:
    """Blocks the update of a step whose loss or gradient is not finite, and all later ones.

    From such a step on, the tensor `blocked` on the device is 1. The fused optimizers read it as
    `found_inf` and skip their updates.
    """

    def __init__(self, device: torch.device) -> None:
        # On CUDA, a fused optimizer reads `blocked` and skips the update, so that the host need not
        # wait for the device. On other devices the host has to read it in each step: on a CPU this
        # costs nothing, and on MPS, where it waits for the device, no fused optimizer skips an
        # update.
        self.checks_each_step = device.type in ("cpu", "mps")
        self.blocked = torch.zeros((), dtype=torch.float32, device=device)
        # The number of the first step that was not finite; -1 while all steps were finite.
        self._diverged_at = torch.full((), -1, dtype=torch.long, device=device)

    def observe(self, step: int | Tensor, loss: Tensor, gradient_norm: Tensor) -> None:
        """Record whether update `step` may be made: whether its loss and gradients are finite."""
        is_finite = torch.isfinite(loss) & torch.isfinite(gradient_norm)
        is_first_failure = ~is_finite & (self._diverged_at < 0)
        # Both tensors are written in place, since a CUDA graph that contains this step reads and
        # writes the same memory in each replay.
        self._diverged_at.copy_(torch.where(is_first_failure, step, self._diverged_at))
        self.blocked.copy_(self._diverged_at >= 0)

    def check(self) -> None:
        """Raise NonFiniteError if a step was not finite.

        No update was made in that step or later. This method reads a tensor, for which it waits for
        the device.
        """
        step = int(self._diverged_at)
        if step >= 0:
            raise NonFiniteError(
                f"the loss or a gradient is not finite at step {step}; the update was not made. "
                "Try a lower optim.learning_rate, run.dtype=float32 or optim.grad_clip=1.0"
            )


class LossScaler(torch.amp.GradScaler):
    """Scales the loss in float16, in which gradients would otherwise underflow.

    See Micikevicius et al. 2017, 1710.03740. In other types the scaler is disabled, and its methods
    pass on what they are given.
    """

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state; a run in another type than float16 has saved an empty state."""
        if not all(isinstance(value, int | float) for value in state_dict.values()):
            raise ValueError("the loss scale is not a number")
        if state_dict:  # torch refuses an empty state
            super().load_state_dict(state_dict)


class Stepper:
    """Updates a model: gradients of micro-batches, clipping, optimizer step.

    Args:
        grad_clip: largest global gradient norm; 0 means that gradients are not clipped.
        parallelism: None means that this process trains alone.
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
        self.model = model
        self.optimizer = optimizer
        self.compute = compute
        self.objective = objective
        self.parallelism = parallelism or Parallelism(World(), model)
        # `clip_grad_norm_` also measures the norm, so that it is called even if nothing is clipped.
        self.max_norm = grad_clip or math.inf
        self.scaler = LossScaler(compute.device.type, enabled=compute.dtype == torch.float16)
        self.guard = NonFiniteGuard(compute.device)

    def step(
        self,
        number: int,
        learning_rate: float,
        micro_batches: Sequence[StepBatch],
        change_gradients: ChangeGradients | None = None,
    ) -> StepResult:
        """Make update `number`, counted from 0.

        Args:
            change_gradients: called after clipping; None leaves the gradients as they are.

        Raises:
            NonFiniteError: the loss or a gradient is not finite; the weights are as before. On CUDA
                the update is skipped, but this method does not wait for the device, and so raises
                nothing; `check` raises the error later.
        """
        return self._run(self._inputs(number, learning_rate, micro_batches), change_gradients)

    def gradients(self, micro_batches: Sequence[StepBatch]) -> Tensor:
        """Set the gradients to those of update 0, and return its loss, detached; update nothing.

        The loss is the mean cross-entropy of the targets, in nats per token.
        """
        # The learning rate is not used, since nothing is updated.
        inputs = self._inputs(0, 0.0, micro_batches)
        loss, _ = self._backward(inputs)
        return loss

    def check(self) -> None:
        """Raise NonFiniteError if training has diverged; this waits for the device."""
        self.guard.check()
        # GradScaler halves the scale at each overflow. It exists to make small gradients larger, so
        # that a scale below 1 means that the gradients themselves are too large for float16.
        if self.scaler.is_enabled() and self.scaler.get_scale() < 1:
            raise NonFiniteError(
                "float16 gradients overflow even unscaled; set run.dtype=bfloat16 or float32"
            )

    def _inputs(
        self, number: int, learning_rate: float, micro_batches: Sequence[StepBatch]
    ) -> StepInputs:
        """Return the inputs of update `number`, all of them still on the CPU."""
        # `lr_factor` is 1 for most parameters. Muon has another learning rate than AdamW.
        learning_rates = [
            learning_rate * group["lr_factor"] for group in self.optimizer.param_groups
        ]
        return StepInputs(
            step=number,
            num_tokens=self._count_targets(micro_batches),
            mtp_scale=self.objective.mtp_scale(number),
            learning_rates=learning_rates,
            micro_batches=micro_batches,
        )

    def _count_targets(self, micro_batches: Sequence[StepBatch]) -> float:
        """Return the number of targets of a step, averaged over the processes.

        Processes may have different numbers of targets, since padding does not count. DDP averages
        the gradients of the processes. If each process divides its gradients by the mean number,
        the average is the sum of all gradients divided by the number of all targets.
        """
        # The targets, (B, T), are still on the CPU, so that this does not wait for a GPU.
        num_targets = sum(int((batch.targets != IGNORE).sum()) for batch in micro_batches)
        world = self.parallelism.world
        return world.all_reduce_sum(num_targets) / world.size

    def _run(self, inputs: StepInputs, change_gradients: ChangeGradients | None) -> StepResult:
        """Make one update from its inputs.

        A CUDA graph may record this method, which therefore reads nothing from the GPU.
        """
        # The optimizers of torch take their learning rates from their parameter groups.
        for group, rate in zip(self.optimizer.param_groups, inputs.learning_rates, strict=True):
            group["lr"] = rate
        loss, terms = self._backward(inputs)
        norm = self._update(inputs.step, loss, change_gradients)
        return StepResult(loss, norm, terms)

    def _backward(self, inputs: StepInputs) -> tuple[Tensor, Terms]:
        """Set the gradients to those of all micro-batches; return the loss and its terms, detached.

        Each loss is divided by the number of tokens of the whole step, not of its micro-batch. So
        all tokens have the same weight, even if the micro-batches of this or other processes differ
        in size or padding.
        """
        self.optimizer.zero_grad(set_to_none=True)
        # Each list has one value for each micro-batch.
        loss_parts: list[Tensor] = []
        term_parts: dict[str, list[Tensor]] = {}
        with self.compute.allow_tf32():
            for index, batch in enumerate(inputs.micro_batches):
                is_last = index == len(inputs.micro_batches) - 1
                # DDP averages the gradients over the processes in a backward pass. That is needed
                # only once, in the pass that completes the sum over the micro-batches.
                gradient_sync = nullcontext() if is_last else self.parallelism.no_sync()
                with gradient_sync:
                    losses = self.objective(
                        self.parallelism.forward, batch, self.compute, inputs.mtp_scale
                    )
                    # `minimized` has all parts of the objective. The loss that is reported below is
                    # the cross-entropy alone.
                    loss_per_token = losses.minimized / inputs.num_tokens
                    self.scaler.scale(loss_per_token).backward()  # type: ignore[no-untyped-call]
                loss_parts.append(losses.cross_entropy / inputs.num_tokens)
                for name, term in losses.terms.items():
                    term_parts.setdefault(name, []).append(term / inputs.num_tokens)
        loss = self._total(loss_parts)
        terms = {name: self._total(parts) for name, parts in term_parts.items()}
        return loss, terms

    def _total(self, parts: list[Tensor]) -> Tensor:
        """Return the sum over micro-batches; with several processes, the mean of their sums."""
        return self.parallelism.world.all_reduce_mean(torch.stack(parts).sum())

    def _update(
        self, step: int | Tensor, loss: Tensor, change_gradients: ChangeGradients | None
    ) -> Tensor:
        """Clip the gradients and make the update; return their norm before clipping."""
        # In float16 the gradients have the factor of the scaled loss, and `max_norm` is meant for
        # gradients without it. GradScaler is typed for an Optimizer, but uses only what a
        # CombinedOptimizer has too, so that the type is ignored.
        self.scaler.unscale_(self.optimizer)  # type: ignore[arg-type]
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        # Callbacks come after clipping, so that the update has the gradients that they set.
        if change_gradients is not None:
            change_gradients()
        # Numbers that are not finite must not reach the weights. On a CPU and on MPS this raises an
        # error. On a GPU, for which it would have to wait, it makes the optimizer skip the update.
        self._block_unless_finite(step, loss, norm)
        self.scaler.step(self.optimizer)  # type: ignore[arg-type]
        self.scaler.update()
        return norm

    def _block_unless_finite(self, step: int | Tensor, loss: Tensor, norm: Tensor) -> None:
        """Prevent this update and all later ones if the loss or the gradients are not finite."""
        if self.scaler.is_enabled():
            # Gradients in float16 may overflow now and then, for which GradScaler skips the step
            # and lowers the scale. An infinite norm then does not mean that training has diverged.
            # So the norm is replaced by a finite number, and only the loss is checked.
            norm = torch.zeros_like(norm)
        self.guard.observe(step, loss, norm)
        if self.guard.checks_each_step:
            self.guard.check()
        elif not self.scaler.is_enabled():
            # The fused optimizers skip their updates if `found_inf` is 1, which they read on the
            # GPU. If GradScaler is enabled, it sets `found_inf` itself.
            self.optimizer.found_inf = self.guard.blocked
