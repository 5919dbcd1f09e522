"""`gpt explain picture`: the whole model as one picture, as an HTML page."""

import argparse

from gpt.cli.command import report
from gpt.cli.explain.model_options import load_model
from gpt.cli.explain.text_options import add_prompt_option, read_ids
from gpt.cli.shared_options import add_checkpoint_options, not_empty, write_output
from gpt.progress import announced

SUMMARY = "Draw a trained model as one picture, with the numbers of a text, as an HTML page."
EXAMPLE = '--prompt "To be, or not to be" --html picture.html'


def add_options(parser: argparse.ArgumentParser) -> None:
    add_checkpoint_options(parser)
    add_prompt_option(parser)
    page = "write the page, which needs no network, to this file"
    parser.add_argument("--html", required=True, type=not_empty, metavar="FILE", help=page)


def run(arguments: argparse.Namespace) -> None:
    loaded = load_model(arguments)
    idx = read_ids(arguments, loaded)

    from gpt.inspection.rendering.pages import render_page
    from gpt.inspection.views.picture import picture_view

    with announced(report, f"computing the picture of {len(idx)} tokens"):
        view = picture_view(loaded.model, loaded.tokenizer, idx)
    page = render_page("picture", view, "The model as one picture", str(loaded.folder))
    write_output(arguments.html, page.encode())
    print(arguments.html)
