"""`python -m docs.site`: build the site, check one chapter, or write the notebooks."""

import argparse
import subprocess
import sys
import time
from pathlib import Path

from docs.site.build import build
from docs.site.chapters import ChapterError, execute, problems
from docs.site.pages import page


def check(path: Path, work: Path, output: Path | None) -> None:
    """Check and execute a chapter, and write its page if asked to.

    Raises:
        ChapterError: what is wrong, a line each.
    """
    if found := list(problems(path)):
        raise ChapterError("\n".join(found))
    start = time.monotonic()
    notebook = execute(path, work)
    if output:
        output.write_text(page(notebook, path.stem), encoding="utf-8")
    print(f"{path}: {time.monotonic() - start:.1f} s")


def main() -> int:
    """Run a subcommand; return 0, or 2 with a line on each mistake of a chapter."""
    parser = argparse.ArgumentParser(prog="python -m docs.site", description=__doc__)
    commands = parser.add_subparsers(required=True, dest="command")
    building = commands.add_parser("build", help="build the site")
    building.add_argument("folder", type=Path, nargs="?", default=Path("build"), help="it will be in FOLDER/site")
    building.add_argument("--no-outputs", action="store_true", help="do not execute the chapters")
    checking = commands.add_parser("check", help="execute chapters and say which cell fails")
    checking.add_argument("chapters", type=Path, nargs="+")
    checking.add_argument("--output", type=Path, help="write the page, in Markdown")
    checking.add_argument("--work", type=Path, default=Path("build/book"), help="its runs/ are kept between calls")
    options = parser.parse_args()
    try:
        if options.command == "build":
            site = build(options.folder.resolve(), is_executed=not options.no_outputs)
            print(f"the site is {site / 'index.html'}")
            return 0
        for path in options.chapters:
            check(path, options.work, options.output)
    except (ChapterError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
