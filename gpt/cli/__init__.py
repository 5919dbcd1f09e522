"""Command-line interfaces, one module per script."""
