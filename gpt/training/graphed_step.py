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
    """Return whether every step launches the same kernels, so that a CUDA graph can replay it."""
    conditions = (
        compute.device.type == "cuda",
        # GradScaler reads back whether gradients overflowed
        compute.dtype != torch.float16,
        # the collectives of DDP belong to another stream
        world.size == 1,
        # run.kernels=torch asks for plain launches
        config.run.kernels != "torch",
        # A replay runs no Python: neither that of a plugin, nor hooks that a callback has put into
        # the model.
        not used_plugins(config),
        all(callback.only_observes for callback in callbacks),
    )
    return all(conditions)


@dataclass(frozen=True)
class StaticInputs(StepInputs):
    """The inputs of a captured step, in memory of the device at addresses that stay the same.

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
        """Return memory on the device for inputs like the given ones, filled with their values."""
        mtp_scale = None
        if inputs.mtp_scale is not None:
            mtp_scale = torch.empty((), device=device)
        static = cls(
            step=torch.empty((), dtype=torch.int64, device=device),
            num_tokens=torch.empty((), device=device),
            mtp_scale=mtp_scale,
            learning_rates=[torch.empty((), device=device) for _ in inputs.learning_rates],
            micro_batches=[
                batch.map(partial(_empty_like, device=device)) for batch in inputs.micro_batches
            ],
        )
        static.copy_from(inputs)
        return static

    def copy_from(self, inputs: StepInputs) -> None:
        """Overwrite the inputs, without waiting for the device.

        `fill_` hands a number over as an argument of its kernel: unlike a copy from memory of the
        CPU, it needs no pinned memory in order not to wait.
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
                # From the CPU to the device by pinned memory, which need not be waited for, and
                # then on the device into the memory that the graph reads.
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

    The first step with a signature runs as usual, and allocates what lives longer than a step, such
    as the optimizer's moments. The second one is captured, and it and all later ones are replays.
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
        """Do update `number`, as `Stepper.step` does.

        The step runs without a graph if its signature is new, or if Python changes its gradients.
        """
        inputs = self._inputs(number, learning_rate, micro_batches)
        signature = _signature(inputs)
        if change_gradients is not None or signature not in self._warmed_up:
            self._warmed_up.add(signature)
            with self._capturer.on_own_stream():
                return self._run(inputs, change_gradients)
        if signature not in self._captured:
            self._captured[signature] = self._capture(inputs)
        return self._captured[signature].replay(inputs)

    def _capture(self, inputs: StepInputs) -> CapturedStep:
        """Record the kernels of a step without running them.

        Raises:
            DeviceError: the step does something that a graph cannot hold.
        """
        static = StaticInputs.allocate(inputs, self.compute.device)
        # The gradients of the last step go first: the graph has memory for gradients of its own,
        # and both would be held at the same time.
        self.optimizer.zero_grad(set_to_none=True)
        captured = self._capturer.capture("a step", "set run.kernels=torch")
        with captured as graph, self._capturable_optimizer():
            # The kernels are recorded here, and run only in a replay: the weights stay as they
            # are, and `result` names memory that nothing has written yet.
            result = self._run(static, change_gradients=None)
        return CapturedStep(graph, static, result)

    @contextmanager
    def _capturable_optimizer(self) -> Iterator[None]:
        """Let the optimizer read learning rates from the device; restore its settings at the end.

        The step writes tensors into the groups, and the settings are saved in checkpoints, which
        hold numbers.
        """
        groups = self.optimizer.param_groups
        settings = [dict(group) for group in groups]
        for group in groups:
            # torch's name of the option by which the learning rate may be a tensor
            group["capturable"] = True
        try:
            yield
        finally:
            for group, before in zip(groups, settings, strict=True):
                group.clear()
                group.update(before)


def _empty_like(tensor: Tensor, device: torch.device) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)


def _signature(inputs: StepInputs) -> Signature:
    shapes: list[torch.Size] = []
    for batch in inputs.micro_batches:
        shapes += [tensor.shape for tensor in batch.tensors]
    return inputs.mtp_scale is not None, tuple(shapes)
