"""Clients in processes of their own."""

from pathlib import Path

from drills.streams import run


def test_streams_of_many_processes_are_what_each_would_be_alone(tmp_path: Path) -> None:
    assert run(tmp_path, False).failures == []
