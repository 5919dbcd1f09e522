import os
import sys
from pathlib import Path

import pytest

from benchmarks.processes import ROOT, environment, failure, read_process, script_command, time_process
from gpt.errors import GPTError


def test_cold_caches_are_folders_of_their_own() -> None:
    found = environment(Path("/fresh"), threads=3, base={"XDG_CACHE_HOME": "/warm", "HOME": "/home"})
    assert found == {
        "HOME": "/home",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "3",
        "TORCHINDUCTOR_CACHE_DIR": "/fresh/inductor",
        "TRITON_CACHE_DIR": "/fresh/triton",
        "XDG_CACHE_HOME": "/fresh/cache",
    }


def test_the_package_is_found_before_what_pythonpath_names() -> None:
    assert environment(base={"PYTHONPATH": "/other"}) == {"PYTHONPATH": f"{ROOT}{os.pathsep}/other"}


def test_a_script_is_started_by_this_python() -> None:
    assert script_command("train") == [sys.executable, str(ROOT / "scripts" / "train.py")]
    assert script_command("nothing")[:2] == [sys.executable, "-c"]


def test_a_process_is_timed_from_outside(tmp_path: Path) -> None:
    write = "import os, pathlib; pathlib.Path('made').write_text(os.environ['XDG_CACHE_HOME'])"
    assert time_process([sys.executable, "-c", write], tmp_path / "caches", tmp_path) > 0
    assert (tmp_path / "made").read_text() == str(tmp_path / "caches" / "cache")


def test_a_failure_is_one_line_with_the_last_words(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; print('a'); sys.exit('error: no room')"]
    with pytest.raises(GPTError, match=r"ended with 1: no room$"):
        time_process(command, tmp_path)
    with pytest.raises(GPTError, match=r"no room$"):
        read_process(command)
    assert failure(["python", "x.py"], 9, "\n") == "x.py ... ended with 9: it said nothing"
