"""Decide whether a compiled library may be used on this machine.

A crash of native code ends its process, so another process, `gpt.native.trial`, tries a library
before it is used. The result of the trial is stored beside the library. If a command crashes while
it uses the library, the stacks of its threads are written to another file. The library need not
have caused the crash, so the next command has the library tried again, with more rounds, and the
result of that trial counts.
"""

import faulthandler
import hashlib
import json
import platform
import re
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

from gpt.native.fingerprint import FINGERPRINT, SAMPLING, changed_code
from gpt.system.environment import child_environment
from gpt.system.errors import DeviceError
from gpt.system.files import parse_json, read_file, write_atomic
from gpt.system.progress import Report, announce_if_slow

SECONDS = 600
"""Time limit of a trial.

A trial takes 5 s of processor time, but minutes if many other processes use the cores.
"""
FATAL_SIGNALS = frozenset(
    {"SIGSEGV", "SIGILL", "SIGBUS", "SIGFPE", "SIGABRT", "SIGTRAP", "SIGSYS", "SIGXCPU"}
)
"""Signals that show that a process crashed or used too much processor time.

Other signals come from outside, as from Ctrl-C or for lack of memory, and say nothing about the
library.
"""
WINDOWS_EXCEPTION = 2**31
"""Smallest exit code on Windows of a process that crashed, as by an access violation."""
WINDOWS_INTERRUPT = 0xC000013A
"""Exit code on Windows of a process that Ctrl-C ended, which says nothing about the library."""
MISMATCH = 3
"""Exit code of a trial that found different results than PyTorch's; its last line says where."""
EDITED = 4
"""Exit code of a trial that compared nothing, since the code to compare with was edited."""
ROUNDS_AFTER_CRASH = 3
"""How often a trial makes its comparisons after a process has crashed.

The library may crash only at a later call, or only with memory that was used before.
"""
MAX_BYTES = 1 << 20
"""Size of the largest file that is read as a result; results have a few hundred bytes."""
LOGITS_ONLY = "logits"
"""What a trial of the decoder says that it compared, if the code of sampling was edited."""


@dataclass(frozen=True)
class TrialResult:
    """The result of a trial.

    Attributes:
        library: name of the library's file, which has a checksum of the file.
        processor: name of the processor class that the library was compiled for.
        compared: what was compared with PyTorch's results; empty if the trial failed.
        reason: why the library must not be used; None if it agrees with PyTorch.
        crash_bytes: size of the file of stacks at the time of the trial.
    """

    library: str
    processor: str
    compared: str
    reason: str | None
    crash_bytes: int


