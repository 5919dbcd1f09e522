"""Each change of docs/changing.md, made in a plain checkout, leaves the package's tests green."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from native_support import needs_compiler

from changing_page import CALLBACK, DIFFS, PLUGIN
from checkouts import copy_tracked
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
    "schedule": ("tests/training/test_step.py",),
    "loss term": ("tests/training/test_objective.py",),
    "metric": ("tests/training/test_trainer.py", "tests/training/test_monitor.py"),
}
"""The tests of the room that a change is made in."""
FINGERPRINTED = ("activation", "norm", "position encoding", "sampling filter")
"""The changes of files that the kernels stand for, after which the fingerprint is recorded anew."""
PROGRAMS = {"callback": CALLBACK, "plugin": PLUGIN}
"""The changes that are files beside the package."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the tracked files of this checkout, and a text to train on."""
    copy_tracked(tmp_path)
    (tmp_path / "my.txt").write_text(CORPUS * 100, encoding="utf-8")
    return tmp_path


def run_in(checkout: Path, *words: str) -> str:
    """Run Python in a checkout, whose package is imported there, and return what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *words]
    done = subprocess.run(
        command,
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_tests(checkout: Path, *files: str, marks: str) -> None:
    """Run the tests of some files of a checkout that have, or have not, some marks."""
    options = ["-p", "no:cacheprovider", "--hypothesis-profile", "quick", "-m", marks]
    run_in(checkout, "-m", "pytest", *options, *files)


def make_change(checkout: Path, change: str) -> None:
    """Apply a diff of the page, and then do what the page says."""
    diff = DIFFS[change]
    subprocess.run(["git", "apply"], cwd=checkout, input=diff, text=True, check=True)
    if change == "sampling filter":  # `make schema`
        schema = run_in(checkout, "scripts/train.py", "--print-schema")
        (checkout / "configs" / "schema.json").write_text(schema, encoding="utf-8")


def test_page_has_ten_changes() -> None:
    assert DIFFS.keys() == TESTS.keys()
    assert len(DIFFS) + len(PROGRAMS) == 10


@pytest.mark.parametrize("change", TESTS)
def test_tests_stay_green_after_a_change(change: str, checkout: Path) -> None:
    make_change(checkout, change)
    run_tests(checkout, *ALWAYS, *TESTS[change], marks=QUICK)


@needs_compiler
@pytest.mark.compiler
def test_fingerprint_records_the_code_that_the_kernels_replace(checkout: Path) -> None:
    for change in FINGERPRINTED:
        make_change(checkout, change)
    run_in(checkout, "-m", "gpt.native.trial")
    run_tests(checkout, "tests/native/test_fingerprint.py", marks="not slow")


@pytest.mark.parametrize("change", PROGRAMS)
def test_program_of_the_page_runs_beside_the_package(change: str, checkout: Path) -> None:
    (checkout / "my_parts.py").write_text(PROGRAMS[change], encoding="utf-8")
    if change == "callback":
        run_in(checkout, "my_parts.py")
    else:
        choices = ["--config", "quickstart", "--plugin", "my_parts.py", "model.mlp=mish"]
        few_steps = ["run.name=mish", "train.max_steps=2", "train.eval_interval=2"]
        run_in(checkout, "scripts/train.py", *choices, *few_steps)
    run_tests(checkout, "tests/test_package.py", marks=QUICK)
