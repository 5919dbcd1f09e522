"""Processor classes that this machine may not be: their machine code is read, and run where
something emulates it.
"""

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from native_support import needs_compiler

from gpt.native.build import SOURCES, Compiler, find_compilers, find_library, open_library
from gpt.native.decoding import decoder
from gpt.native.training import bindings
from gpt.system.environment import read_settings
from gpt.system.processor import (
    AMX,
    AVX2,
    AVX512,
    AVX512_BF16,
    GENERIC,
    TILES,
    Processor,
    supported_processors,
)
from programs import find_program

pytestmark = [
    needs_compiler,
    pytest.mark.skipif(
        (sys.platform, platform.machine()) != ("linux", "x86_64"),
        reason="the classes are those of Linux on x86-64",
    ),
]
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FLAGS: dict[str, tuple[str, ...]] = {bindings.SOURCE: (), decoder.SOURCE: decoder.FLAGS}
OTHERS = ("g++-11", "g++-12", "clang++-14", "clang++-19")
"""Compilers of Debian beside the machine's own."""
TRAPPED = Processor("trapped AMX", AMX.instructions[-3:], torch.bfloat16, ("-DGPT_LANES=16", TILES))
"""Real tile instructions, which `trap_tiles.cpp` carries out, and nothing else beyond x86-64."""
MARKS = {
    "amx-tile": r"\t(?:tile|ldtile|sttile|tdp)",
    "avx512bf16": r"vdpbf16|vcvtne",
    "avx512f": r"%zmm|%k\d|%[xy]mm(?:1[6-9]|2\d|3[01])",
    "avx2": r"%ymm|\tv",
    "others": r"vpdp[bw]|\t(?:andn|bextr|bls\w+|pdep|pext|mulx|rorx|sarx|shlx|shrx|lzcnt)\s",
}
"""What machine code of an instruction set looks like.

No class names the others, VNNI, BMI and BMI2.
"""
CLASSES = (AMX, AVX512_BF16, AVX512, AVX2, GENERIC)
TURNS = [(source, level) for level in ("-O3", "-O2") for source in FLAGS]
"""Every compiler meets every class, and each of them all of these, in turns."""


def _compilers() -> list[Any]:
    """Return numbered compilers as parameters: those of the machine, and the others, skipped where
    they are missing.
    """
    found = {Path(shutil.which(each.command[0]) or "").resolve(): each for each in find_compilers()}
    for name in OTHERS:
        found.setdefault(Path(shutil.which(name) or name).resolve(), Compiler((name,), ""))
    return [
        pytest.param(
            i,
            each,
            id=each.name,
            marks=pytest.mark.skipif(not path, reason=f"there is no {each.name}"),
        )
        for i, (each, path) in enumerate(
            (each, shutil.which(each.command[0])) for each in found.values()
        )
    ]


every_compiler = pytest.mark.parametrize(("number", "compiler"), _compilers())
every_linker = pytest.mark.parametrize(
    ("number", "compiler"), [each for each in _compilers() if each.id != "zig"]
)
"""zig, which is clang, would compile a C++ library of its own first, which takes a minute."""
every_source = pytest.mark.parametrize("source", FLAGS, ids=lambda source: source.split("/")[0])
every_class = pytest.mark.parametrize("processor", CLASSES, ids=lambda processor: processor.name)


def compiled(
    folder: Path,
    compiler: Compiler,
    processor: Processor,
    source: str,
    level: str,
    sources: Path = SOURCES,
) -> tuple[Path, str]:
    """Return the object file of a source, and what the compiler said."""
    command = compiler.arguments(
        [*processor.compiler_flags, *FLAGS.get(source, ()), level, "-Wall", "-Wextra"]
    )
    command += ["-c", str(sources / source), "-o", str(folder / "object.o")]
    return folder / "object.o", subprocess.run(
        command, capture_output=True, text=True, check=True
    ).stderr


def linked(object_file: Path, compiler: Compiler) -> Path:
    """Return a library of an object file."""
    library = object_file.with_suffix(".so")
    subprocess.run(
        [*compiler.arguments(GENERIC.compiler_flags), object_file, "-o", library], check=True
    )
    return library


def machine_code(object_file: Path) -> str:
    command = [find_program("objdump", "binutils"), "-d", "--no-show-raw-insn", object_file]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def wrong(object_file: Path, processor: Processor, source: str) -> list[str]:
    """Return what should not be in an object file."""
    code = machine_code(object_file)
    found = {name for name, mark in MARKS.items() if re.search(mark, code)}
    # the engine computes in float32
    named = set(processor.instructions) & MARKS.keys() - (
        {"avx512bf16"} if source == decoder.SOURCE else set()
    )
    problems = [
        f"it should {'not ' * (name in found)}have {name}" for name in sorted(found ^ named)
    ]
    for function in code.split(
        "\n\n"
    ):  # a configuration is a constant, or one that was stored at the same place
        for place in re.finditer(r"ldtilecfg +(.*\(%(?!rip).*)", function):
            if not re.search(rf"sttilecfg +{re.escape(place[1])}\n", function[: place.start()]):
                problems.append(f"nothing stores what {place[0]} reads")
    command = [find_program("readelf", "binutils"), "-W", "-S", "-s", object_file]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    problems += re.findall(r"\.(?:init_array|ctors)\b", table)  # runs when the library is loaded
    problems += re.findall(r"(?:GLOBAL|WEAK|UNIQUE) +DEFAULT +\d+ (?!gpt_)\S+", table)
    return problems


