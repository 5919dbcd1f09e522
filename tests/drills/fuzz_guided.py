"""Fuzzing that is guided by coverage: libFuzzer makes the choices of tests by hypothesis, and keeps what is new.

`python -m drills.fuzz_guided NAME EXECUTIONS FOLDER` runs one in a process of its own: its imports have to be
instrumented, and libFuzzer ends the process on a failure.
"""

import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from drills.frame import Tally
from patience import PATIENCE

TESTS = {
    "configurations": "config.test_loading:test_no_text_and_no_override_end_in_anything_else",
    "values": "config.test_loading:test_no_value_of_any_key_ends_in_anything_but_a_configuration_or_a_config_error",
    "characters": "data.test_tokenizers:test_what_the_stream_gives_of_any_bytes_is_what_decode_gives",
    "stop strings": "generation.test_text:"
    "test_what_is_shown_is_the_text_up_to_the_earliest_stop_as_early_as_that_is_certain",
}
SECONDS = 10
"""After which one input is a hang."""


def guide(folder: Path, tally: Tally, executions: int) -> None:
    """Run each test a fixed number of times, or count those that are not possible without the extra `fuzz`."""
    for name in TESTS:
        if find_spec("atheris") is None:
            tally.count("kinds of them not possible here")
            continue
        command = [sys.executable, "-m", "drills.fuzz_guided", name, str(executions), str(folder)]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            tally.count("hangs")
            tally.check(False, f"{name}, guided by coverage: not done after {PATIENCE:g} s")
            continue
        tally.count("guided by coverage", executions)
        if ended.returncode:
            tally.count("hangs" if "timeout after" in ended.stderr else "tracebacks")
            tally.check(False, f"{name}, guided by coverage: {(ended.stdout + ended.stderr)[-2500:]}")


def main(name: str, executions: int, folder: Path) -> None:
    """Run a test; the process ends with another exit code than 0 if it fails."""
    import atheris

    module, _, test = TESTS[name].partition(":")
    with atheris.instrument_imports(include=["yaml", "gpt.config", "gpt.data", "gpt.generation.text"]):
        run_one = getattr(import_module(module), test).hypothesis.fuzz_one_input
    limits = (f"-timeout={SECONDS}", "-rss_limit_mb=4096", "-seed=1", f"-artifact_prefix={folder}/", "-verbosity=0")
    atheris.Setup([sys.argv[0], f"-atheris_runs={executions}", *limits], run_one)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
