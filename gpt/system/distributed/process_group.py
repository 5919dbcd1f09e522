"""Processes that torchrun started, connected by torch.distributed."""

import gc
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.distributed.nn  # else DDP imports it, and its default arguments keep the group alive
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from gpt.system.distributed import World
from gpt.system.environment import Launch
from gpt.system.errors import ConfigError, GPTError, PeerError, ProcessLostError, first_line
from gpt.system.signals import WATCHED, handling

T = TypeVar("T")

TIMEOUT = timedelta(hours=1)
"""Of every collective; rank 0 may download and encode a corpus meanwhile."""


class ProcessGroup(World):
    """Several processes; objects and counts travel over gloo, tensors on CUDA over NCCL."""

    def __init__(self, launch: Launch) -> None:
        super().__init__(launch)
        self.reported: GPTError | None = None
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
        try:
            # Python would handle signals only when the others are there
            with handling(WATCHED, signal.SIG_DFL):
                store, rank, size = next(rendezvous("env://", timeout=TIMEOUT))
                # the store of one machine has the addresses before a restart
                if launch.size == launch.local_size:
                    store = dist.PrefixStore(f"restart-{launch.restarts}", store)  # type: ignore[attr-defined]
                dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
        except (RuntimeError, ValueError) as error:
            if launch.local_rank > 0:
                raise PeerError(ConfigError.exit_code) from None
            raise ConfigError(f"cannot join the others at {launch.address}: {first_line(error)}") from error

    def rank_zero(self, work: Callable[[], T]) -> T:
        stopped: GPTError | SystemExit | None = None
        answer: list[Any] = [None, None]
        if self.is_main:
            try:
                answer = [work(), None]
            except (GPTError, SystemExit) as error:
                stopped = error
                answer = [None, error.exit_code if isinstance(error, GPTError) else error.code or 0]
        dist.broadcast_object_list(answer, src=0, device=torch.device("cpu"))
        result, code = answer
        if stopped is not None:
            raise stopped
        if code is not None:
            raise PeerError(code)
        return result

    def rank_zero_first(self, work: Callable[[], T]) -> T:
        done: list[T] = []
        self.rank_zero(lambda: done.append(work()))
        with self.together():
            if not done:
                done.append(work())
        return done[0]

    @contextmanager
    def together(self) -> Iterator[None]:
        failed = None
        try:
            yield
        except GPTError as error:
            failed = error
        codes = self.gather(None if failed is None else failed.exit_code)
        if failed is not None and not any(codes[: self.rank]):
            self.reported = failed
            raise failed
        if any(codes):
            raise PeerError(next(filter(None, codes)))

    def all_reduce_sum(self, value: int) -> int:
        return self._reduce(value, dist.ReduceOp.SUM)

    def all_reduce_max(self, value: int) -> int:
        return self._reduce(value, dist.ReduceOp.MAX)

    def all_reduce_mean(self, tensor: Tensor) -> Tensor:
        total = tensor.clone()
        dist.all_reduce(total)
        return total / self.size

    def gather(self, value: T) -> list[T]:
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def _reduce(self, value: int, operation: dist.ReduceOp.RedOpType) -> int:
        total = torch.tensor(value, dtype=torch.int64)
        dist.all_reduce(total, operation)
        return int(total)


@contextmanager
def connected(launch: Launch) -> Iterator[ProcessGroup]:
    group = ProcessGroup(launch)
    with report_once(group):
        yield group
    gc.collect()  # gloo's threads end with the last reference to the group, or abort a process that exits before them
    dist.destroy_process_group()


@contextmanager
def report_once(group: ProcessGroup) -> Iterator[None]:
    """Let one process report an error of this context, also that another process has ended: PeerError in the others."""
    try:
        yield
    except GPTError as error:
        if error is group.reported or (group.is_main and not isinstance(error, PeerError)):
            raise
        raise PeerError(error.exit_code) from None
    except RuntimeError as error:
        # gloo raises plain RuntimeErrors
        if not isinstance(error, dist.DistError) and "gloo" not in str(error) and "Connection" not in str(error):
            raise
        if group.is_main:
            raise ProcessLostError(
                "another process of this training has ended; continue from the last checkpoint with --resume auto"
            ) from None
        raise PeerError(ProcessLostError.exit_code) from None
