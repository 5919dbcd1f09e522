"""The code of the pages: bundled as committed, and installed with the package."""

import subprocess
import tomllib
from pathlib import Path

import pytest

import gpt
from gpt.extras.web.document import STYLES

PACKAGE = Path(gpt.__file__).parent
WEB = PACKAGE / "extras" / "web"
ROOT = PACKAGE.parent


@pytest.mark.slow
@pytest.mark.skipif(
    not (WEB / "node_modules/.bin/esbuild").exists(), reason="this test needs esbuild: make web"
)
def test_bundles_are_what_the_sources_give(tmp_path: Path) -> None:
    command = [
        "npm",
        "run",
        "--silent",
        "build",
        "--",
        f"--outdir={tmp_path}",
        "--log-level=warning",
    ]
    subprocess.run(command, cwd=WEB, check=True, timeout=120)
    committed = {path.name: path.read_text(encoding="utf-8") for path in (WEB / "built").iterdir()}
    made = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    assert committed == made, "gpt/extras/web/built is stale: make web"


def test_style_sheets_are_applied_and_files_of_pages_packaged() -> None:
    assert sorted(STYLES) == sorted(path.stem for path in (WEB / "styles").iterdir())
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["gpt"]
    packaged = {path for pattern in patterns for path in PACKAGE.glob(pattern)}
    needed = [*(WEB / "built").rglob("*"), WEB / "shell.html", *(WEB / "styles").glob("*.css")]
    needed += [*(PACKAGE / "native" / "src").rglob("*.*")]
    assert {path for path in needed if path.is_file()} <= packaged
