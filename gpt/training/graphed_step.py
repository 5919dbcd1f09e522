"""A training step as one CUDA graph: small kernels take longer to launch than to run."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gpt.config import Config
from gpt.config.plugins import used_plugins
from gpt.data.batches import StepBatch
from gpt.system.cuda_graphs import GraphCapturer
from gpt.system.device import Compute, to_device
from gpt.system.distributed import World
from gpt.training.callbacks import Callback
from gpt.training.step import ChangeGradients, StepInputs, Stepper, StepResult

Signature = tuple[bool, tuple[torch.Size, ...]]
"""Whether multi-token prediction counts, and the shapes of all tensors of the micro-batches.

Steps with the same signature launch the same kernels, and so can be replays of one graph.
"""


def can_capture(
    config: Config, compute: Compute, world: World, callbacks: Sequence[Callback]
) -> bool:
    """Return whether a CUDA graph can replay the steps of a training."""
    conditions = (
        compute.device.type == "cuda",
        # In float16, GradScaler reads from the device whether the gradients overflowed.
        compute.dtype != torch.float16,
        # With several processes, DDP communicates on another stream than the one of a graph.
        world.size == 1,
        # With run.kernels=torch the user asks for steps without graphs.
        config.run.kernels != "torch",
        # A replay runs no Python. A plugin may run some in a step, and a callback may add hooks to
        # the model, unless it only observes.
        not used_plugins(config),
        all(callback.only_observes for callback in callbacks),
    )
    return all(conditions)


@dataclass(frozen=True)
class StaticInputs(StepInputs):
    """The inputs of a captured step, at addresses of the device's memory that stay the same.

    Attributes:
        step: () int64.
        num_tokens: () float32.
        mtp_scale: () float32, or None.
        learning_rates: () float32 each.
    """

    step: Tensor
    num_tokens: Tensor
    mtp_scale: Tensor | None
    learning_rates: Sequence[Tensor]

    @classmethod
    def allocate(cls, inputs: StepInputs, device: torch.device) -> "StaticInputs":
        """Copy inputs into new memory on the device."""
        mtp_scale = None  # the step has no multi-token prediction
        if inputs.mtp_scale is not None:
            mtp_scale = torch.empty((), device=device)
        empty_like = partial(_empty_like, device=device)
        static = cls(
            step=torch.empty((), dtype=torch.int64, device=device),
            num_tokens=torch.empty((), device=device),
            mtp_scale=mtp_scale,
            learning_rates=[torch.empty((), device=device) for _ in inputs.learning_rates],
            micro_batches=[batch.map(empty_like) for batch in inputs.micro_batches],
        )
        static.copy_from(inputs)
        return static

    def copy_from(self, inputs: StepInputs) -> None:
        """Overwrite these inputs with others of the same shapes, without waiting for the device.

        `fill_` passes a number as an argument of its kernel. Unlike a copy from the CPU's memory,
        it does not wait for the device even if the memory is not pinned.
        """
        self.step.fill_(inputs.step)
        self.num_tokens.fill_(inputs.num_tokens)
        if self.mtp_scale is not None:
            assert inputs.mtp_scale is not None, "steps without it have a graph of their own"
            self.mtp_scale.fill_(inputs.mtp_scale)
        for static_rate, rate in zip(self.learning_rates, inputs.learning_rates, strict=True):
            static_rate.fill_(rate)
        for static_batch, batch in zip(self.micro_batches, inputs.micro_batches, strict=True):
            for static_tensor, tensor in zip(static_batch.tensors, batch.tensors, strict=True):
                # `to_device` copies from pinned memory, so that the CPU does not wait. `copy_` then
                # copies within the device, into the memory that the graph reads.
                static_tensor.copy_(to_device(tensor, static_tensor.device))


@dataclass(frozen=True)
class CapturedStep:
    """A graph with the memory that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    inputs: StaticInputs
    result: StepResult

    def replay(self, inputs: StepInputs) -> StepResult:
        """Make an update from other inputs with the same signature."""
        self.inputs.copy_from(inputs)
        self.graph.replay()
        # The caller gets copies, since the next replay writes its results to the same memory.
        return StepResult(
            loss=self.result.loss.clone(),
            gradient_norm=self.result.gradient_norm.clone(),
            terms={name: term.clone() for name, term in self.result.terms.items()},
        )


class GraphedStepper(Stepper):
    """Captures a step as a CUDA graph and replays it, without hooks and other Python.

    The first step with a signature runs without a graph, and allocates what lives longer than a
    step, such as the optimizer's moments. The second step is captured; this step and all later ones
    with the same signature are replays of the graph.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._warmed_up: set[Signature] = set()
        self._captured: dict[Signature, CapturedStep] = {}
        self._capturer = GraphCapturer(self.compute.device)

    def step(
        self,
        number: int,
        learning_rate: float,
        micro_batches: Sequence[StepBatch],
        change_gradients: ChangeGradients | None = None,
    ) -> StepResult:
        """Make update `number`, as `Stepper.step` does.

        The step runs without a graph if its signature is new, or if `change_gradients` is given,
        since a graph cannot call a Python function.
        """
        inputs = self._inputs(number, learning_rate, micro_batches)
        signature = _signature(inputs)
        is_new = signature not in self._warmed_up
        if is_new or change_gradients is not None:
            self._warmed_up.add(signature)
            # A later step is captured on the capturer's own stream. This step already runs there:
            # autograd accumulates a gradient on the stream on which the gradient was first made,
            # and a capture cannot contain work on another stream.
            with self._capturer.on_own_stream():
                return self._run(inputs, change_gradients)
        if signature not in self._captured:
            self._captured[signature] = self._capture(inputs)
        return self._captured[signature].replay(inputs)

    def _capture(self, inputs: StepInputs) -> CapturedStep:
        """Record the kernels of a step without running them.

        Raises:
            DeviceError: a graph cannot contain something that the step does.
        """
        static = StaticInputs.allocate(inputs, self.compute.device)
        # The captured step allocates gradients of its own. Those of the last step are freed first,
        # so that both are never in memory together.
        self.optimizer.zero_grad(set_to_none=True)
        # The two texts are for an error: what cannot be captured, and what the user can do.
        capture = self._capturer.capture("a step", "set run.kernels=torch")
        with capture as graph, self._capturable_optimizer():
            # The kernels are only recorded here, and run in a replay: the weights stay as they are,
            # and nothing has been written to the memory of `result` yet.
            result = self._run(static, change_gradients=None)
        return CapturedStep(graph, static, result)

    @contextmanager
    def _capturable_optimizer(self) -> Iterator[None]:
        """Let the optimizer read learning rates from the device inside this context.

        The captured step sets the learning rates of the parameter groups to tensors. Checkpoints
        contain the groups, with numbers, so that the groups are restored at the end.
        """
        groups = self.optimizer.param_groups
        original_groups = [dict(group) for group in groups]
        for group in groups:
            # With this option torch's optimizers accept a learning rate that is a tensor.
            group["capturable"] = True
        try:
            yield
        finally:
            for group, original in zip(groups, original_groups, strict=True):
                group.clear()
                group.update(original)


def _empty_like(tensor: Tensor, device: torch.device) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)


def _signature(inputs: StepInputs) -> Signature:
    """Return what a graph is captured for; see `Signature`."""
    shapes: list[torch.Size] = []
    for batch in inputs.micro_batches:
        shapes += [tensor.shape for tensor in batch.tensors]
    return inputs.mtp_scale is not None, tuple(shapes)
