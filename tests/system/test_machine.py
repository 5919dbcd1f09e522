"""The machine: its environment variables, and the classes that its processor belongs to."""

import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from gpt.system import processor
from gpt.system.environment import Launch, Settings, read_launch, read_settings
from gpt.system.errors import ConfigError, DeviceError
from gpt.system.processor import AMX, AVX2, AVX512, AVX512_BF16, GENERIC, NEON
from gpt.system.processor import supported_processors as supported

EMPTY = Settings(data_dir=None, cache_dir=Path("/somewhere/.cache/gpt"), offline=False)
TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
TORCHRUN |= {"MASTER_ADDR": "node0", "MASTER_PORT": "29500", "TORCHELASTIC_RESTART_COUNT": "2"}
WRONG = (
    ("RANK", "8"),
    ("RANK", "-1"),
    ("LOCAL_RANK", "4"),
    ("LOCAL_WORLD_SIZE", "9"),
    ("MASTER_ADDR", ""),
)
HAS_AVX2 = ("avx2", "fma3")
HAS_AVX512 = (*HAS_AVX2, "avx512_f", "avx512_bw", "avx512_dq", "avx512_vl")
HAS_AMX = (*HAS_AVX512, "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8")


@pytest.mark.parametrize(
    ("variables", "settings"),
    [
        ({"XDG_CACHE_HOME": "/caches"}, {"cache_dir": Path("/caches/gpt")}),
        *(({"GPT_OFFLINE": value}, {"offline": True}) for value in ("1", "TRUE", "Yes", " on ")),
        *(({"GPT_OFFLINE": value}, {}) for value in (" ", "0", "false", "no", "off")),
        ({"GPT_DATA_DIR": "~/corpora"}, {"data_dir": Path("/somewhere/corpora")}),
        ({"GPT_PROCESSOR": " AVX-512 bf16 "}, {"processor": "AVX-512 bf16"}),
        ({"GPT_API_KEY": "sesame"}, {"api_key": "sesame"}),
        ({"GPT_DATA_DIR": "", "GPT_PROCESSOR": " ", "GPT_API_KEY": "", "GPT_OFFLINE": ""}, {}),
    ],
)
def test_settings_are_read_anew_each_time(
    variables: dict[str, str], settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/somewhere")
    assert read_settings() == EMPTY
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert read_settings() == replace(EMPTY, **settings)


def test_user_without_a_name_has_a_cache_of_temporary_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", Mock(side_effect=KeyError("uid not found")))
    assert read_settings().cache_dir == Path(tempfile.gettempdir(), f"gpt-{os.getuid()}")
    monkeypatch.setenv("XDG_CACHE_HOME", "~/caches")
    with pytest.raises(
        ConfigError, match="XDG_CACHE_HOME: ~/caches has no home folder; write the whole path"
    ):
        read_settings()


def test_launch_is_that_of_torchrun_whole_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert read_launch() == Launch(5, 8, 1, 4, "node0:29500", 2)
    for name, value, message in (
        ("LOCAL_RANK", None, r"^WORLD_SIZE is set, .* \('LOCAL_RANK'\); start with torchrun$"),
        ("MASTER_ADDR", None, "'MASTER_ADDR'"),
        ("RANK", "first", "'first'"),
        *((name, value, "a rank or the address") for name, value in WRONG),
    ):
        with monkeypatch.context() as patch:
            patch.delenv(name) if value is None else patch.setenv(name, value)
            with pytest.raises(ConfigError, match=message):
                read_launch()
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert read_launch() == Launch()


def pretend(
    monkeypatch: pytest.MonkeyPatch,
    machine: str,
    features: Sequence[str],
    grants_tiles: bool = True,
) -> None:
    """Stand in for what torch reads from the processor, of AMD."""
    monkeypatch.setattr(processor, "_is_made_by_intel", lambda: False)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    found = {"avx512_vnni": False, "num_sockets": 1, **dict.fromkeys(features, True)}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found, raising=False)
    monkeypatch.setattr(torch.cpu, "_init_amx", lambda: grants_tiles)


@pytest.mark.parametrize(
    ("machine", "features", "classes"),
    [
        ("x86_64", HAS_AMX, [AMX, AVX512_BF16, AVX512, AVX2, GENERIC]),
        (
            "x86_64",
            [each for each in HAS_AMX if each != "amx_int8"],
            [AVX512_BF16, AVX512, AVX2, GENERIC],
        ),
        ("x86_64", HAS_AVX512, [AVX512, AVX2, GENERIC]),
        ("x86_64", [*HAS_AVX2, "avx512_f", "avx512_bf16"], [AVX2, GENERIC]),
        ("AMD64", HAS_AVX2, [AVX2, GENERIC]),
        ("x86_64", ["avx2"], [GENERIC]),
        ("arm64", [], [NEON, GENERIC]),
        ("aarch64", [], [NEON, GENERIC]),
        ("riscv64", [], [GENERIC]),
    ],
)
def test_classes_follow_from_features(
    machine: str, features: Sequence[str], classes: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    pretend(monkeypatch, machine, features)
    assert supported() == classes
    pretend(monkeypatch, machine, features, grants_tiles=False)
    assert supported() == [each for each in classes if each is not AMX]


def test_bfloat16_without_tiles_comes_after_float32_on_intel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend(monkeypatch, "x86_64", HAS_AMX)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(processor, "_is_made_by_intel", lambda: True)
    assert supported() == [AMX, AVX512, AVX512_BF16, AVX2, GENERIC]
    assert supported("AVX-512 bf16")[0] is AVX512_BF16


def test_classes_can_be_had_from_a_lower_one_on(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "x86_64", HAS_AVX2)
    assert (supported("AVX2"), supported("generic")) == ([AVX2, GENERIC], [GENERIC])
    with pytest.raises(
        DeviceError, match=r"^this processor is not of class AVX-512; it can act as AVX2, generic$"
    ):
        supported("AVX-512")
    with pytest.raises(DeviceError, match=r"^processor 'avx': expected one of AMX, "):
        supported("avx")
