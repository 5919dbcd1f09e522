"""The JavaScript of an exported page under Node, from the file as it was written."""

import json
import subprocess
from typing import Any

from gpt.interop.html import read_engine
from patience import PATIENCE
from programs import find_node

READER = """
const page = require("fs").readFileSync(0, "utf8");
const part = (id) => page.match(new RegExp(`id="${id}">([^<]*)<`))[1];
const data = JSON.parse(part("data"));
const newModel = (useWasm) => new Model(data, decodeBase64(part("weights")), useWasm);
const newSource = (useWasm, sampling) =>
  new LocalSource(newModel(useWasm), new Tokenizer(data.tokenizer), data.labels, sampling);
"""


def run_page(page: str, code: str) -> Any:
    """Return what `code`, which sees the constants above and the page's classes, makes of a page."""
    ending = f"(async () => {{ {code} }})().then((found) => console.log(JSON.stringify(found)));"
    program = f"{read_engine()}\n{READER}\n{ending}"
    result = subprocess.run(
        [find_node(), "-e", program], input=page, capture_output=True, encoding="utf-8", timeout=PATIENCE, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return json.loads(result.stdout)
