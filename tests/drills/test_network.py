from pathlib import Path

from drills.network import run


def test_failing_servers_leave_nothing_and_offline_opens_no_socket(tmp_path: Path) -> None:
    assert run(tmp_path, False).failures == []
