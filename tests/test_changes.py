"""Each change of docs/changing.md, made in a plain checkout, leaves the package's own tests green."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from native_support import needs_compiler

from changing_page import CALLBACK, DIFFS, PLUGIN, ROOT
from tiny import CORPUS

pytestmark = pytest.mark.slow
ALWAYS = ("tests/test_package.py", "tests/test_configs.py")
"""Tests that look at the whole package: its rooms, the schema and the recipes."""
QUICK = "not slow and not browser and not compiler"
"""The tests that `make test` runs, as far as the extra `test` has what they need."""
TESTS = {
    "activation": ("tests/model/test_layers.py",),
    "norm": ("tests/model/test_layers.py",),
    "position encoding": ("tests/model/test_gpt.py",),
    "sampling filter": ("tests/generation/test_sampling.py", "tests/config/test_loading.py"),
    "optimizer": ("tests/training/test_optimizers.py",),
    "schedule": ("tests/training/test_trainer.py",),
    "loss term": ("tests/training/test_objective.py",),
    "metric": ("tests/training/test_trainer.py", "tests/training/test_monitor.py"),
}
"""The tests of the room that a change is made in."""
FINGERPRINTED = ("activation", "norm", "position encoding", "sampling filter")
"""The changes of files that the kernels stand for, after which the fingerprint is recorded anew."""
PROGRAMS = {"callback": CALLBACK, "plugin": PLUGIN}
"""The changes that are files beside the package."""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tracked files of this checkout, and a text to train on."""
    folder = tmp_path_factory.mktemp("checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True)
    for name in listed.stdout.decode().split("\0"):
        source = ROOT / name
        if name and source.is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    (folder / "my.txt").write_text(CORPUS * 100, encoding="utf-8")
    return folder


def run_in(checkout: Path, *words: str) -> None:
    """Run Python in a checkout, whose package is imported there; show what it printed if it fails."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def run_tests(checkout: Path, *files: str, marks: str) -> None:
    """Run the tests of some files of a checkout that have, or have not, some marks."""
    options = ["-p", "no:cacheprovider", "--hypothesis-profile", "quick", "-m", marks]
    run_in(checkout, "-m", "pytest", *options, *files)


def apply_diff(checkout: Path, diff: str, *options: str) -> None:
    """Apply a diff as a reader would who copies it from the page; `--reverse` takes it back."""
    command = ["git", "apply", *options]
    subprocess.run(command, cwd=checkout, input=diff, text=True, check=True)


def test_page_has_ten_changes() -> None:
    assert DIFFS.keys() == TESTS.keys()
    assert len(DIFFS) + len(PROGRAMS) == 10


@pytest.mark.parametrize("change", TESTS)
def test_tests_stay_green_after_a_change(change: str, checkout: Path) -> None:
    apply_diff(checkout, DIFFS[change])
    try:
        run_tests(checkout, *ALWAYS, *TESTS[change], marks=QUICK)
    finally:
        apply_diff(checkout, DIFFS[change], "--reverse")


@needs_compiler
@pytest.mark.compiler
def test_recorded_changes_are_the_code_that_the_kernels_stand_for(checkout: Path) -> None:
    fingerprint = checkout / "gpt" / "native" / "fingerprint.json"
    recorded_before = fingerprint.read_bytes()
    diff = "".join(DIFFS[change] for change in FINGERPRINTED)
    apply_diff(checkout, diff)
    try:
        run_in(checkout, "-m", "gpt.native.trial")
        run_tests(checkout, "tests/native/test_fingerprint.py", marks="not slow")
    finally:
        apply_diff(checkout, diff, "--reverse")
        fingerprint.write_bytes(recorded_before)


@pytest.mark.parametrize("change", PROGRAMS)
def test_program_of_the_page_runs_beside_the_package(change: str, checkout: Path) -> None:
    program = checkout / "my_parts.py"
    program.write_text(PROGRAMS[change], encoding="utf-8")
    try:
        if change == "callback":
            run_in(checkout, "my_parts.py")
        else:
            words = ["--config", "quickstart", "--plugin", "my_parts.py", "run.name=mish"]
            small = ["model.mlp=mish", "train.max_steps=2", "train.eval_interval=2"]
            run_in(checkout, "scripts/train.py", *words, *small)
        run_tests(checkout, "tests/test_package.py", marks=QUICK)
    finally:
        program.unlink()
