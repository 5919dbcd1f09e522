import json
import platform

import pytest
import torch

from gpt.cli.bench.machine import CLASSES, describe_machine, package_version, processor_class, read_cpuinfo

CPUINFO = """\
processor\t: 0
model name\t: Intel(R) Xeon(R) Processor
flags\t\t: fpu sse2 avx2 amx_tile avx512f

processor\t: 1
model name\t: another
"""


def test_the_first_processor_is_described() -> None:
    assert read_cpuinfo(CPUINFO) == {"cpu": "Intel(R) Xeon(R) Processor", "flags": ["amx_tile", "avx2", "avx512f"]}


def test_a_system_without_cpuinfo_still_has_a_name() -> None:
    found = read_cpuinfo("")
    assert found["cpu"]
    assert found["flags"] == []


def test_everything_goes_into_json() -> None:
    found = json.loads(json.dumps(describe_machine()))
    assert found["machine"]["cores"] >= 1
    assert found["machine"]["class"] in (*CLASSES, "other")
    assert set(found["versions"]) == {"python", "torch", "transformers", "accelerate", "gpt"}


def test_a_package_that_is_not_there_has_no_version() -> None:
    assert package_version("no-such-package-at-all") is None


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (["amx_bf16", "amx_tile", "avx2", "avx512_bf16", "avx512f"], "AMX"),
        (["amx_tile", "avx2", "avx512f"], "AVX-512"),
        (["avx2", "avx512_bf16", "avx512f"], "AVX-512 bf16"),
        (["avx", "avx2"], "AVX2"),
        (["asimd", "asimddp"], "NEON"),
        (["avx"], "other"),
    ],
)
def test_a_processor_has_the_class_of_its_best_feature(flags: list[str], name: str) -> None:
    assert processor_class("cpu", flags) == name


def test_a_system_that_lists_no_features_is_asked_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "AMD64")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert processor_class("cpu", []) == "AVX2"
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert processor_class("cpu", []) == "NEON"


def test_a_card_has_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"card {device}")
    assert processor_class("cuda:1", ["avx2"]) == "CUDA card cuda:1"
    assert processor_class("mps", []) == "other"
