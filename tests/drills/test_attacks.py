"""The server under attack: afterwards it answers, nothing is in use, and its memory is what it was."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from drills.attacks import ATTACKS, read_slowly
from server_process import ServerProcess, serve_process

MEMORY = 64 << 20
"""Bytes that an attack may leave behind: what the allocator keeps differs from run to run."""


@pytest.fixture(scope="module")
def server(trained: Path) -> Iterator[ServerProcess]:
    """A server whose memory has grown to what any load needs."""
    with serve_process(trained) as served:
        read_slowly(served, 6)
        served.seconds_to_rest()
        yield served


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_an_attack_passes_and_leaves_nothing_behind(
    server: ServerProcess, attack: Callable[[ServerProcess, int], None]
) -> None:
    before = server.memory()
    attack(server, ATTACKS[attack][0])
    server.seconds_to_answer()
    server.seconds_to_rest()
    assert server.memory() - before < MEMORY
