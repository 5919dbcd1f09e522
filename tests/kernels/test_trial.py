"""Libraries that crash, hang or compute something else: no run ends by them, and one line says what is used instead."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from native_support import needs_compiler

from gpt.kernels import build, verdicts
from gpt.kernels.build import SOURCES, CachedLibrary, find_library, open_library
from gpt.kernels.compiler import find_compiler
from gpt.kernels.training.bindings import Kernels, load_kernels
from gpt.kernels.verdicts import Verdict
from gpt.system.environment import read_settings
from gpt.system.errors import DeviceError
from gpt.system.processor import GENERIC, supported_processors
from tiny import CORPUS

pytestmark = [
    needs_compiler,
    pytest.mark.skipif(sys.platform != "linux", reason="signals are those of Linux"),
    pytest.mark.skipif(supported_processors()[0] is GENERIC, reason="there is no class below"),
]
FAULTY = """
#include <cstdlib>
#include <csignal>
#include <unistd.h>
#define gpt_activation_forward whole
#include "training/training.cpp"
#undef gpt_activation_forward

static bool is(const char* fault) { return getenv("GPT_FAULT") && !strcmp(getenv("GPT_FAULT"), fault); }
__attribute__((constructor)) static void load() { if (is("load")) raise(SIGSEGV); }
GPT_API int gpt_activation_forward(const ActivationArguments* a) {
    while (is("spin")) {}
    while (is("sleep")) sleep(1);
    if (is("third")) __builtin_trap();
    static int calls = 0;
    if (is("middle") && ++calls > 25) raise(SIGSEGV);
    if (is("killed")) raise(SIGKILL);
    const int result = whole(a);
    if (is("number")) a->y[7] = 1;
    return result;
}
"""
"""The training kernels, with a fault that the environment chooses."""
RECIPE = """
run: {name: tiny, device: cpu, dtype: float32, compile: false, threads: 1}
data: {source: file, path: corpus.txt}
model: {n_layer: 1, n_head: 1, n_embd: 32, block_size: 29}
optim: {warmup_steps: 2}
train: {batch_size: 4, max_steps: 30, eval_interval: 10, log_interval: 1, sample_tokens: 10}
"""


@pytest.fixture(scope="session")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of compiled kernels: those of the best float32 class are faulty, those of the next whole."""
    folder, settings = tmp_path_factory.mktemp("faulty"), read_settings()
    place = folder / "gpt/kernels"
    for processor in candidates()[:2]:
        whole = find_library("training/training.cpp", processor, settings.cache_dir)
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(whole, place)
    best = find_library("training/training.cpp", candidates()[0], settings.cache_dir)
    compiler = find_compiler()
    assert compiler is not None
    (folder / "faulty.cpp").write_text(FAULTY, encoding="utf-8")
    command = [*compiler.arguments([*candidates()[0].compiler_flags, "-O1", "-I", str(SOURCES)])]
    subprocess.run([*command, str(folder / "faulty.cpp"), "-o", str(folder / "built")], check=True)
    (place / best.name).unlink()
    CachedLibrary(place, best.stem.rpartition("-")[0]).store(folder / "built")
    return folder


def candidates() -> list[Any]:
    return [processor for processor in supported_processors() if processor.matmul_dtype == torch.float32]


