"""Libraries that crash, hang or compute something else: no run ends by them, and one line says what
is used instead.
"""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from native_support import needs_compiler

from gpt.native import build, verdicts
from gpt.native.__main__ import main as set_up
from gpt.native.build import SOURCES, CachedLibrary, find_compilers, find_library
from gpt.native.training.bindings import SOURCE, Kernels, load_kernels
from gpt.native.training.native_update import Updated, update_natively
from gpt.native.trial import training_difference
from gpt.native.verdicts import Trial, TrialProcess, read_result
from gpt.system.environment import read_settings
from gpt.system.errors import DeviceError
from gpt.system.processor import GENERIC, Processor, supported_processors
from tiny import CORPUS, TINY

pytestmark = [
    needs_compiler,
    pytest.mark.skipif(sys.platform != "linux", reason="signals are those of Linux"),
    pytest.mark.skipif(supported_processors()[0] is GENERIC, reason="there is no class below"),
]
FAULTY = """
#include <cstdlib>
#include <csignal>
#include <unistd.h>
#define gpt_gradients whole_gradients
#include "training/training.cpp"
#undef gpt_gradients

static bool is(const char* fault) {
    const char* planted = getenv("GPT_FAULT");
    return planted && !strcmp(planted, fault);
}
__attribute__((constructor)) static void load() { if (is("load")) raise(SIGSEGV); }
GPT_API void gpt_gradients(const TrainedModel* model, const MicroBatch* batch, int threads,
                           void* memory, LossSums* losses) {
    while (is("spin")) {}
    while (is("sleep")) sleep(1);
    if (is("third")) __builtin_trap();
    static int calls = 0;
    if (is("middle") && ++calls > 25) raise(SIGSEGV);
    if (is("killed")) raise(SIGKILL);
    whole_gradients(model, batch, threads, memory, losses);
    if (is("number") && batch->logits) batch->logits[7] = 1;
}
"""
"""The training kernels, with a fault that the environment chooses."""
RECIPE = (
    *(
        "--config",
        "tiny.yaml",
        "run.threads=1",
        "model.n_head=1",
        "model.n_embd=32",
        "model.block_size=29",
    ),
    # nothing is saved before a crash
    *(
        "train.max_steps=30",
        "train.eval_interval=30",
        "train.sample_tokens=0",
    ),
)


def candidates() -> list[Processor]:
    return [
        processor for processor in supported_processors() if processor.matmul_dtype == torch.float32
    ]


@pytest.fixture(scope="session")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of compiled kernels: those of the best float32 class are faulty, those of the next
    whole.
    """
    folder = tmp_path_factory.mktemp("faulty")
    settings = read_settings()
    place = folder / "gpt/kernels"
    place.mkdir(parents=True)
    for each in (place, place.parent):
        each.chmod(0o700)  # whatever the umask is
    best, following = (find_library(SOURCE, each, settings.cache_dir) for each in candidates()[:2])
    shutil.copy(following, place)
    (folder / "faulty.cpp").write_text(FAULTY, encoding="utf-8")
    flags = [*candidates()[0].compiler_flags, "-O1", "-I", str(SOURCES)]
    command = [
        *next(find_compilers()).arguments(flags),
        str(folder / "faulty.cpp"),
        "-o",
        str(folder / "built"),
    ]
    subprocess.run(command, check=True)
    CachedLibrary(place, best.stem.rpartition("-")[0]).store(folder / "built")
    return folder


@pytest.fixture
def cache(faulty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the faulty cache, which no process has tried."""
    shutil.copytree(faulty / "gpt", tmp_path / "cache/gpt")
    monkeypatch.setattr(build, "_LOADED", {})
    return tmp_path / "cache/gpt"


def loaded(cache: Path) -> tuple[Kernels, list[str]]:
    lines: list[str] = []
    return load_kernels(
        torch.float32, replace(read_settings(), cache_dir=cache), lines.append
    ), lines


