"""`python -m gpt.native`: compile and try every library for this machine.

Later commands find the libraries in the cache and do not wait for the compiler.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

from gpt.native.decoding.decoder import load_decoder
from gpt.native.training.bindings import load_kernels
from gpt.system.environment import read_settings
from gpt.system.errors import GPTError
from gpt.system.processor import supported_processors
from gpt.system.signals import unwinding


def main() -> int:
    """Compile and try the libraries for training and for decoding; return the exit code.

    Without a usable library one line is printed and the exit code is 0 all the same, since PyTorch
    computes everything without kernels.
    """
    try:
        # A first Ctrl-C raises an exception here, so that temporary files are removed.
        with unwinding():
            settings = read_settings()
            # Training has a library for each dtype; this is the dtype that suits this machine best.
            dtype = supported_processors(settings.processor)[0].matmul_dtype
            # Both at once, since a compiler uses one core.
            with ThreadPoolExecutor() as threads:
                training = threads.submit(load_kernels, dtype, settings, print)
                decoding = threads.submit(load_decoder, settings, print)
                training.result()
                decoding.result()
    except GPTError as error:
        print(f"no compiled kernels: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
