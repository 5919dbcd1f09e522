"""`scripts/export.py`: write a trained model in a format that other programs read."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from gpt.cli.command import CommandParser, load_torch, report, run_command
from gpt.cli.explain.output_options import write_file
from gpt.cli.shared_options import add_checkpoint_options, to_path
from gpt.cli.tables import human_bytes
from gpt.errors import GPTError

FORMATS = ("html",)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 2 a user's mistake, 130 stopped."""
    return run_command(lambda: _run(_parse(argv)))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = CommandParser(
        "Write a trained model in another format. html: one file that runs the model in any browser, offline.",
        'python scripts/export.py --to html --checkpoint runs/shakespeare --prompt "ROMEO:" --output shakespeare.html',
    )
    parser.add_argument("--to", choices=FORMATS, required=True, help="format to write")
    add_checkpoint_options(parser, with_device=False)
    parser.add_argument(
        "--weights",
        choices=("fp16", "int8", "float32"),
        default="fp16",
        help="format of the weights in the page; int8 makes the smallest file (default: fp16)",
    )
    parser.add_argument("--prompt", default="", metavar="TEXT", help="prompt that the page starts with (default: none)")
    parser.add_argument("--output", type=to_path, required=True, metavar="FILE", help="file to write")
    return parser.parse_args(argv)


def _run(arguments: argparse.Namespace) -> int:
    output: Path = arguments.output
    if output.is_dir():
        raise GPTError(f"{output} is a folder; --output names a file")
    if not output.parent.is_dir():
        raise GPTError(f"{output.parent} is not a folder; make it first, or choose another --output")

    load_torch()
    import torch

    from gpt.checkpoint import load_trained
    from gpt.interop.html import render_model_page

    loaded = load_trained(arguments.checkpoint, arguments.runs, torch.device("cpu"))
    model, config = loaded.model, loaded.config
    count = sum(parameter.numel() for parameter in model.parameters())
    shape = config.model
    note = (
        f"{count:,} parameters: {shape.n_layer} layers, {shape.n_head} heads, width {shape.n_embd}, context of "
        f"{shape.block_size} tokens; {arguments.weights} weights. The model runs in this page; nothing leaves it."
    )
    title = config.run.name or loaded.folder.name
    page = render_model_page(model, loaded.tokenizer, arguments.weights, config.sample, arguments.prompt, title, note)
    write_file(str(output), page.encode())
    report(f"{loaded.folder}: written to {output}, {human_bytes(len(page.encode()))}; open it in a browser")
    return 0
