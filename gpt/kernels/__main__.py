"""`python -m gpt.kernels`: compile every library for this machine, so that no other command has to wait for it."""

import sys

from gpt.errors import GPTError
from gpt.kernels.build import load_library
from gpt.processor import choose_processor
from gpt.settings import read_settings

LIBRARIES = ("training/training.cpp", "decoding/engine.cpp")


def main() -> int:
    """Compile what the cache does not have; a library that cannot be had is one line, for torch can do without."""
    settings = read_settings()
    failures = []
    for source in LIBRARIES:
        try:
            load_library(source, choose_processor(settings.processor), settings.cache_dir, print)
        except GPTError as error:
            failures.append(f"no compiled kernels: {error}")
    for line in dict.fromkeys(failures):
        print(line, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
