"""The real sources with every compiler of this machine, and for the systems that this is not."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from native_support import needs_compiler

from gpt.kernels import build
from gpt.kernels.build import find_library, open_library
from gpt.kernels.compiler import FLAGS, Compiler, find_compilers
from gpt.kernels.decoding import engine
from gpt.kernels.decoding.engine import with_results
from gpt.kernels.training import bindings
from gpt.kernels.training.bindings import Kernels
from gpt.kernels.trial import decoding_difference, training_difference
from gpt.system.environment import read_settings
from gpt.system.processor import supported_processors

TARGETS = ["x86_64-macos", "aarch64-macos", "x86_64-windows-gnu", "aarch64-windows-gnu", "aarch64-linux-gnu"]


@needs_compiler
@pytest.mark.parametrize("compiler", list(find_compilers()), ids=lambda compiler: compiler.name)
@pytest.mark.timeout(1800)  # zig compiles its C++ library first
def test_libraries_of_every_compiler_agree_with_pytorch(compiler: Compiler) -> None:
    cache, processor = read_settings().cache_dir, supported_processors()[0]
    library = open_library(find_library(bindings.SOURCE, processor, cache, compiler=compiler))
    assert training_difference(Kernels(library, processor)) is None
    library = open_library(find_library(engine.SOURCE, processor, cache, flags=engine.FLAGS, compiler=compiler))
    assert decoding_difference(with_results(library), processor) is None


@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="ziglang compiles for other systems")
@pytest.mark.parametrize("source", ["training/training.cpp", "decoding/engine.cpp"])
@pytest.mark.parametrize("target", TARGETS)
def test_the_sources_compile_for_other_systems(target: str, source: str, tmp_path: Path) -> None:
    flags = ["-march=x86_64", "-mavx2", "-mfma", "-mf16c"] if target.startswith("x86") else []
    command = [sys.executable, "-m", "ziglang", "c++", "-target", target, *FLAGS, *flags, "-O0", "-c"]
    command += [str(build.SOURCES / source), "-o", str(tmp_path / "object")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