class TrialProcess:
    """A process that tries a library, and may crash; a context, at whose end it is killed.

    The process imports torch when it starts, which takes a second, and then waits for the name of
    the library, which may be compiled meanwhile.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "TrialProcess":
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None:
            # The process is a context too, which closes its pipes and waits for its end.
            with self._process:
                self._process.kill()

    def start(self) -> None:
        """Start the process; raise OSError if the system cannot."""
        # With -P Python does not import files of the current folder, which may have the name of a
        # module.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "gpt.native.trial", "-"],
            env=child_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str) -> tuple[int | None, list[str]]:
        """Run the trial; return its exit code and the lines that it printed, the result last.

        The exit code is None if the trial took too long or could not be started.

        Args:
            words: the arguments of `gpt.native.trial.main`.
        """
        try:
            # A process that was started early may have ended already, for lack of memory, perhaps.
            if self._process is None or self._process.poll() is not None:
                self.start()
            assert self._process is not None  # for mypy
            output, errors = self._process.communicate(json.dumps(words), timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return None, [f"did not end within {SECONDS} s"]
        except OSError as error:
            return None, [str(error)]
        # The result is the last line of standard output, so standard error comes first.
        return self._process.returncode, [*errors.splitlines(), *output.splitlines()]


class Trial:
    """The trial of a library on this machine.

    Args:
        library: path of the library.
        source: the library's source, as in `find_library`.
        processor: name of the processor class that the library was compiled for.
        folder: folder of the results.
    """

    def __init__(self, library: Path, source: str, processor: str, folder: Path) -> None:
        self._library = library
        self._source = source
        self._processor = processor
        self.path = folder / f"{library.stem}-{machine()}.trial"
        self.stacks = self.path.with_suffix(".crash")

    def unusable_reason(self, process: TrialProcess, report: Report) -> str | None:
        """Return why the library must not be used, or None; try it if no valid result is stored.

        Args:
            process: tries the library, unless a valid result is stored.

        Raises:
            DeviceError: the library cannot be tried, since the model's code was edited.
        """
        stored = read_result(self.path)
        if stored is not None and self._is_valid(stored):
            return stored.reason
        title = f"trying the {self._processor} kernels in a process of their own, once"
        with announce_if_slow(report, title):
            result = self._try(process)
        if isinstance(result, str):
            return result  # a reason that is not stored, so that the next start tries again
        try:
            write_atomic(self.path, json.dumps(asdict(result)).encode())
        except OSError as error:
            report(
                f"the {self._processor} kernels are tried at every start, which takes seconds: "
                f"{self.path.parent} cannot be written ({error.strerror}); "
                "XDG_CACHE_HOME may name another folder"
            )
        return result.reason

    def watch(self) -> None:
        """Write stacks to a file if this process crashes, so that the next start tries again."""
        # A fault handler that pytest or a notebook has enabled is left alone. That of a command of
        # this package is replaced.
        is_command = "gpt.cli.start" in sys.modules
        if is_command or not faulthandler.is_enabled():
            # In a read-only cache the crash is not noted.
            with suppress(OSError):
                faulthandler.enable(self.stacks.open("a"))

    def _is_valid(self, stored: TrialResult) -> bool:
        """Return whether a stored result still says whether the library may be used."""
        if (stored.library, stored.processor) != (self._library.name, self._processor):
            return False
        # If the code of sampling was edited at the time of the trial, only logits were compared. If
        # that edit was undone since, the library would be used for sampling too, without a trial.
        if stored.compared == LOGITS_ONLY and changed_code(SAMPLING) is None:
            return False
        # A process that crashes appends its stack to the file `self.stacks`. If the file has
        # another size than at the trial, a process has crashed since.
        return stored.crash_bytes == self._crash_bytes()

    def _crash_bytes(self) -> int:
        """Return the size of the file of stacks; 0 if no process has crashed."""
        try:
            return self.stacks.stat().st_size
        except OSError:
            return 0

    def _try(self, process: TrialProcess) -> TrialResult | str:
        """Try the library and return the result, which is stored.

        If the trial failed but another one may succeed, for example with more memory, return only
        the reason, which is not stored.
        """
        # The size is read before the trial: if another process crashes while it runs, the file of
        # stacks gets larger than the result says, which makes the result invalid.
        crash_bytes = self._crash_bytes()
        rounds = ROUNDS_AFTER_CRASH if crash_bytes else 1
        code, lines = process.run(self._source, self._processor, str(self._library), str(rounds))
        if code == EDITED:
            raise DeviceError(lines[-1])
        if code == 0:
            return TrialResult(self._library.name, self._processor, lines[-1], None, crash_bytes)
        reason = _why_trial_failed(code, lines)
        if not _is_final(code):
            return reason
        if crash_bytes:
            where = f"{self.stacks} has its stack; remove it to try them again"
            reason = f"a process that used them has crashed ({where}), and {reason}"
        return TrialResult(self._library.name, self._processor, "", reason, crash_bytes)


def read_result(path: Path) -> TrialResult | None:
    """Return the result in a file, or None if the file is missing or damaged."""
    try:
        # With other keys than the attributes, the constructor raises a TypeError.
        result = TrialResult(**parse_json(read_file(path, MAX_BYTES)))
    except (OSError, ValueError, TypeError):
        return None
    # JSON may have values of other types than the attributes have.
    texts = (result.library, result.processor, result.compared, result.reason or "")
    are_texts = all(isinstance(text, str) for text in texts)
    has_outcome = bool(result.compared or result.reason)
    is_complete = are_texts and has_outcome and isinstance(result.crash_bytes, int)
    return result if is_complete else None


def was_tried(folder: Path, source: str) -> bool:
    """Return whether a folder has the result of a trial of a source on this machine."""
    try:
        return any(folder.glob(f"{Path(source).stem}-*-{machine()}.trial"))
    except OSError:  # a folder of another user
        return False


def any_failed(folder: Path) -> bool:
    """Return whether some library in a folder has failed its trial on this machine.

    Libraries of older versions of the sources count too.
    """
    results = [read_result(path) for path in folder.glob(f"*-{machine()}.trial")]
    return any(result is not None and result.reason is not None for result in results)


def _why_trial_failed(code: int | None, lines: list[str]) -> str:
    """Return the reason for a message, from a trial's exit code and the lines that it printed."""
    if code is None:
        return f"a trial of them {lines[-1]}"
    if code == MISMATCH:
        return f"in a trial of them {lines[-1]}"
    if code < 0:  # Python's code for a process that a signal ended
        return f"a trial of them ended with {signal.Signals(-code).name}"
    last_line = "".join(lines[-1:])  # empty if nothing was printed
    return f"a trial of them ended with code {code}: {last_line}"


def _is_final(code: int | None) -> bool:
    """Return whether another trial would most likely end with the same exit code."""
    if code is None:
        return False  # the trial was too slow, or could not be started
    if code < 0:  # Python's code for a process that a signal ended
        return signal.Signals(-code).name in FATAL_SIGNALS
    # Other codes, such as Python's 1 after an exception, may have a cause that passes, such as a
    # lack of memory.
    has_crashed = code >= WINDOWS_EXCEPTION and code != WINDOWS_INTERRUPT
    return code == MISMATCH or has_crashed


@cache
def machine() -> str:
    """Return a hash of all that the result of a trial depends on, apart from the library."""
    # The first facts are the processor and the version of the operating system's kernel.
    facts = [platform.machine(), platform.processor(), platform.release()]
    # The libraries share torch's OpenMP library, another version of which may make them crash.
    facts.append(version("torch"))
    # The fingerprint has hashes of the Python code that the results were compared with.
    facts.append(FINGERPRINT.read_text(encoding="utf-8"))
    # On Linux this file describes each core, with an empty line between two cores. The lines of the
    # first core that never change are enough; others, such as its clock rate, change all the time.
    with suppress(OSError):
        first_core, _, _ = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")
        pattern = r"^(?:model name|microcode|flags|Features)\s*:.*$"
        facts += re.findall(pattern, first_core, re.MULTILINE)
    digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()
    return digest[:8]  # enough to tell apart the few machines that share a cache folder