@pytest.fixture
def cache(faulty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the faulty cache, which no process has tried."""
    shutil.copytree(faulty / "gpt", tmp_path / "cache/gpt")
    monkeypatch.setattr(build, "_LOADED", {})
    return tmp_path / "cache/gpt"


def loaded(cache: Path) -> tuple[Kernels, list[str]]:
    lines: list[str] = []
    return load_kernels(torch.float32, replace(read_settings(), cache_dir=cache), lines.append), lines


def records(cache: Path) -> list[str]:
    return sorted(path.read_text(encoding="utf-8") for path in (cache / "kernels").glob("*.trial"))


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("load", "a trial of them ended with SIGSEGV"),
        ("third", "a trial of them ended with SIGILL"),
        ("number", "in a trial of them the logits of model 0 differed by "),
    ],
)
def test_faulty_library_gives_way_to_the_next_class(
    fault: str, said: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPT_FAULT", fault)
    best, following, *_ = candidates()
    for _ in range(2):
        kernels, (line,) = loaded(cache)
        assert kernels.processor is following
        assert line.startswith(f"the {best.name} kernels are not used here: {said}")
        assert line.endswith(f"; using {following.name}")
        assert [bool(text) for text in records(cache)] == [False, True]
        build._LOADED.clear()
        monkeypatch.setattr(Verdict, "_try", lambda self: pytest.fail("tried again"))


def test_whole_library_is_tried_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert loaded(cache)[0].processor is candidates()[0]
    assert records(cache) == [""]
    build._LOADED.clear()
    monkeypatch.setattr(Verdict, "_try", lambda self: pytest.fail("tried again"))
    assert loaded(cache)[1] == []


def test_last_class_gives_way_to_pytorch(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpt.kernels.training.bindings.supported_processors", lambda _: candidates()[:1])
    monkeypatch.setenv("GPT_FAULT", "load")
    with pytest.raises(DeviceError, match=r"^the .* kernels are not used here: a trial of them ended with SIGSEGV$"):
        loaded(cache)


def test_spinning_threads_are_a_verdict_and_waiting_ones_are_not(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    run = subprocess.run

    def impatient(command: list[str], **options: Any) -> Any:
        limit = (20, resource.RLIM_INFINITY)
        limited = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_CPU, limit)} if "-m" in command else {}
        return run(command, **limited, **options)  # type: ignore[call-overload]

    monkeypatch.setenv("GPT_FAULT", "spin")
    monkeypatch.setattr(verdicts.subprocess, "run", impatient)
    assert "a trial of them ended with SIGXCPU" in loaded(cache)[1][0]
    assert [bool(text) for text in records(cache)] == [False, True]
    next(path for path in (cache / "kernels").glob("*.trial") if path.read_text()).unlink()
    build._LOADED.clear()
    monkeypatch.setenv("GPT_FAULT", "sleep")
    monkeypatch.setattr(verdicts, "SECONDS", 4)
    assert "a trial of them did not end within 4 s" in loaded(cache)[1][0]
    assert records(cache) == [""]


def test_killed_trial_is_no_verdict(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPT_FAULT", "killed")
    assert "a trial of them ended with SIGKILL" in loaded(cache)[1][0]
    assert records(cache) == [""]


def test_verdict_is_for_one_library_processor_and_kernel_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def path(library: str) -> Path:
        verdicts._machine.cache_clear()
        return Verdict(Path(library), "training/training.cpp", "AVX2", tmp_path).path

    found = [path("a-1.so"), path("a-2.so")]
    monkeypatch.setattr(verdicts.platform, "release", lambda: "7.0")
    assert len({*found, path("a-1.so")}) == 3
    verdicts._machine.cache_clear()


def train(folder: Path, cache: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "tiny.yaml").write_text(RECIPE, encoding="utf-8")
    (folder / "corpus.txt").write_text(CORPUS * 30, encoding="utf-8")
    command = [sys.executable, "-m", "gpt", "train", "--config", "tiny.yaml", *words]
    variables = {**os.environ, "XDG_CACHE_HOME": str(cache.parent), **environment}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)


def losses(folder: Path) -> list[float]:
    rows = map(json.loads, (folder / "runs/tiny/metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [row["train/loss"] for row in rows if "train/loss" in row]


def test_crash_in_mid_training_is_not_tried_again(cache: Path, tmp_path: Path) -> None:
    best, following, *_ = candidates()
    once = "train.eval_interval=30"  # so that nothing is saved before the crash
    died = train(tmp_path, cache, once, GPT_FAULT="middle")
    assert died.returncode == -signal.SIGSEGV
    (tmp_path / "expected").mkdir()
    train(tmp_path / "expected", cache, once, GPT_PROCESSOR=following.name)
    again = train(tmp_path, cache, once, "--resume", "auto", GPT_FAULT="middle")
    assert again.returncode == 0, again.stderr
    line = f"the {best.name} kernels are not used here: a process ended in them with a segmentation fault ("
    assert again.stderr.count(line) == 1
    assert f"remove it to try them again); using {following.name}" in again.stderr
    assert losses(tmp_path) == losses(tmp_path / "expected")
    version = subprocess.run(
        [sys.executable, "-m", "gpt", "--version"],
        env={**os.environ, "XDG_CACHE_HOME": str(cache.parent), "GPT_PROCESSOR": best.name},
        capture_output=True,
        text=True,
        check=True,
    )
    assert line in version.stdout


def test_library_of_no_machine_code_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.so").write_bytes(b"no library")
    with pytest.raises(DeviceError, match=r"x\.so cannot be loaded: [^\n]*$"):
        open_library(tmp_path / "x.so")
