"""`python -m gpt.native`: compile and try every library for this machine.

No other command has to wait for that later.
"""

import sys

from gpt.native.decoding.decoder import load_decoder
from gpt.native.training.bindings import load_kernels
from gpt.system.environment import read_settings
from gpt.system.errors import GPTError
from gpt.system.processor import supported_processors
from gpt.system.signals import unwinding


def main() -> int:
    """Compile; without a compiler print one line and succeed, since torch works without kernels."""
    try:
        with unwinding():
            settings = read_settings()
            # The type that a training on this machine prefers.
            dtype = supported_processors(settings.processor)[0].matmul_dtype
            load_kernels(dtype, settings, print)
            load_decoder(settings, print)
    except GPTError as error:
        print(f"no compiled kernels: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
