import pytest

from gpt.accounting.clusters import CLUSTERS, Cluster, StepTime, hiding_batch, step_time
from gpt.accounting.flops import forward_flops
from gpt.accounting.parallel import Method, parallel_step
from gpt.accounting.roofline import Machine
from tiny import tiny_config

CLUSTER = Cluster(Machine(bandwidth=1e6, matmul_rate=2e9), memory=1e9, per_node=4, link=100.0, network=30.0, source="")
"""With links so slow that nothing hides."""


def bound(method: Method, devices: int, optimizer: str = "adamw", cluster: Cluster = CLUSTER) -> StepTime:
    return step_time(tiny_config(), optimizer, method, devices, 3, 16, cluster.reaching(0.5, 0.5))


def test_a_ring_within_a_node_is_as_fast_as_its_links_and_across_nodes_as_the_slower_of_link_and_network() -> None:
    assert [CLUSTER.bandwidth(devices) for devices in (2, 4, 8, 64)] == [100, 100, 30, 30]
    assert CLUSTERS["dgx-h100"].bandwidth(8) == 450e9
    assert CLUSTERS["dgx-h100"].bandwidth(64) == 400e9


def test_one_device_computes_and_waits_for_nothing() -> None:
    time, step = bound("ddp", 1), parallel_step(tiny_config(), "adamw", "ddp", 1)
    forward = forward_flops(tiny_config(), 3, 16) / 1e9
    assert (time.forward, time.backward) == (forward, 2 * forward)
    assert time.update == (2 * step.weights + 2 * step.optimizer + step.gradients) / 1e6
    assert (time.sending, time.exposed) == (0, 0)
    assert time.seconds == time.computing


def test_ddp_hides_its_gradients_behind_the_backward_pass_only() -> None:
    time, step = bound("ddp", 8), parallel_step(tiny_config(), "adamw", "ddp", 8)
    assert time.sending_backward == step.traffic[0].sent(8) / 15
    assert time.sending_forward == 0
    assert time.exposed == pytest.approx(time.sending - time.backward)
    fast = Cluster(CLUSTER.device, 1e9, 4, link=1e12, network=1e12, source="")
    assert bound("ddp", 8, cluster=fast).exposed == bound("ddp", 8, cluster=fast).sending_update


def test_fsdp_sends_weights_in_both_passes_and_muon_more_after_them() -> None:
    time, step = bound("fsdp", 4), parallel_step(tiny_config(), "adamw", "fsdp", 4)
    forward, backward, gradients, *rest = (part.sent(4) / 50 for part in step.traffic)
    assert (time.sending_forward, time.sending_backward) == (forward, backward + gradients)
    assert time.sending_update == pytest.approx(sum(rest))
    assert time.exposed == pytest.approx(time.sending - time.forward - time.backward)
    assert bound("fsdp", 4, "muon").sending_update > time.sending_update
    assert time.update == pytest.approx(bound("ddp", 4).update / 4, rel=0.02)


def test_the_batch_that_hides_what_is_sent_is_the_smallest_one() -> None:
    def waits(batch: int) -> bool:
        time = step_time(tiny_config(), "adamw", "ddp", 8, batch, 16, cluster)
        return time.exposed >= 0.05 * time.seconds

    cluster = Cluster(CLUSTER.device, 1e9, 4, link=1e7, network=3e6, source="").reaching(0.5, 0.5)
    least = hiding_batch(tiny_config(), "adamw", "ddp", 8, 16, cluster)
    assert least is not None
    assert least > 1
    assert waits(least - 1)
    assert not waits(least)
    assert hiding_batch(tiny_config(), "muon", "fsdp", 8, 16, CLUSTER.reaching(0.5, 0.5)) is None
