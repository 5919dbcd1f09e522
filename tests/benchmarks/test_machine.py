import json

import pytest
import torch

from benchmarks.machine import describe_machine, package_version, processor_class, read_cpuinfo
from gpt.processor import AMX, GENERIC, NEON, Processor

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
    assert found["machine"]["class"]
    assert set(found["versions"]) == {"python", "torch", "transformers", "accelerate", "gpt"}


def test_a_package_that_is_not_there_has_no_version() -> None:
    assert package_version("no-such-package-at-all") is None


@pytest.mark.parametrize(
    ("own", "acts_as", "name"),
    [
        (AMX, None, "AMX"),
        (AMX, "AMX", "AMX"),
        (AMX, "AVX2", "AMX as AVX2"),
        (NEON, None, "NEON"),
        (GENERIC, None, "other"),
    ],
)
def test_a_processor_has_the_class_of_its_best_instructions(
    own: Processor, acts_as: str | None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.machine.supported_processors", lambda: [own, GENERIC])
    assert processor_class("cpu", acts_as) == name


def test_a_card_has_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"card {device}")
    assert processor_class("cuda:1", None) == "CUDA card cuda:1"
    assert processor_class("mps", None) == "other"
