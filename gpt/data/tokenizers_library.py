"""The `tokenizers` library, which an extra of the package installs, and its errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from gpt.system.errors import DataError, first_line


def require_library(what: str) -> None:
    """Raise DataError if the library is not installed; the message says that `what` needs it."""
    if find_spec("tokenizers") is None:
        raise DataError(f"{what} needs the tokenizers package: pip install 'glassgpt[bpe]'")


@contextmanager
def library_errors(what: str) -> Iterator[None]:
    """Turn every exception of the library, and every panic of its Rust code, into a DataError.

    Args:
        what: what the message says before the first line of the error.
    """
    try:
        yield
    except BaseException as error:
        # A panic is a BaseException, as KeyboardInterrupt is, which must pass through.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise DataError(f"{what}: {first_line(error)}") from None
