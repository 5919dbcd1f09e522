"""Clients in processes of their own."""

from pathlib import Path

from drills.many_clients import ask_all, find_wrong, make_requests
from gpt.cli import train
from server_process import serve_process


def test_streams_of_many_processes_are_what_each_would_be_alone(workplace: Path) -> None:
    assert train.main(["--config", "tiny.yaml", "model.n_embd=64"]) == 0  # heads that the native backend takes
    requests = make_requests(96, "tiny")
    with serve_process(workplace) as server:
        answers = ask_all(server, requests, processes=3, threads=8)
        server.seconds_to_rest()
    assert list(find_wrong(workplace / "runs" / "tiny", requests, answers)) == []
