"""A training step by the compiled library: one call for the gradients, and one for the update."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from gpt.native.coverage import ModelWatch
from gpt.native.training.native_model import LossWeights, NativeModel
from gpt.native.training.native_update import Updated, update_natively
from gpt.system.device import Compute
from gpt.training.eager import AdamW
from gpt.training.muon import Muon
from gpt.training.objective import LOSS_TERMS, TEACHER, Objective, z_loss
from gpt.training.optimizers import CombinedOptimizer
from gpt.training.step import (
    ChangeGradients,
    Parallelism,
    StepInputs,
    Stepper,
    Terms,
)


def uncovered_objective(objective: Objective) -> str | None:
    """Return a loss term that the library does not compute, as part of a message, or None."""
    for name, _ in objective.terms:
        if name != "z_loss" or LOSS_TERMS[name] is not z_loss:
            return f"train.loss_terms={name}"
    return None


class NativeStepper(Stepper):
    """Makes the steps of `Stepper` by the compiled library.

    While the model is not what the library computes, since a callback has changed a module of it or
    put a hook into it, PyTorch makes the steps.
    """

    def __init__(
        self,
        native: NativeModel,
        optimizer: CombinedOptimizer,
        compute: Compute,
        grad_clip: float,
        objective: Objective,
        parallelism: Parallelism | None = None,
    ) -> None:
        super().__init__(native.model, optimizer, compute, grad_clip, objective, parallelism)
        self._native = native
        self._watch = ModelWatch(native.model)
        self._reported: str | None = None

    def _backward(self, inputs: StepInputs) -> tuple[Tensor, Terms]:
        reason = self._reason_for_torch()
        if reason is not None:
            if reason != self._reported:
                self._native.report(f"training with PyTorch's operators: {reason}")
            self._reported = reason
            return super()._backward(inputs)
        cross_entropy = 0.0
        z_sum = 0.0
        for index, batch in enumerate(inputs.micro_batches):
            losses = self._native.compute_gradients(
                batch.inputs,
                batch.targets,
                self._loss_weights(inputs),
                batch.fields.get(TEACHER),
                adds=index > 0,
            )
            cross_entropy += losses.cross_entropy
            z_sum += losses.z_loss
        self._share_gradients()
        num_tokens = _number_to_divide_by(inputs)
        world = self.parallelism.world
        loss = world.all_reduce_mean(torch.tensor(cross_entropy / num_tokens, dtype=torch.float32))
        terms: Terms = {}
        for name, _ in self.objective.terms:
            terms[name] = world.all_reduce_mean(torch.tensor(z_sum / num_tokens))
        return loss, terms

    def _reason_for_torch(self) -> str | None:
        """Return why PyTorch has to make this step, as part of a message, or None.

        All processes decide alike, since they wait for each other at other places in a step by the
        library than in one by PyTorch.
        """
        reason = self._watch.change()
        any_has_changed = self.parallelism.world.all_reduce_max(int(reason is not None))
        if any_has_changed and reason is None:
            return "the model of another process was changed"
        return reason

    def _loss_weights(self, inputs: StepInputs) -> LossWeights:
        objective = self.objective
        later_weights: tuple[float, ...] = ()
        if inputs.mtp_scale is not None:
            scale = float(inputs.mtp_scale)
            later_weights = tuple(scale * weight for weight in objective.mtp_weights)
        return LossWeights(
            scale=1 / _number_to_divide_by(inputs),
            temperature=objective.logit_temperature,
            later_weights=later_weights,
            teacher_weight=objective.teacher_weight,
            z_weight=dict(objective.terms).get("z_loss", 0.0),
        )

    def _share_gradients(self) -> None:
        """Average the gradients over the processes, and make them those of the parameters."""
        native = self._native
        world = self.parallelism.world
        if world.size > 1:
            native.flat_gradients.copy_(world.all_reduce_mean(native.flat_gradients))
        for name, parameter in native.parameters.items():
            if parameter.requires_grad:
                parameter.grad = native.gradients[name]
            else:
                # The norm of the gradients is that of the whole buffer.
                native.gradients[name].zero_()
                parameter.grad = None

    def _update(
        self, step: int | Tensor, loss: Tensor, change_gradients: ChangeGradients | None
    ) -> Tensor:
        if not self._has_native_gradients():
            return super()._update(step, loss, change_gradients)
        native = self._native
        norm = native.kernels.norm(native.flat_gradients)
        # As in `torch.nn.utils.clip_grad_norm_`.
        factor = self.max_norm / (norm + 1e-6)
        if factor < 1:
            native.kernels.scale(native.flat_gradients, factor)
        if change_gradients is not None:
            change_gradients()
        norm_before_clipping = torch.tensor(norm, dtype=torch.float32)
        self._block_unless_finite(step, loss, norm_before_clipping)
        updated = self._updated_parameters()
        if updated is None:
            self.optimizer.step()
        else:
            update_natively(native.kernels, updated)
        return norm_before_clipping

    def _has_native_gradients(self) -> bool:
        """Return whether each parameter's gradient is its part of the native buffer."""
        for name, parameter in self._native.parameters.items():
            if parameter.requires_grad and parameter.grad is not self._native.gradients[name]:
                return False
        return True

    def _updated_parameters(self) -> list[Updated] | None:
        """Return the parameters with their states; None where torch's optimizers have to step."""
        if not self._has_native_gradients():
            return None  # a callback has replaced a gradient
        parameters: list[Updated] = []
        for optimizer in self.optimizer.optimizers.values():
            if not _is_covered(optimizer):
                return None
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameters.append(_with_state(optimizer, parameter, group))
        return parameters


def _number_to_divide_by(inputs: StepInputs) -> float:
    """Return the number of targets of a step, or NaN where there are none.

    A mean over no targets is NaN by PyTorch too, whereas Python would raise ZeroDivisionError.
    """
    return float(inputs.num_tokens) or math.nan


def _is_covered(optimizer: Optimizer) -> bool:
    """Return whether the library computes the updates of an optimizer."""
    hooks = (
        optimizer._optimizer_step_pre_hooks,
        optimizer._optimizer_step_post_hooks,
        _global_optimizer_pre_hooks,
        _global_optimizer_post_hooks,
    )
    # A `step` of the object hides that of the class, as where a scheduler of torch counts steps.
    if any(hooks) or "step" in vars(optimizer):
        return False
    if type(optimizer) is Muon:
        return True
    options = ("amsgrad", "maximize", "differentiable", "capturable")
    # A plugin may name torch's class, and `EagerOptimizer` changes no update.
    is_adamw = type(optimizer) in (AdamW, torch.optim.AdamW)
    return is_adamw and not any(optimizer.defaults[name] for name in options)


def _with_state(optimizer: Optimizer, parameter: Tensor, group: dict[str, Any]) -> Updated:
    """Return a parameter with its state, which is made where the optimizer has none yet."""
    assert parameter.grad is not None
    state = optimizer.state[parameter]
    if isinstance(optimizer, Muon):
        momentum = optimizer.momentum(parameter)
        return Updated(parameter, parameter.grad, momentum, None, None, group)
    if not state:
        # As `torch.optim.AdamW` begins.
        state["step"] = torch.zeros((), dtype=torch.float32)
        state["exp_avg"] = torch.zeros_like(parameter)
        state["exp_avg_sq"] = torch.zeros_like(parameter)
    return Updated(
        parameter, parameter.grad, state["exp_avg"], state["exp_avg_sq"], state["step"], group
    )
