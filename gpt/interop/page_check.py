"""An exported page compared with its model: its own JavaScript runs under Node, on the file as it was written."""

import base64
import json
import shutil
import subprocess
from pathlib import Path

import torch

from gpt.errors import InputError, quoted
from gpt.interop.coverage import require_as_configured
from gpt.interop.html import as_in_page, page_tolerance
from gpt.interop.verification import logits_of, require_same, window_of
from gpt.model import GPT

MIN_NODE = 18
"""Version of Node that knows the page's JavaScript."""
MAX_SECONDS = 600.0
PROGRAM = """
const written = require("fs").readFileSync(process.argv[2], "utf8");
const part = (opening) => written.split(opening).at(-1).split("</script>")[0];
const { Model, decodeBase64, findProblem, logitsAfter } = new Function(part("<script>") + "; return page;")();
const data = JSON.parse(part('id="data">'));
const model = new Model(data, decodeBase64(part('id="weights">')));
const rows = logitsAfter(model, JSON.parse(process.argv[3])).map((row) => Buffer.from(row.buffer));
const logits = Buffer.concat(rows).toString("base64");
console.log(JSON.stringify({ logits, problem: findProblem(model, data.probe) }));
"""


def find_node() -> str | None:
    """Return the path of Node, if there is one that runs a page's JavaScript."""
    node = shutil.which("node")
    if node is None:
        return None
    try:
        asked = [node, "-p", "parseInt(process.versions.node)"]
        version = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return node if version.isdigit() and int(version) >= MIN_NODE else None


def check_page(path: Path, model: GPT, weights: str, node: str) -> float:
    """Run a page's code on its weights by Node, and compare the logits with those of the model.

    The model computes with weights that are rounded as in the page, so that nothing but rounding in float32 is allowed.
    Results and errors are those of `require_same` and `require_as_configured`.
    """
    require_as_configured(model)
    idx = window_of(model)
    command = [node, "-", str(path), json.dumps(idx.tolist())]
    try:
        ended = subprocess.run(
            command,
            input=PROGRAM,
            capture_output=True,
            encoding="utf-8",
            timeout=MAX_SECONDS,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        reason = next((line for line in error.stderr.splitlines() if "Error" in line), f"exit code {error.returncode}")
        raise InputError(f"the written page does not run: {quoted(reason)}; gpt/model was changed") from None
    except subprocess.TimeoutExpired:
        raise InputError(f"the written page has not computed {len(idx)} tokens in {MAX_SECONDS:.0f} s") from None
    found = json.loads(ended.stdout)
    logits = torch.frombuffer(bytearray(base64.b64decode(found["logits"])), dtype=torch.float32)
    model_in_page, rounded = as_in_page(model, weights)
    expected = logits_of(model_in_page, idx, rounded)
    difference = require_same(logits.view(len(idx), -1), expected, page_tolerance(model, weights))
    if found["problem"] is not None:
        raise InputError(f"the written page finds a mistake in itself: {found['problem']}")
    return difference