def records(cache: Path) -> list[str]:
    """Why libraries must not be used, by the records of their trials; "" for those that may."""
    paths = list((cache / "kernels").glob("*.trial"))
    found = [read_result(path) for path in paths]
    assert all(record is not None and record.compared + (record.reason or "") for record in found)
    return sorted(record.reason or "" for record in found if record is not None)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("load", "a trial of them ended with SIGSEGV"),
        ("third", "a trial of them ended with SIGILL"),
        ("number", "in a trial of them the logits of model 0 differed by "),
        ("killed", "a trial of them ended with SIGKILL"),
        ("", ""),
    ],
)
def test_faulty_library_is_tried_once_and_the_next_class_is_used(
    fault: str, said: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPT_FAULT", fault)
    best, following, *_ = candidates()
    for _ in range(2):
        kernels, lines = loaded(cache)
        assert kernels.processor is (following if fault else best)
        if fault:
            (line,) = lines
            assert line.startswith(f"the {best.name} kernels are not used here: {said}")
            assert line.endswith(f"; using {following.name}")
        if fault == "killed":  # for lack of memory, perhaps, which is no verdict
            assert records(cache) == [""]
            return
        assert records(cache) == (
            ["", lines[0].partition("here: ")[2].partition(";")[0]] if fault else [""]
        )
        build._LOADED.clear()
        monkeypatch.setattr(Trial, "_try", lambda self, process: pytest.fail("tried again"))
    monkeypatch.setattr(
        "gpt.native.training.bindings.supported_processors", lambda _: candidates()[:1]
    )
    if fault:
        with pytest.raises(
            DeviceError, match=f"^the {best.name} kernels are not used here: {said}[^;]*$"
        ):
            loaded(cache)


def test_spinning_threads_have_a_verdict_waiting_ones_have_none(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import resource

    process_class = subprocess.Popen

    def impatient(command: list[str], **options: Any) -> Any:
        if "gpt.native.trial" in command:
            limit = (10, resource.RLIM_INFINITY)
            options["preexec_fn"] = lambda: resource.setrlimit(resource.RLIMIT_CPU, limit)
        return process_class(command, **options)

    monkeypatch.setenv("GPT_FAULT", "spin")
    monkeypatch.setattr(verdicts.subprocess, "Popen", impatient)
    assert "a trial of them ended with SIGXCPU" in loaded(cache)[1][0]
    assert [bool(text) for text in records(cache)] == [False, True]
    next(
        path for path in (cache / "kernels").glob("*.trial") if '"reason": "' in path.read_text()
    ).unlink()
    build._LOADED.clear()
    monkeypatch.setenv("GPT_FAULT", "sleep")
    monkeypatch.setattr(verdicts, "SECONDS", 4)
    assert "a trial of them did not end within 4 s" in loaded(cache)[1][0]
    assert records(cache) == [""]


def gpt(
    folder: Path, cache: Path, *words: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    (folder / "tiny.yaml").write_text(TINY, encoding="utf-8")
    (folder / "corpus.txt").write_text(CORPUS * 30, encoding="utf-8")
    variables = {**os.environ, "XDG_CACHE_HOME": str(cache.parent), **environment}
    command = [sys.executable, "-m", "gpt", *words]
    return subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, check=False
    )


def losses(folder: Path) -> list[float]:
    rows = map(
        json.loads, (folder / "runs/tiny/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    )
    return [row["train/loss"] for row in rows if "train/loss" in row]


def test_library_of_a_wheel_is_tried_once_for_an_empty_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = candidates()[0]
    shutil.copy(find_library(SOURCE, best, read_settings().cache_dir), tmp_path / "library")
    monkeypatch.setattr(build, "PREBUILT", tmp_path / "prebuilt")
    build.PREBUILT.mkdir()
    CachedLibrary(build.PREBUILT, build.prebuilt_key(SOURCE, best)).store(tmp_path / "library")
    for _ in range(2):
        monkeypatch.setattr(build, "_LOADED", {})
        assert loaded(tmp_path / "cache")[0].processor == best
    assert records(tmp_path / "cache") == [""]
    assert [path.suffix for path in (tmp_path / "cache/kernels").iterdir()] == [".trial"]


def test_crash_in_mid_training_is_not_tried_again(cache: Path, tmp_path: Path) -> None:
    best, following, *_ = candidates()
    assert gpt(tmp_path, cache, "train", *RECIPE, GPT_FAULT="middle").returncode == -signal.SIGSEGV
    (tmp_path / "expected").mkdir()
    gpt(tmp_path / "expected", cache, "train", *RECIPE, GPT_PROCESSOR=following.name)
    again = gpt(tmp_path, cache, "train", *RECIPE, "--resume", "auto", GPT_FAULT="middle")
    assert again.returncode == 0, again.stderr
    line = f"the {best.name} kernels are not used here: a process that used them has crashed ("
    assert again.stderr.count(line) == 1
    said = "remove it to try them again), and a trial of them ended with SIGSEGV"
    assert f"{said}; using {following.name}" in again.stderr
    assert losses(tmp_path) == losses(tmp_path / "expected")
    assert line in gpt(tmp_path, cache, "--version", GPT_PROCESSOR=best.name).stdout


def test_record_of_no_trial_is_not_believed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPT_FAULT", "third")
    best, following, *_ = candidates()
    assert loaded(cache)[0].processor is following
    (path,) = (
        each for each in (cache / "kernels").glob("*.trial") if '"reason": "' in each.read_text()
    )
    of_another = json.dumps(
        {**json.loads(path.read_text()), "library": "another.so", "compared": "all", "reason": None}
    )
    for content in (
        "",
        "{}",
        of_another,
        path.read_text().replace('"crash_bytes": 0', '"crash_bytes": 1'),
    ):
        path.write_text(content)
        build._LOADED.clear()
        kernels, lines = loaded(cache)
        assert kernels.processor is following
        assert lines[0].startswith(
            f"the {best.name} kernels are not used here: a trial of them ended with SIGILL"
        )


def test_edited_copy_writes_no_record(tmp_path: Path) -> None:
    """Its trial has nothing to compare with."""
    shutil.copytree(
        build.SOURCES.parents[1], tmp_path / "gpt", ignore=shutil.ignore_patterns("__pycache__")
    )
    layers = tmp_path / "gpt/model/layers.py"
    layers.write_text(layers.read_text().replace("F.relu(x).square()", "F.relu(x)"))
    environment = {**os.environ, "PYTHONPATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment["GPT_PROCESSOR"] = "generic"
    command = [sys.executable, "-m", "gpt.native"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    said = (
        "no compiled kernels: gpt/model/layers.py was edited, so that the kernels cannot be "
        "compared with it"
    )
    assert done.stderr.splitlines() == [said]
    assert list((tmp_path / "cache/gpt/kernels").glob("*.trial")) == []


def test_where_sampling_was_edited_a_record_is_of_logits_only(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    sampling = list[str | None](["sample of gpt/generation/sampling.py was edited"])

    def run(self: TrialProcess, *words: str) -> tuple[int, list[str]]:
        tried.append("logits" if sampling[0] else "logits and tokens")
        return 0, tried[-1:]

    monkeypatch.setattr(TrialProcess, "run", run)
    monkeypatch.setattr(verdicts, "changed_code", lambda scope: sampling[0])
    trial = Trial(Path("engine-1-2.so"), "decoding/engine.cpp", "AVX2", cache / "kernels")
    for _ in range(2):
        assert trial.unusable_reason(TrialProcess(), pytest.fail) is None
    assert tried == ["logits"]
    sampling[0] = None  # the edit was undone
    for _ in range(2):
        assert trial.unusable_reason(TrialProcess(), pytest.fail) is None
    assert tried == ["logits", "logits and tokens"]


def test_files_of_the_current_folder_are_not_run(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("gpt", "resource", "ziglang", "torch"):
        (tmp_path / f"{name}.py").write_text('open("run", "w")\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPT_FAULT", "")
    kernels, lines = loaded(cache)
    assert (kernels.processor, lines) == (candidates()[0], [])
    for compiler in find_compilers():
        subprocess.run([*compiler.command, "--version"], capture_output=True, check=True)
    assert not (tmp_path / "run").exists()


STACKS = "Fatal Python error: Aborted\n"


def test_library_is_tried_longer_after_each_crash(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something else may have crashed: the trial decides."""
    rounds = list[str]()

    def agrees(self: TrialProcess, *words: str) -> tuple[int, list[str]]:
        rounds.append(words[-1])
        return 0, ["all"]

    monkeypatch.setattr(TrialProcess, "run", agrees)
    trial = Trial(Path("training-1-2.so"), SOURCE, "AVX2", cache / "kernels")
    for number_of_crashes in range(3):
        trial.stacks.write_text(STACKS * number_of_crashes)
        for _ in range(2):  # once for each
            assert trial.unusable_reason(TrialProcess(), pytest.fail) is None
    assert rounds == ["1", "3", "3"]


def test_trial_after_a_crash_that_fails_is_believed(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrialProcess, "run", lambda self, *words: (-signal.SIGSEGV, []))
    trial = Trial(Path("training-1-2.so"), SOURCE, "AVX2", cache / "kernels")
    trial.stacks.write_text(STACKS)
    expected = (
        f"a process that used them has crashed ({trial.stacks} has its stack; remove it to try "
        "them again), and a trial of them ended with SIGSEGV"
    )
    assert trial.unusable_reason(TrialProcess(), pytest.fail) == expected
    monkeypatch.setattr(TrialProcess, "run", lambda self, *words: (0, ["all"]))
    assert trial.unusable_reason(TrialProcess(), pytest.fail) == expected
    trial.stacks.unlink()
    assert trial.unusable_reason(TrialProcess(), pytest.fail) is None


@pytest.mark.parametrize("code", [verdicts.WINDOWS_INTERRUPT, -signal.SIGINT])
def test_interrupted_trial_is_no_verdict(
    code: int, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrialProcess, "run", lambda self, *words: (code, ["interrupted"]))
    trial = Trial(Path("training-1-2.so"), SOURCE, "AVX2", cache / "kernels")
    assert trial.unusable_reason(TrialProcess(), pytest.fail) is not None
    assert not trial.path.exists()


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (math.nan, "was not finite"),
        (3.0, "was not orthogonal"),
        (-1.0, "did not go against the gradient"),
    ],
)
def test_wrong_update_of_muon_is_a_mismatch(
    factor: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def update(kernels: Kernels, updated: Sequence[Updated]) -> None:
        update_natively(kernels, updated)
        for each in updated:
            if each.second_moment is None:  # Muon has only one moment
                each.weight.mul_(factor)

    monkeypatch.setattr("gpt.native.trial.update_natively", update)
    kernels = load_kernels(torch.float32, read_settings())
    expected = f"the update of Muon for a matrix (96, 64) {said}"
    assert training_difference(kernels) == expected


def test_process_that_died_early_is_started_again() -> None:
    with TrialProcess() as process:
        process.start()
        assert process._process is not None
        process._process.kill()
        process._process.wait()
        code, lines = process.run("training/training.cpp", "generic", "missing.so", "1")
    assert (code, "missing.so cannot be loaded" in lines[-1]) == (1, True)


def test_folder_that_may_not_be_searched_has_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def glob(self: Path, pattern: str) -> list[Path]:
        raise PermissionError

    monkeypatch.setattr(Path, "glob", glob)
    assert not verdicts.was_tried(tmp_path, SOURCE)


def test_signal_ends_a_set_up_with_its_compilers(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "gpt.native"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        waited_for = {"training/training.cpp", "decoding/engine.cpp"}
        while waited_for:
            # On a busy machine one is "still compiling" before the other has begun.
            line = process.stdout.readline()
            assert "compiling " in line
            waited_for -= set(line.split())
        process.terminate()
        # The pipe ends when the last process that has it does.
        assert "compiled" not in process.stdout.read()
    assert process.returncode == 128 + signal.SIGTERM
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("words", [("--bogus",), ("decodin",), ("decoding", "x")])
def test_set_up_refuses_words_that_it_does_not_know(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert set_up(*words) == 2
    given = " ".join(words)
    said = f"error: unrecognized arguments: {given}; see python -m gpt.native --help\n"
    assert capsys.readouterr() == ("", said)


def test_cache_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrialProcess, "run", lambda self, *words: (0, ["all"]))
    lines = list[str]()
    trial = Trial(Path("training-1-2.so"), SOURCE, "AVX2", tmp_path / "missing")
    assert trial.unusable_reason(TrialProcess(), lines.append) is None
    (line,) = lines
    assert line.startswith("the AVX2 kernels are tried at every start, which takes seconds: ")
    assert line.endswith(
        f"{tmp_path / 'missing'} cannot be written (No such file or directory); "
        "XDG_CACHE_HOME may name another folder"
    )
