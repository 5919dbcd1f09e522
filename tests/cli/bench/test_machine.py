import json

from gpt.cli.bench.machine import describe_machine, package_version, read_cpuinfo

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
    assert set(found["versions"]) == {"python", "torch", "transformers", "accelerate", "gpt"}


def test_a_package_that_is_not_there_has_no_version() -> None:
    assert package_version("no-such-package-at-all") is None
