"""Errors a user can cause. Each message says what is wrong, where, and what to do.

Command lines print them as one line and exit with `exit_code`; anything that is not a
`GPTError` is a bug and keeps its traceback.
"""


class GPTError(Exception):
    """Base class of the errors that a user can cause and fix."""

    exit_code = 2


class GPTWarning(UserWarning):
    """A warning to a user: the command goes on."""


class ConfigError(GPTError):
    """A configuration file, override or option is wrong."""


class DataError(GPTError):
    """A corpus, token file or text cannot be used."""


class UnknownCharactersError(DataError):
    """A text has characters that a vocabulary lacks."""


class CheckpointError(GPTError):
    """A checkpoint or run folder is missing, damaged, foreign or cannot be written."""


class DeviceError(GPTError):
    """The requested device, dtype or compiler is not available."""


class InputError(GPTError, ValueError):
    """The model cannot compute with these token ids or shapes."""


class GenerationError(GPTError):
    """A prompt or sampling parameter cannot be used."""


class NonFiniteError(GPTError):
    """The loss or a gradient became NaN or infinite; the weights are as before the update."""

    exit_code = 3


class ProcessLostError(GPTError):
    """Another process of a distributed training has ended."""

    exit_code = 1


class PeerError(GPTError):
    """Another process of a distributed training has failed and reports its error.

    This process exits silently with the other one's code.
    """

    def __init__(self, exit_code: int) -> None:
        super().__init__("another process reports the error")
        self.exit_code = exit_code


def quoted(text: str, most: int = 300) -> str:
    """Return foreign text for a message: in one line, shortened, with control characters escaped.

    Control characters could make a terminal show something else.
    """
    cut = text if len(text) <= most else text[:most] + "..."
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in cut)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type where it has none."""
    return quoted(str(error).partition("\n")[0]) or type(error).__name__


def explained(error: BaseException) -> str:
    """Return what a library's error says, in words that fit into a message."""
    if isinstance(error, KeyError) and error.args:
        # The text of a KeyError is the missing key alone.
        return quoted(f"there is no {error.args[0]!r}")
    if isinstance(error, OSError) and error.strerror:
        # Without the number of the error and the path, which our messages state themselves.
        return error.strerror
    return first_line(error)


def outside_vocabulary(token: int, vocab_size: int) -> InputError:
    """Return the error for an id that has no embedding."""
    return InputError(
        f"token id {token} is outside the vocabulary of {vocab_size} ids (0 to {vocab_size - 1})"
    )
