"""`gpt explain mathematics`: the formulas of a block, as a document in Markdown."""

import argparse

from gpt.cli.explain.walk import add_page_option, write_page

SUMMARY = "Write every formula of a block, forward and backward, as a Markdown page."
EXAMPLE = "--output mathematics.md"

add_options = add_page_option


def run(arguments: argparse.Namespace) -> None:
    from gpt.inspection.rendering.mathematics_page import mathematics_page

    write_page(arguments, mathematics_page())
