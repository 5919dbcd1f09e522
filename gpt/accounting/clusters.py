"""The time of a training step on many devices, bounded by arithmetic, memory and links, on paper."""

from bisect import bisect_left
from dataclasses import dataclass, replace

from gpt.accounting.flops import backward_flops, forward_flops
from gpt.accounting.parallel import Method, ParallelStep, parallel_step
from gpt.accounting.roofline import Machine
from gpt.config import ModelConfig

GIGABIT = 1e9 / 8


@dataclass(frozen=True)
class Cluster:
    """Nodes of equal devices."""

    device: Machine
    memory: float  # bytes of a device
    per_node: int  # devices in a node
    link: float  # bytes/s that a device sends to others in its node, while it receives as many
    network: float  # bytes/s that a node sends to others, while it receives as many
    source: str  # where the numbers come from

    def bandwidth(self, devices: int) -> float:
        """Return the bytes/s at which every device of a ring sends.

        A ring enters and leaves every node once, however many rings share its network, so that the slower of link
        and network limits it.
        """
        return self.link if devices <= self.per_node else min(self.link, self.network)

    def reaching(self, utilization: float, link_utilization: float) -> "Cluster":
        """Return the cluster whose matmuls and links have these shares of the rates of this one."""
        device = replace(self.device, matmul_rate=utilization * self.device.matmul_rate)
        return replace(self, device=device, link=link_utilization * self.link, network=link_utilization * self.network)


CLUSTERS: dict[str, Cluster] = {
    "dgx-h100": Cluster(
        Machine(bandwidth=3.35e12, matmul_rate=989e12),
        memory=80e9,
        per_node=8,
        link=450e9,
        network=8 * 400 * GIGABIT,
        source="NVIDIA H100 SXM and DGX H100 datasheets: 989 TFLOP/s dense bfloat16, 80 GB, 3.35 TB/s, NVLink 900 GB/s "
        "in both directions together; 8 x 400 Gb/s ConnectX-7 a node",
    ),
    "dgx-a100": Cluster(
        Machine(bandwidth=1.555e12, matmul_rate=312e12),
        memory=40e9,
        per_node=8,
        link=300e9,
        network=8 * 200 * GIGABIT,
        source="NVIDIA A100 and DGX A100 datasheets: 312 TFLOP/s dense bfloat16, 40 GB, 1,555 GB/s, NVLink 600 GB/s in "
        "both directions together; 8 x 200 Gb/s ConnectX-6 a node",
    ),
    "rtx-4090-25gbe": Cluster(
        Machine(bandwidth=1.008e12, matmul_rate=165.2e12),
        memory=24e9,
        per_node=8,
        link=32e9,
        network=25 * GIGABIT,
        source="NVIDIA Ada GPU architecture whitepaper: 165.2 TFLOP/s dense bfloat16 added up in float32, 24 GB, "
        "1,008 GB/s; PCI Express 4.0 x16, 32 GB/s; 25 Gb/s Ethernet a node, assumed",
    ),
}
"""Clusters by name; peak rates of their makers, which no program reaches."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of one training step, if every part runs at its rate."""

    step: ParallelStep
    forward: float  # of the forward pass
    backward: float  # of the backward pass
    update: float  # of reading and writing weights, gradients and optimizer state
    sending_forward: float  # of what is sent during the forward pass
    sending_backward: float  # of what is sent during the backward pass
    sending_update: float  # of what is sent after it

    @property
    def sending(self) -> float:
        return self.sending_forward + self.sending_backward + self.sending_update

    @property
    def computing(self) -> float:
        """Return the seconds of a process that waits for nothing."""
        return self.forward + self.backward + self.update

    @property
    def exposed(self) -> float:
        """Return the seconds in which a process waits, since it computes less long than it sends."""
        waits = self.sending_forward - self.forward, self.sending_backward - self.backward, self.sending_update
        return sum(max(0.0, wait) for wait in waits)

    @property
    def seconds(self) -> float:
        return self.computing + self.exposed


def step_time(
    config: ModelConfig,
    optimizer: str,
    method: Method,
    devices: int,
    batch: int,
    length: int,
    cluster: Cluster,
) -> StepTime:
    """Bound the time of a step of one micro-batch, (batch, length) tokens on each device.

    Sending overlaps with the pass it belongs to. Latencies and Muon's own matmuls are neglected.
    """
    step = parallel_step(config, optimizer, method, devices)
    rate, bandwidth = cluster.device.matmul_rate, cluster.bandwidth(devices)
    sending = {"forward": 0.0, "backward": 0.0, "update": 0.0}
    for collective in step.traffic:
        sending[collective.phase] += collective.sent(devices) / bandwidth
    return StepTime(
        step,
        forward_flops(config, batch, length) / rate,
        backward_flops(config, batch, length) / rate,
        (2 * (step.weights + step.optimizer) + step.gradients) / cluster.device.bandwidth,
        *sending.values(),
    )


def hiding_batch(
    config: ModelConfig,
    optimizer: str,
    method: Method,
    devices: int,
    length: int,
    cluster: Cluster,
    share: float = 0.05,
) -> int | None:
    """Find the fewest sequences of each device with which it waits for less than `share` of a step.

    None: not even with a million, as where an update waits.
    """
    batches = range(1, 1_000_000)

    def is_hidden(batch: int) -> bool:
        time = step_time(config, optimizer, method, devices, batch, length, cluster)
        return time.exposed < share * time.seconds

    found = bisect_left(batches, True, key=is_hidden)
    return None if found == len(batches) else batches[found]
