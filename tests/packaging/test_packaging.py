"""What builds wheels: what one has to contain, and recorded calls that are repeated with a library."""

import ctypes
import subprocess
import zipfile
from pathlib import Path

import pytest
import torch
from native_support import needs_compiler

from gpt.native.build import find_compiler

ROOT = Path(__file__).parents[2]
SOURCE = """
struct Inner { float* x; int n; };
struct Outer { Inner* inner; };
extern "C" void* make(Outer* outer) { return outer->inner; }
extern "C" int scale(void* made, float* out) {
    Inner* inner = (Inner*)made;
    for (int i = 0; i < inner->n; i++) out[i] = FACTOR * inner->x[i];
    return 7;
}
"""


@pytest.fixture(autouse=True)
def _modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "packaging"))


def test_wheel_with_too_little_or_too_much_is_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import checks

    def problems(*names: str) -> list[str]:
        with zipfile.ZipFile(tmp_path / "package.whl", "w") as archive:
            for name in names:
                archive.writestr(name, name)
        return list(checks.check_contents(tmp_path / "package.whl"))

    whole = [name if name.startswith("gpt/") else f"package-1{name}" for name in checks.EXPECTED]
    assert problems(*whole) == []
    assert problems(*whole[1:]) == [f"{whole[0]} is missing"]
    assert problems(*whole, "tests/test_it.py") == ["tests/test_it.py is outside the package"]
    assert problems(*whole, "gpt/it.pyc") == ["gpt/it.pyc should not be there"]
    monkeypatch.setattr(checks, "MAX_BYTES", 100)
    assert problems(*whole)[0].startswith("it has more than ")


class Inner(ctypes.Structure):
    _fields_ = [("x", ctypes.c_void_p), ("n", ctypes.c_int32)]


class Outer(ctypes.Structure):
    _fields_ = [("inner", ctypes.c_void_p)]


def compiled(folder: Path, name: str, source: str, *flags: str) -> Path:
    compiler = find_compiler()
    assert compiler is not None
    (folder / f"{name}.cpp").write_text(source, encoding="utf-8")
    command = [*compiler.command, "-std=c++17", *flags, str(folder / f"{name}.cpp"), "-o", str(folder / name)]
    subprocess.run(command, check=True)
    return folder / name


@pytest.mark.compiler
@needs_compiler
def test_library_agrees_with_its_recording_and_another_does_not(tmp_path: Path) -> None:
    from recording import Recorder

    library = ctypes.CDLL(str(compiled(tmp_path, "right.so", SOURCE, "-shared", "-fPIC", "-DFACTOR=2")))
    library.make.restype = ctypes.c_void_p
    recorder = Recorder(library)
    x, out = torch.randn(10), torch.full((10,), torch.nan)
    inner = Inner(x.data_ptr(), 10)
    outer = Outer(ctypes.addressof(inner))
    made = recorder.make(ctypes.byref(outer))
    assert recorder.scale(ctypes.c_void_p(made), ctypes.c_void_p(out.data_ptr())) == 7
    assert torch.equal(out, 2 * x)
    recorder.write(tmp_path / "recording")

    replay = compiled(tmp_path, "replay", (ROOT / "packaging/replay.cpp").read_text(encoding="utf-8"), "-ldl")
    for factor, code, words in (
        ("2", 0, "2 calls agree to 0"),
        ("2.00001", 0, "agree to 5e-06"),
        ("2.1", 1, "differs"),
    ):
        other = compiled(tmp_path, f"factor-{factor}.so", SOURCE, "-shared", "-fPIC", f"-DFACTOR={factor}")
        result = subprocess.run([replay, other, tmp_path / "recording"], capture_output=True, text=True, check=False)
        assert result.returncode == code, result.stdout
        assert words in result.stdout
