"""`gpt recipes`: the configurations that ship with the package."""

import argparse
import json
import sys
from typing import Any

from gpt.cli.command import load_torch
from gpt.cli.explain.options import with_vocabulary
from gpt.cli.shared_options import command
from gpt.cli.tables import human_count
from gpt.config.loading import load_config
from gpt.config.recipes import about, find_recipe, recipe_names


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="print this recipe, as a start of your own")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


@command("recipes", "List the recipes that ship with the package, or print one.", "quickstart > my.yaml", _add_options)
def main(arguments: argparse.Namespace) -> int:
    if arguments.name is not None:
        sys.stdout.write(find_recipe(arguments.name).read_text(encoding="utf-8"))
        return 0
    rows = [_row(name) for name in recipe_names()]
    if arguments.json:
        print(json.dumps({"recipes": rows}))
        return 0
    for row in rows:
        counts = f"{human_count(row['parameters'])} parameters, {human_count(row['flops'], 'FLOP')} in all"
        print(f"{row['name']:24} {counts}\n    {row['about']}")
    print("\ntrain one:      gpt train --config quickstart")
    print("your own text:  gpt new my.txt")
    return 0


def _row(name: str) -> dict[str, Any]:
    load_torch()
    from gpt.accounting.flops import run_flops
    from gpt.accounting.parameters import count_parameters

    path = find_recipe(name)
    config = with_vocabulary(load_config(path).config, name).config
    counts = {"parameters": count_parameters(config.model).total, "flops": run_flops(config)}
    return {"name": name, "about": about(path), **counts}
