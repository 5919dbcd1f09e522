"""The `tokenizers` library, which an extra of the package installs, and its errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from gpt.system.errors import DataError, first_line


def require_library(what: str) -> None:
    """Raise DataError where the library is not installed; `what` needs it."""
    if find_spec("tokenizers") is None:
        raise DataError(f"{what} needs the tokenizers package: pip install 'glassgpt[bpe]'")


@contextmanager
def library_errors(what: str) -> Iterator[None]:
    """Turn whatever the library raises into a DataError.

    Plain exceptions, and the panics of its Rust code.
    """
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise DataError(f"{what}: {first_line(error)}") from None
