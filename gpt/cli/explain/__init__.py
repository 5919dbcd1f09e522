"""`gpt explain`: look inside a model, with one module per view."""

from collections.abc import Sequence

from gpt.cli.command import CommandParser, run_command
from gpt.cli.explain import attention, flops, lens, memory, params, shapes
from gpt.cli.shared_options import load_given_plugins
from gpt.system.invocation import command_line

VIEWS = (shapes, attention, lens, params, flops, memory)
"""Each has a SUMMARY, the options of an EXAMPLE, `add_options(parser)` and `run(arguments)`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Show a view, and return the exit code."""
    return run_command(lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> int:
    parser = CommandParser(
        "Look inside a model: its shapes, attention, predictions, parameters, FLOPs and memory.",
        'attention --prompt "To be, or not" --layer 2 --head 1',
        prog=command_line("explain"),
    )
    subparsers = parser.add_subparsers(
        required=True, metavar="VIEW", title="views (each has its own --help)"
    )
    for view in VIEWS:
        name = view.__name__.rpartition(".")[2]  # that of the module, without its package
        options = subparsers.add_parser(
            name, help=view.SUMMARY, description=view.SUMMARY, example=view.EXAMPLE
        )
        options.set_defaults(run=view.run)
        view.add_options(options)
    arguments, unknown = parser.parse_known_args(argv)
    # Overrides, section.key=value, are no arguments that argparse knows; see `add_model_options`.
    if "overrides" in arguments:
        arguments.overrides = [text for text in unknown if not text.startswith("-")]
        unknown = [text for text in unknown if text.startswith("-")]
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    load_given_plugins(arguments)  # first, since a configuration may name what they add
    arguments.run(arguments)
    return 0
