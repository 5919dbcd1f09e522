"""The real sources with every compiler of this machine, and for the systems that this is not."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from native_support import needs_compiler

from gpt.config import SamplingParams
from gpt.environment import read_settings
from gpt.generation import generate_tokens
from gpt.generation.backends.selection import DecodeOptions, build_runtime
from gpt.kernels import build
from gpt.kernels.compiler import FLAGS, Compiler, find_compilers
from gpt.kernels.training.bindings import load_kernels
from gpt.kernels.training.block import replace_blocks
from gpt.model import GPT
from gpt.processor import supported_processors
from tiny import sharp_model, tiny_config

TARGETS = ["x86_64-macos", "aarch64-macos", "x86_64-windows-gnu", "aarch64-windows-gnu", "aarch64-linux-gnu"]


@pytest.fixture(params=list(find_compilers()), ids=lambda compiler: compiler.name)
def compiler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """The one in use."""
    found: Compiler = request.param
    monkeypatch.setattr(build, "find_compiler", lambda: found)
    monkeypatch.setattr(build, "_LOADED", {})
    return found


@needs_compiler
@pytest.mark.timeout(1800)  # zig compiles its C++ library first
def test_decoding(compiler: Compiler) -> None:
    model, prompt = sharp_model(block_size=64), [1, 2, 3]
    native, eager = (build_runtime(model, DecodeOptions(backend)) for backend in ("native", "eager"))
    for seed in range(8):
        params = SamplingParams(max_new_tokens=60, seed=seed)
        expected = list(generate_tokens(model, prompt, params, eager))
        assert list(generate_tokens(model, prompt, params, native)) == expected


@needs_compiler
@pytest.mark.timeout(1800)
def test_training(compiler: Compiler) -> None:
    kernels = load_kernels(supported_processors()[0].matmul_dtype, read_settings())
    model, reference = GPT(tiny_config(n_embd=64, n_head=2)), GPT(tiny_config(n_embd=64, n_head=2))
    reference.load_state_dict(model.state_dict())
    replace_blocks(model, kernels)
    tokens = torch.randint(23, (2, 16))
    for either in (model, reference):
        either(tokens).square().mean().backward()
    for (name, p), q in zip(model.named_parameters(), reference.parameters(), strict=True):
        assert p.grad is not None
        assert q.grad is not None
        error = (p.grad - q.grad).norm() / q.grad.norm()
        assert error < 0.02, name  # bfloat16 keeps 8 bits


@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="ziglang compiles for other systems")
@pytest.mark.parametrize("source", ["training/training.cpp", "decoding/engine.cpp"])
@pytest.mark.parametrize("target", TARGETS)
def test_the_sources_compile_for_other_systems(target: str, source: str, tmp_path: Path) -> None:
    flags = ["-march=x86_64", "-mavx2", "-mfma", "-mf16c"] if target.startswith("x86") else []
    command = [sys.executable, "-m", "ziglang", "c++", "-target", target, *FLAGS, *flags, "-O0", "-c"]
    command += [str(build.SOURCES / source), "-o", str(tmp_path / "object")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
