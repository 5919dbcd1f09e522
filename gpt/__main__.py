"""`python -m gpt`, and the command `gpt` of an installed package."""

from typing import NoReturn

from gpt.cli.start import start


def main() -> NoReturn:
    """Run a command, and exit with its code."""
    start("gpt.cli.commands")


if __name__ == "__main__":
    main()
