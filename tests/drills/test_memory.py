from pathlib import Path

from drills.memory import run


def test_reading_all_over_a_large_file_keeps_the_memory_constant(tmp_path: Path) -> None:
    assert run(tmp_path, False).failures == []
