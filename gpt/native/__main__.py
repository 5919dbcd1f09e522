"""`python -m gpt.native`: compile and try every library for this machine.

Later commands find the libraries in the cache and do not wait for the compiler.
"""

import argparse
import subprocess
import sys

from gpt.native.decoding.decoder import load_decoder
from gpt.native.training.bindings import load_kernels
from gpt.system.environment import child_environment, read_settings
from gpt.system.errors import GPTError, quoted
from gpt.system.processor import supported_processors
from gpt.system.signals import unwinding

DECODING = "decoding"
"""The argument of the process that compiles the library for decoding alone."""


def main(*words: str) -> int:
    """Compile and try the libraries for training and for decoding; return the exit code.

    Without a usable library one line is printed and the exit code is 0 all the same, since PyTorch
    computes everything without kernels. The exit code is 2 for a word that is not known.
    """
    parser = argparse.ArgumentParser(
        prog="python -m gpt.native",
        description="Compile and try the compiled kernels for this machine.",
        allow_abbrev=False,
    )
    # The parser has --help alone. DECODING is left over too, since it is no word for users.
    _, left_words = parser.parse_known_args(words)
    if left_words not in ([], [DECODING]):
        unrecognized = quoted(" ".join(left_words))
        print(
            f"error: unrecognized arguments: {unrecognized}; see {parser.prog} --help",
            file=sys.stderr,
        )
        return 2
    try:
        # A first Ctrl-C raises an exception here, so that temporary files are removed.
        with unwinding():
            if left_words:
                load_decoder(read_settings(), print)
            else:
                _compile_both()
    except GPTError as error:
        print(f"no compiled kernels: {error}", file=sys.stderr)
    return 0


def _compile_both() -> None:
    """Compile and try both libraries at once, since a compiler uses one core.

    The library for decoding is compiled by a child process, which a signal to this one ends, too.
    """
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "gpt.native", DECODING],
        env=child_environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    # The process is a context, which waits for its end.
    with child:
        try:
            settings = read_settings()
            # Training has a library for each dtype; this is the dtype that suits this machine best.
            dtype = supported_processors(settings.processor)[0].matmul_dtype
            load_kernels(dtype, settings, print)
            _, messages = child.communicate()
        except BaseException:
            child.terminate()
            raise
    # Printed only here, since both libraries mostly fail for one reason.
    print(messages, end="", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
