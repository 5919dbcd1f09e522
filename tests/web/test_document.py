"""The code of the pages: bundled as committed, and installed with the package."""

import subprocess
import tomllib
from pathlib import Path

import pytest

import gpt
from gpt.web.document import STYLES

WEB = Path(gpt.__file__).parent / "web"
ROOT = WEB.parent.parent
ESBUILD = ROOT / "node_modules" / ".bin" / "esbuild"


@pytest.mark.slow
@pytest.mark.skipif(not ESBUILD.exists(), reason="this test needs esbuild: make web")
def test_the_bundles_are_what_the_sources_give(tmp_path: Path) -> None:
    command = ["npm", "run", "--silent", "build", "--", f"--outdir={tmp_path}", "--log-level=warning"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=120)
    committed = {path.name: path.read_text(encoding="utf-8") for path in (WEB / "built").iterdir()}
    made = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    assert committed == made, "gpt/web/built is stale: make web"


def test_every_style_sheet_is_applied() -> None:
    assert sorted(STYLES) == sorted(path.stem for path in (WEB / "styles").iterdir())


def test_an_installed_package_has_what_its_pages_are_made_of() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["gpt"]
    package = WEB.parent
    packaged = {path for pattern in patterns for path in package.glob(pattern)}
    needed = [*(WEB / "built").rglob("*"), WEB / "shell.html", *(WEB / "styles").glob("*.css")]
    needed += [*(package / "kernels" / "src").rglob("*.*")]
    assert {path for path in needed if path.is_file()} <= packaged
