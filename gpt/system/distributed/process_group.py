"""Processes that torchrun started, connected by torch.distributed."""

import gc
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

# Imported before there is a group: if DDP imports it later, default arguments in it refer to the
# group and keep it alive.
import torch.distributed.nn
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from gpt.system.distributed import World
from gpt.system.environment import Launch
from gpt.system.errors import ConfigError, GPTError, PeerError, ProcessLostError, first_line
from gpt.system.signals import WATCHED, handling

T = TypeVar("T")

TIMEOUT = timedelta(hours=1)
"""How long a process waits for the others; rank 0 may download and encode a corpus meanwhile."""


class ProcessGroup(World):
    """Several processes, connected by gloo, and for tensors on CUDA devices by NCCL."""

    def __init__(self, launch: Launch) -> None:
        super().__init__(launch)
        self.reported: GPTError | None = None
        has_nccl = torch.cuda.is_available() and dist.is_nccl_available()
        backend = "cpu:gloo,cuda:nccl" if has_nccl else "gloo"
        try:
            # Waiting for the others blocks in C++, where Python's handlers do not run; by the
            # system's own handlers a signal ends the process at once.
            with handling(WATCHED, signal.SIG_DFL):
                store, rank, size = next(rendezvous("env://", timeout=TIMEOUT))
                # After a restart on one machine, the store still has the addresses of the processes
                # before it: each start uses names of its own.
                if launch.size == launch.local_size:
                    store = dist.PrefixStore(f"restart-{launch.restarts}", store)  # type: ignore[attr-defined]
                dist.init_process_group(
                    backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT
                )
        except (RuntimeError, ValueError) as error:
            if launch.local_rank > 0:
                raise PeerError(ConfigError.exit_code) from None
            raise ConfigError(
                f"cannot join the others at {launch.address}: {first_line(error)}"
            ) from error

    def rank_zero(self, work: Callable[[], T]) -> T:
        stopped: GPTError | SystemExit | None = None
        # The result of the work, and the exit code of its error, None without an error.
        answer: list[Any] = [None, None]
        if self.is_main:
            try:
                answer = [work(), None]
            except (GPTError, SystemExit) as error:
                stopped = error
                code = error.exit_code if isinstance(error, GPTError) else error.code
                answer = [None, code or 0]  # a `SystemExit` without a code exits with 0
        # All processes wait here: rank 0 sends its answer, and the others receive it.
        dist.broadcast_object_list(answer, src=0, device=torch.device("cpu"))
        result, code = answer
        if stopped is not None:
            raise stopped
        if code is not None:
            raise PeerError(code)
        return result

    def rank_zero_first(self, work: Callable[[], T]) -> T:
        results: list[T] = []
        # Only rank 0 appends here; its result is not sent, since each process makes its own.
        self.rank_zero(lambda: results.append(work()))
        with self.together():
            if not self.is_main:
                results.append(work())
        return results[0]

    @contextmanager
    def together(self) -> Iterator[None]:
        failed = None
        try:
            yield
        except GPTError as error:
            failed = error
        codes = self.gather(None if failed is None else failed.exit_code)
        failed_below = any(codes[: self.rank])
        if failed is not None and not failed_below:
            # This process has the lowest rank of those that failed, and reports for all.
            self.reported = failed
            raise failed
        failures = [code for code in codes if code]
        if failures:
            raise PeerError(failures[0])

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
    """Join the other processes of a launch for this context."""
    group = ProcessGroup(launch)
    with report_once(group):
        yield group
    # Gloo's threads end with the last reference to the group; a process that exits before they have
    # ended is aborted. Reference cycles are collected first for that reason.
    gc.collect()
    dist.destroy_process_group()


@contextmanager
def report_once(group: ProcessGroup) -> Iterator[None]:
    """Let one process raise an error of this context, and the others a PeerError.

    The loss of another process is such an error too: rank 0 reports it.
    """
    try:
        yield
    except GPTError as error:
        is_of_main = group.is_main and not isinstance(error, PeerError)
        if error is group.reported or is_of_main:
            raise
        raise PeerError(error.exit_code) from None
    except RuntimeError as error:
        # Gloo raises plain RuntimeErrors, which only their messages tell from others.
        is_of_gloo = "gloo" in str(error) or "Connection" in str(error)
        if not isinstance(error, dist.DistError) and not is_of_gloo:
            raise
        if group.is_main:
            raise ProcessLostError(
                "another process of this training has ended; "
                "continue from the last checkpoint with --resume auto"
            ) from None
        raise PeerError(ProcessLostError.exit_code) from None