@every_compiler
@every_class
def test_class_has_its_own_instructions(
    number: int, compiler: Compiler, processor: Processor, tmp_path: Path
) -> None:
    source, level = TURNS[(number + CLASSES.index(processor)) % 4]
    object_file, said = compiled(tmp_path, compiler, processor, source, level)
    # GCC 12 warns of its own headers
    assert re.findall(r"^\S*kernels/src/.* warning: .*", said, re.MULTILINE) == []
    assert wrong(object_file, processor, source) == []


@pytest.fixture(scope="session")
def trap(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the library that emulates tiles."""
    library = str(tmp_path_factory.mktemp("trap") / "trap.so")
    command = [
        *next(find_compilers()).command,
        "-O2",
        "-shared",
        "-fPIC",
        HERE / "trap_tiles.cpp",
        "-o",
        library,
    ]
    subprocess.run([*command, "-ldl"], check=True)
    return library


COMPARED = {bindings.SOURCE: "logits and gradients", decoder.SOURCE: "logits and tokens"}


def tried(source: str, library: Path, processor: Processor, preload: str = "") -> tuple[int, str]:
    """Return how a process ended that compared a library with PyTorch, and what was compared, or
    differs.
    """
    command = [sys.executable, "-m", "gpt.native.trial", source, processor.name, library]
    environment = {**os.environ, "LD_PRELOAD": preload, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, (done.stdout + done.stderr).strip()


@every_linker
@every_source
def test_trapped_tiles_agree_with_pytorch(
    number: int, compiler: Compiler, source: str, trap: str, tmp_path: Path
) -> None:
    level = ("-O3", "-O2")[(number + (source == decoder.SOURCE)) % 2]
    object_file, _ = compiled(tmp_path, compiler, TRAPPED, source, level)
    assert wrong(object_file, TRAPPED, source) == []
    assert tried(source, linked(object_file, compiler), AMX, trap) == (0, COMPARED[source])


FORGETFUL = """TileConfig mine;
    memset(&mine, 0, sizeof mine);
    mine.palette = 1;
    for (int i = 0; i < 8; i++) mine.row_bytes[i] = 64, mine.rows[i] = 16;
    __asm__ volatile("ldtilecfg %0" : : "m"(*(const void* const*)&mine));
"""
"""As GCC before 12.4 and 13.3 loads a configuration: only its first 8 bytes are declared as read.
"""


def gcc() -> Compiler:
    return Compiler((find_program("g++", "g++"),), "")


def test_trapped_tiles_fault_where_a_configuration_was_lost(trap: str, tmp_path: Path) -> None:
    shutil.copytree(SOURCES, tmp_path / "src")
    header = tmp_path / "src/amx.h"
    text = header.read_text(encoding="utf-8").replace("load_config(whole);", FORGETFUL)
    header.write_text(f"#include <cstring>\n{text}", encoding="utf-8")
    object_file, _ = compiled(tmp_path, gcc(), TRAPPED, bindings.SOURCE, "-O3", tmp_path / "src")
    assert any("ldtilecfg" in problem for problem in wrong(object_file, TRAPPED, bindings.SOURCE))
    code, said = tried(bindings.SOURCE, linked(object_file, gcc()), AMX, trap)
    assert (code, said.splitlines()[:1]) == (99, ["tile fault: shape"])


def test_packing_before_a_tile_is_loaded_stays(tmp_path: Path) -> None:
    """GCC drops it before its own `_tile_loadd`, which declares no memory."""
    loads = {
        "LOAD_TILE(4, packed, 64)": True,
        'asm volatile("tileloadd (%0,%1), %%tmm4" : : "r"(packed), "r"(64L))': False,
    }
    for load, stays in loads.items():
        packing = "short packed[512]; for (int i = 0; i < 512; i++) packed[i] = x[511 - i];"
        program = (
            f'#include "{SOURCES}/amx.h"\nvoid gpt_load(const short* x) {{ {packing} {load}; }}'
        )
        (tmp_path / "load.cpp").write_text(program, encoding="utf-8")
        object_file, _ = compiled(tmp_path, gcc(), TRAPPED, "load.cpp", "-O3", tmp_path)
        assert ("(%rdi" in machine_code(object_file)) is stays


@every_class
@every_source
def test_native_class_agrees_with_pytorch(source: str, processor: Processor) -> None:
    if processor not in supported_processors():
        pytest.skip(
            f"this processor is not of class {processor.name}, "
            "whose code was compiled and read only"
        )
    library = open_library(
        find_library(source, processor, read_settings().cache_dir, flags=FLAGS[source])
    )
    assert tried(source, Path(library._name), processor) == (0, COMPARED[source])


@pytest.mark.skipif(
    shutil.which("qemu-x86_64-static") is None, reason="there is no qemu-x86_64-static"
)
def test_emulated_processors_repeat_recorded_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "packaging"))
    from recording import record_decoding, record_training

    cases = [(AVX2, "Haswell", 0), (GENERIC, "qemu64", 0), (AVX2, "Nehalem", -signal.SIGILL)]
    replay = [ROOT / "packaging/replay.cpp", "-o", tmp_path / "replay", "-ldl"]
    settings = read_settings()
    subprocess.run([*next(find_compilers()).command, "-std=c++17", *replay], check=True)
    for source, record in ((bindings.SOURCE, record_training), (decoder.SOURCE, record_decoding)):
        record(tmp_path / "recording", GENERIC, settings)
        for processor, model, code in cases:
            library = open_library(
                find_library(source, processor, settings.cache_dir, flags=FLAGS[source])
            )._name
            command = ["qemu-x86_64-static", "-cpu", model, "./replay", library, "recording"]
            done = subprocess.run(
                command, cwd=tmp_path, capture_output=True, text=True, check=False
            )
            assert done.returncode == code, done.stdout + done.stderr
            assert code or re.fullmatch(r"\d\d+ calls agree to \S+\n", done.stdout)
