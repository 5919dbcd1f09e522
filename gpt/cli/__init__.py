"""Command-line interfaces, one module per script."""

import sys

if sys.argv[0] == "-m":  # `python -m gpt.cli.sample`, which would define functions and end
    print(f"error: the modules of gpt.cli are no programs; run: {sys.executable} -m gpt COMMAND", file=sys.stderr)
    raise SystemExit(2)
