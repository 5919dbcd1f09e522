"""`scripts/bench.py page`: characters per second that an exported page writes in headless Chromium, drawing and all."""

import argparse
import re
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.cli_options import add_count, add_measurement, add_variants
from benchmarks.measure import describe, finish, interleave, make_table
from gpt.cli.command import report
from gpt.errors import ConfigError

WEIGHTS = ("fp16", "int8", "float32")
PROMPT = "\n"
NOTE = "Characters/s: median of the rounds, each a new browser, by the clock of the page."
COLUMNS = {
    "characters/s": lambda row: f"{statistics.median(row['characters_per_second']):,.0f}",
    "MiB": lambda row: f"{row['bytes'] / 2**20:.2f}",
}


def add_parser(subparsers: Any) -> None:
    summary = "Measure how fast an exported page writes in headless Chromium, in interleaved rounds."
    parser = add_measurement(subparsers, "page", summary, "--checkpoint runs/shakespeare_sprint")
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="PATH", help="run or checkpoint folder")
    add_variants(parser, WEIGHTS, "fp16")
    add_count(parser, "--tokens", 1000, "tokens to write")
    add_count(parser, "--rounds", 3, "rounds")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Export a page with each format of weights, and write with all of them in turn."""
    from tests.programs import BROWSERS

    program = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if program is None:
        raise ConfigError("this measurement needs Chromium: make browser")
    facts = describe("page", arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = {weights: _export(arguments.checkpoint, weights, folder) for weights in arguments.variants}
        speeds: dict[str, list[float]] = {weights: [] for weights in files}
        for number, weights in interleave(list(files), arguments.rounds, report):
            profile = folder / f"{weights}-{number}"
            speeds[weights].append(characters_per_second(program, files[weights], profile, arguments.tokens))
        rows = {
            weights: {"characters_per_second": speeds[weights], "bytes": file.stat().st_size}
            for weights, file in files.items()
        }
    table = make_table(f"A page that writes {arguments.tokens} characters", rows, COLUMNS, NOTE)
    return finish(arguments, [table], {**facts, "tokens": arguments.tokens, "rows": rows})


def _export(checkpoint: Path, weights: str, folder: Path) -> Path:
    import torch

    from gpt.checkpoint import load_trained
    from gpt.interop.html import render_model_page

    loaded = load_trained(checkpoint, Path("runs"), torch.device("cpu"))
    file = folder / f"{weights}.html"
    page = render_model_page(loaded.model, loaded.tokenizer, weights, loaded.config.sample, "", "", "")
    file.write_text(page, encoding="utf-8")
    return file


def characters_per_second(program: str, file: Path, profile: Path, count: int) -> float:
    """Return the speed that the page itself says after it has written so many characters."""
    from tests.browser import Browser

    with Browser(program, profile) as browser, browser.open(file.as_uri()) as page:
        page.run(f"document.getElementById('count').value = {count}")
        page.point("document.getElementById('write-button')", click=True)
        status = "document.querySelector('.status').textContent"
        page.wait_for(f"{status}.includes('written with seed')", seconds=600)
        found = re.search(r"([\d.]+) per second", page.run(status))
    assert found is not None
    return float(found[1])
