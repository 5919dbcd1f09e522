"""Classes of processors: which ones this machine has, and what their flags promise."""

import itertools
import platform
from collections.abc import Sequence

import pytest
import torch

from gpt.system.errors import DeviceError
from gpt.system.processor import AMX, AVX2, AVX512, AVX512_BF16, GENERIC, NEON, PROCESSORS
from gpt.system.processor import supported_processors as supported

AVX2_IS = ("avx2", "fma3")
AVX512_IS = (*AVX2_IS, "avx512_f", "avx512_bw", "avx512_dq", "avx512_vl")
AMX_IS = (*AVX512_IS, "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8")


def pretend(monkeypatch: pytest.MonkeyPatch, machine: str, *features: str) -> None:
    """Stand-ins for what torch reads from the processor."""
    monkeypatch.setattr(platform, "machine", lambda: machine)
    found = {"avx512_vnni": False, "num_sockets": 1, **dict.fromkeys(features, True)}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found, raising=False)
    monkeypatch.setattr(torch.cpu, "_init_amx", lambda: True)


def test_every_class_goes_by_its_name_and_any_machine_has_the_plain_one() -> None:
    assert list(PROCESSORS.values()) == [AMX, AVX512_BF16, AVX512, AVX2, NEON, GENERIC]
    assert all(PROCESSORS[name].name == name for name in PROCESSORS)
    assert supported()[-1] is GENERIC
    assert supported("generic") == [GENERIC]


@pytest.mark.parametrize(
    ("machine", "features", "classes"),
    [
        ("x86_64", AMX_IS, [AMX, AVX512_BF16, AVX512, AVX2, GENERIC]),
        ("x86_64", [each for each in AMX_IS if each != "amx_int8"], [AVX512_BF16, AVX512, AVX2, GENERIC]),
        ("x86_64", AVX512_IS, [AVX512, AVX2, GENERIC]),
        ("x86_64", [*AVX2_IS, "avx512_f", "avx512_bf16"], [AVX2, GENERIC]),
        ("AMD64", AVX2_IS, [AVX2, GENERIC]),
        ("x86_64", ["avx2"], [GENERIC]),
        ("x86_64", [], [GENERIC]),
        ("arm64", [], [NEON, GENERIC]),
        ("aarch64", [], [NEON, GENERIC]),
        ("riscv64", [], [GENERIC]),
    ],
)
def test_classes_follow_from_features(
    machine: str, features: Sequence[str], classes: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, machine, *features)
    assert supported() == classes


def test_amx_is_not_there_where_the_system_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "x86_64", *AMX_IS)
    monkeypatch.setattr(torch.cpu, "_init_amx", lambda: False)
    assert supported()[0] is AVX512_BF16


def test_a_class_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "x86_64", *AVX2_IS)
    assert supported("AVX2") == [AVX2, GENERIC]
    with pytest.raises(DeviceError, match=r"^this processor is not of class AVX-512; it can act as AVX2, generic$"):
        supported("AVX-512")
    with pytest.raises(DeviceError, match=r"^processor 'avx': expected one of AMX, "):
        supported("avx")


def test_a_class_has_the_instructions_of_those_below_and_bfloat16_where_it_multiplies_that() -> None:
    assert [p for p in PROCESSORS.values() if p.matmul_dtype == torch.bfloat16] == [AMX, AVX512_BF16]
    x86 = [AVX2, AVX512, AVX512_BF16, AMX]
    for lower, higher in itertools.pairwise(x86):
        assert set(lower.compiler_flags) < {*higher.compiler_flags}


def test_an_older_torch_leaves_it_to_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    here = supported()
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert supported() == here
