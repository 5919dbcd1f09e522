"""Errors a user can cause. Each message says what is wrong, where, and what to do.

Command lines print them as one line and exit with `exit_code`; anything that is not a
`GPTError` is a bug and keeps its traceback.
"""


class GPTError(Exception):
    """Base class of the errors that a user can cause and fix."""

    exit_code = 2


class GPTWarning(UserWarning):
    """Something that a user may not expect, and that does not keep a command from its work."""


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
    """The model cannot take these token ids or shapes."""


class GenerationError(GPTError):
    """A prompt or sampling parameter cannot be used."""


class NonFiniteError(GPTError):
    """The loss or a gradient became NaN or infinite; the weights are as before the update."""

    exit_code = 3


class ProcessLostError(GPTError):
    """Another process of a distributed training has ended."""

    exit_code = 1


class PeerError(GPTError):
    """An error that another process of a distributed training reports; this one ends, with its code, without a word."""

    def __init__(self, exit_code: int) -> None:
        super().__init__("another process reports the error")
        self.exit_code = exit_code


def quoted(text: str, most: int = 300) -> str:
    """Return foreign text as part of a message in one line: shortened, without characters that steer a terminal."""
    cut = text if len(text) <= most else text[:most] + "..."
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in cut)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type where it has none."""
    return quoted(str(error).partition("\n")[0]) or type(error).__name__


def explained(error: BaseException) -> str:
    """Return what a library's error says, for a message of ours: a KeyError's text alone is a name without a verb."""
    if isinstance(error, KeyError) and error.args:
        return quoted(f"there is no {error.args[0]!r}")
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return first_line(error)


def outside_vocabulary(token: int, vocab_size: int) -> InputError:
    """Return the error for an id that has no embedding."""
    return InputError(f"token id {token} is outside the vocabulary of {vocab_size} ids (0 to {vocab_size - 1})")
