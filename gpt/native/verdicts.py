"""Whether a compiled library may be used on this machine.

A crash of native code ends a process, so a library is first tried by a process of its own,
`gpt.native.trial`. Its result is kept beside the library, in a file that says what was compared;
nothing but a trial writes one. While a command uses the library, a fatal signal writes the stacks
of all threads into another file. Something else may have caused it, so the library is then tried
again, and longer, and that trial decides.
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
"""Longest time of a trial.

A trial takes 5 s of processor time, but several minutes where many processes want the cores.
"""
FATAL_SIGNALS = frozenset(
    {"SIGSEGV", "SIGILL", "SIGBUS", "SIGFPE", "SIGABRT", "SIGTRAP", "SIGSYS", "SIGXCPU"}
)
"""Signals that a process sends itself, or gets for what it does.

Others, as from Ctrl-C or for lack of memory, come from outside and prove nothing.
"""
WINDOWS_EXCEPTION = 2**31
"""Least exit code of a process that an exception ended on Windows, as an access violation does."""
MISMATCH = 3
"""Exit code of a trial whose numbers differ from PyTorch's; the last line says where."""
EDITED = 4
"""Exit code of a trial without a comparison: the code that kernels stand for was edited."""
ROUNDS_AFTER_CRASH = 3
"""How often a trial repeats its comparisons where a process has crashed.

The crash may come at a later call, or need memory that was used before.
"""
MAX_BYTES = 1 << 20
"""Size of the largest result that is read; a result has some hundred bytes."""
LOGITS_ONLY = "logits"
"""What a trial of the decoding engine compares if the code of sampling was edited."""


@dataclass(frozen=True)
class TrialResult:
    """The result of a trial.

    Attributes:
        library: the file's name, with its checksum.
        processor: the class of processors that it is for.
        compared: what was compared with PyTorch's; empty if the trial did not come to its end.
        reason: why the library must not be used; None if it agrees with PyTorch.
        crash_bytes: size of the stacks of earlier crashes at the time of the trial.
    """

    library: str
    processor: str
    compared: str
    reason: str | None
    crash_bytes: int


class Trial:
    """The trial of a library for one class of processors, on this machine.

    Args:
        source: the library's source, as `find_library` takes it.
        processor: name of the class.
        folder: where results are kept.
    """

    def __init__(self, library: Path, source: str, processor: str, folder: Path) -> None:
        self._library = library
        self._source = source
        self._processor = processor
        self.path = folder / f"{library.stem}-{machine()}.trial"
        self.stacks = self.path.with_suffix(".crash")

    def unusable_reason(self, report: Report) -> str | None:
        """Return why the library must not be used, or None; without a result it is tried now.

        Raises:
            DeviceError: it cannot be tried, since the model's code was edited.
        """
        known = read_result(self.path)
        if known is not None and self._is_valid(known):
            return known.reason
        title = f"trying the {self._processor} kernels in a process of their own, once"
        with announce_if_slow(report, title):
            result = self._try()
        if isinstance(result, str):
            return result  # why it failed now; the next start tries again
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
        """Let a crash of this process write its stacks, so that the next start tries again.

        Pytest and notebooks have enabled fault handlers of their own, which stay. Commands have one
        too, which this replaces.
        """
        is_command = "gpt.cli.start" in sys.modules
        if is_command or not faulthandler.is_enabled():
            with suppress(OSError):
                faulthandler.enable(self.stacks.open("a"))

    def _is_valid(self, known: TrialResult) -> bool:
        """Return whether a result is about this library, and about all that it is used for now."""
        if (known.library, known.processor) != (self._library.name, self._processor):
            return False
        # At the time of the trial the code of sampling was edited, and that edit was undone since.
        if known.compared == LOGITS_ONLY and changed_code(SAMPLING) is None:
            return False
        # If the file of stacks has grown, a process has crashed since the trial.
        return known.crash_bytes == self._crash_bytes()

    def _crash_bytes(self) -> int:
        """Return the size of the file of stacks; 0 if no process has crashed."""
        try:
            return self.stacks.stat().st_size
        except OSError:
            return 0

    def _try(self) -> TrialResult | str:
        """Try the library and return the result.

        If the trial failed but the next one may end otherwise, as for want of memory, only the
        reason is returned, which is not to be kept.
        """
        crash_bytes = self._crash_bytes()
        rounds = ROUNDS_AFTER_CRASH if crash_bytes else 1
        code, lines = self._run_trial(rounds)
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

    def _run_trial(self, rounds: int) -> tuple[int | None, list[str]]:
        """Return the exit code of a trial and what it printed; None if it did not end by itself."""
        # With -P Python does not look for modules in the current folder, where a file may have the
        # name of one.
        command = [sys.executable, "-P", "-m", "gpt.native.trial"]
        command += [self._source, self._processor, str(self._library), str(rounds)]
        try:
            done = subprocess.run(
                command,
                timeout=SECONDS,
                check=False,
                env=child_environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
            )
        except subprocess.TimeoutExpired:
            return None, [f"did not end within {SECONDS} s"]
        except OSError as error:
            return None, [str(error)]
        # The last line is the one that the trial has printed as its result.
        return done.returncode, [*done.stderr.splitlines(), *done.stdout.splitlines()]


def read_result(path: Path) -> TrialResult | None:
    """Return the result in a file; None where there is no file, or it is damaged or empty."""
    try:
        result = TrialResult(**parse_json(read_file(path, MAX_BYTES)))
    except (OSError, ValueError, TypeError):
        return None
    texts = (result.library, result.processor, result.compared, result.reason or "")
    are_texts = all(isinstance(text, str) for text in texts)
    says_what = bool(result.compared or result.reason)
    is_whole = are_texts and says_what and isinstance(result.crash_bytes, int)
    return result if is_whole else None


def any_failed(folder: Path) -> bool:
    """Return whether a library in a folder, maybe of older sources, has failed on this machine."""
    results = [read_result(path) for path in folder.glob(f"*-{machine()}.trial")]
    return any(result is not None and result.reason is not None for result in results)


def _why_trial_failed(code: int | None, lines: list[str]) -> str:
    if code is None:
        return f"a trial of them {lines[-1]}"
    if code == MISMATCH:
        return f"in a trial of them {lines[-1]}"
    if code < 0:
        return f"a trial of them ended with {signal.Signals(-code).name}"
    return f"a trial of them ended with code {code}: {''.join(lines[-1:])}"


def _is_final(code: int | None) -> bool:
    """Return whether the next trial would end with the same code."""
    if code is None:
        return False  # it was too slow, or could not be started
    if code < 0:  # Python's code for a signal
        return signal.Signals(-code).name in FATAL_SIGNALS
    return code == MISMATCH or code >= WINDOWS_EXCEPTION


@cache
def machine() -> str:
    """Return a hash of what decides how a trial ends, apart from the library itself.

    That is the processor, the release of the system's kernel, torch, since its OpenMP may make the
    library crash, and the code that the library is compared with.
    """
    about = [platform.machine(), platform.processor(), platform.release(), version("torch")]
    # the hashes of that code
    about.append(FINGERPRINT.read_text(encoding="utf-8"))
    # On Linux this file describes each core, with an empty line between them. The first one is
    # enough, without the lines that change, such as the clock.
    with suppress(OSError):
        first_core, _, _ = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")
        pattern = r"^(?:model name|microcode|flags|Features)\s*:.*$"
        about += re.findall(pattern, first_core, re.MULTILINE)
    # The hash ends a file's name: eight digits tell apart the few machines that share a cache.
    digest = hashlib.sha256("\n".join(about).encode()).hexdigest()
    return digest[:8]
