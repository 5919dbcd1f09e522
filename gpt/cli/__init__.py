"""Command lines: arguments in, lines out; one module per script."""
