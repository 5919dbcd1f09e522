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

    If a callback changes a module of the model or puts a hook into it, the library would compute
    something else. PyTorch then makes the steps, as long as the change lasts.
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
        """Set the gradients as `Stepper._backward` does; return the loss and its terms."""
        reason = self._reason_for_torch()
        if reason is not None:
            # The reason is reported once, and not in each step.
            if reason != self._reported:
                self._native.report(f"training with PyTorch's operators: {reason}")
            self._reported = reason
            return super()._backward(inputs)
        # Both are sums over all positions of the step.
        cross_entropy = 0.0
        z_sum = 0.0
        for index, batch in enumerate(inputs.micro_batches):
            losses = self._native.compute_gradients(
                batch.inputs,
                batch.targets,
                self._loss_weights(inputs),
                batch.fields.get(TEACHER),  # None if the run has no teacher
                adds=index > 0,  # the first micro-batch overwrites the gradients of the last step
            )
            cross_entropy += losses.cross_entropy
            z_sum += losses.z_loss
        self._share_gradients()
        num_tokens = _number_to_divide_by(inputs)
        world = self.parallelism.world
        loss = world.all_reduce_mean(torch.tensor(cross_entropy / num_tokens, dtype=torch.float32))
        terms: Terms = {}
        # `z_loss` is the only term that the library computes, see `uncovered_objective`.
        for name, _ in self.objective.terms:
            terms[name] = world.all_reduce_mean(torch.tensor(z_sum / num_tokens))
        return loss, terms

    def _reason_for_torch(self) -> str | None:
        """Return why PyTorch has to make this step, as part of a message, or None.

        All processes have to decide alike. They communicate in other places in a step of the
        library than in one of PyTorch, and would otherwise wait for each other forever.
        """
        reason = self._watch.change()
        any_has_changed = self.parallelism.world.all_reduce_max(int(reason is not None))
        if any_has_changed and reason is None:
            return "the model of another process was changed"
        return reason

    def _loss_weights(self, inputs: StepInputs) -> LossWeights:
        """Return the weights by which the library computes what the objective does in this step."""
        objective = self.objective
        # `mtp_scale` is None if the losses of later tokens do not count in this step.
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
        """Average the gradients over the processes, and set `grad` of the parameters to them."""
        native = self._native
        world = self.parallelism.world
        if world.size > 1:
            native.flat_gradients.copy_(world.all_reduce_mean(native.flat_gradients))
        for name, parameter in native.parameters.items():
            if parameter.requires_grad:
                parameter.grad = native.gradients[name]
            else:
                # The library computes gradients of frozen parameters too. They are set to 0, since
                # the norm is computed of the whole buffer.
                native.gradients[name].zero_()
                parameter.grad = None

    def _update(
        self, step: int | Tensor, loss: Tensor, change_gradients: ChangeGradients | None
    ) -> Tensor:
        """Clip the gradients and make the update; return their norm before clipping.

        The library does not compute in float16, so that the loss is not scaled here.
        """
        if not self._has_native_gradients():
            # PyTorch has computed the gradients of this step, which are not in the native buffer.
            return super()._update(step, loss, change_gradients)
        native = self._native
        norm = native.kernels.norm(native.flat_gradients)
        # `torch.nn.utils.clip_grad_norm_` adds the same number, against a division by zero.
        factor = self.max_norm / (norm + 1e-6)
        if factor < 1:
            native.kernels.scale(native.flat_gradients, factor)
        if change_gradients is not None:
            change_gradients()
        norm_before_clipping = torch.tensor(norm, dtype=torch.float32)
        # On a CPU this raises an error if the loss or the norm is not finite.
        self._block_unless_finite(step, loss, norm_before_clipping)
        updated = self._updated_parameters()
        if updated is None:
            # A callback or a plugin has changed something that the library does not cover.
            self.optimizer.step()
        else:
            update_natively(native.kernels, updated)
        return norm_before_clipping

    def _has_native_gradients(self) -> bool:
        """Return whether `grad` of each trained parameter is its part of the native buffer."""
        for name, parameter in self._native.parameters.items():
            if parameter.requires_grad and parameter.grad is not self._native.gradients[name]:
                return False
        return True

    def _updated_parameters(self) -> list[Updated] | None:
        """Return the parameters with their states, or None if torch's optimizers have to step."""
        if not self._has_native_gradients():
            return None  # a callback has set `grad` to another tensor
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
    """Return the number of targets of a step, or NaN if there are none.

    In PyTorch the mean over no targets is NaN, whereas Python would raise ZeroDivisionError.
    """
    return float(inputs.num_tokens) or math.nan


def _is_covered(optimizer: Optimizer) -> bool:
    """Return whether the library can make the updates of an optimizer."""
    # The library would not call the hooks that a user has registered for steps.
    hooks = (
        optimizer._optimizer_step_pre_hooks,
        optimizer._optimizer_step_post_hooks,
        _global_optimizer_pre_hooks,
        _global_optimizer_post_hooks,
    )
    # The method `step` of this object may have been replaced, as a learning-rate scheduler of torch
    # does to count steps.
    if any(hooks) or "step" in vars(optimizer):
        return False
    if type(optimizer) is Muon:
        return True
    # With one of these options AdamW makes updates that the library does not know.
    options = ("amsgrad", "maximize", "differentiable", "capturable")
    # A plugin may use the class of torch, whose updates are those of the subclass `AdamW` here.
    is_adamw = type(optimizer) in (AdamW, torch.optim.AdamW)
    return is_adamw and not any(optimizer.defaults[name] for name in options)


def _with_state(optimizer: Optimizer, parameter: Tensor, group: dict[str, Any]) -> Updated:
    """Return a parameter with its state, which is allocated if the optimizer has none yet."""
    assert parameter.grad is not None
    if isinstance(optimizer, Muon):
        return Updated(
            parameter,
            parameter.grad,
            first_moment=optimizer.momentum(parameter),
            second_moment=None,
            step=None,
            group=group,
        )
    state = optimizer.state[parameter]
    if not state:
        # `torch.optim.AdamW` begins with the same values in its first step.
        state["step"] = torch.zeros((), dtype=torch.float32)
        state["exp_avg"] = torch.zeros_like(parameter)
        state["exp_avg_sq"] = torch.zeros_like(parameter)
    return Updated(
        parameter,
        parameter.grad,
        first_moment=state["exp_avg"],
        second_moment=state["exp_avg_sq"],
        step=state["step"],
        group=group,
    )
