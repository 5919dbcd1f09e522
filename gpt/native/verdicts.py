"""Whether a compiled library may be used on this machine.

A crash of native code ends a process, so a library is first tried by one of its own, `gpt.native.trial`. What came of
it is kept beside the library: an empty file if all is well, else why not. While a command uses the library, a fatal
signal writes the stacks of all threads into the same file.
"""

import faulthandler
import hashlib
import platform
import re
import signal
import subprocess
import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

from gpt.system.environment import child_environment
from gpt.system.files import write_atomic
from gpt.system.progress import Report, announced

SECONDS = 600
"""Longest trial; one takes 5 s of processor time, and several minutes where many processes want the cores."""
CRASHES = ("SIGSEGV", "SIGILL", "SIGBUS", "SIGFPE", "SIGABRT", "SIGTRAP", "SIGSYS", "SIGXCPU")
"""Signals that a process sends itself; others, as from Ctrl-C or for lack of memory, prove nothing."""
DIFFERS, EDITED = 3, 4
"""Exit codes of a trial: numbers differ, printed as a line; the code that they are compared with was edited."""


class Verdict:
    """What is known of a library of a source, for a processor class of this name, on this machine."""

    def __init__(self, library: Path, source: str, name: str, folder: Path) -> None:
        self._source, self._name, self._library = source, name, library
        self.path = folder / f"{library.stem}-{machine()}.trial"

    def why_not(self, report: Report) -> str | None:
        """Return why the library must not be used; None if it may. One without a verdict is tried now."""
        with suppress(OSError):
            return self._read()
        with announced(report, f"trying the {self._name} kernels in a process of their own, once"):
            reason, is_final = self._try()
        if is_final:
            with suppress(OSError):
                write_atomic(self.path, (reason or "").encode())
        return reason

    def watch(self) -> None:
        """Let a crash in a command write its stacks where `why_not` looks; pytest and notebooks keep their own way."""
        if "gpt.cli.start" in sys.modules or not faulthandler.is_enabled():
            with suppress(OSError):
                faulthandler.enable(self.path.open("a"))

    def _read(self) -> str | None:
        text = self.path.read_text(encoding="utf-8", errors="replace")
        reason, crash, stacks = text.partition("Fatal Python error: ")
        if crash and f"native/{self._source.split('/')[0]}/" in stacks.replace("\\", "/"):
            ended = stacks.partition("\n")[0].lower()
            return f"a process ended in them with a {ended} ({self.path} has its stack; remove it to try them again)"
        return reason.strip() or None

    def _try(self) -> tuple[str | None, bool]:
        """Return how a trial failed, or None, and whether the next one would end alike."""
        command = [sys.executable, "-m", "gpt.native.trial", self._source, self._name, str(self._library)]
        options = {"env": child_environment(), "stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
        try:
            done = subprocess.run(command, timeout=SECONDS, check=False, **options)  # type: ignore[call-overload]
        except (OSError, subprocess.TimeoutExpired) as error:
            ended = f"did not end within {SECONDS} s" if isinstance(error, subprocess.TimeoutExpired) else str(error)
            return f"a trial of them {ended}", False
        code, lines = done.returncode, [*done.stderr.splitlines(), *done.stdout.splitlines()]
        if code in (0, EDITED):
            return None, code == 0
        if code == DIFFERS:
            return f"in a trial of them {lines[-1]}", True
        if code < 0:
            name = signal.Signals(-code).name
            return f"a trial of them ended with {name}", name in CRASHES
        return f"a trial of them ended with code {code}: {''.join(lines[-1:])}", code >= 2**31  # a crash on Windows


@cache
def machine() -> str:
    """Return a hash of what decides whether a library crashes: processor, kernel release, and torch's OpenMP."""
    about = [platform.machine(), platform.processor(), platform.release(), version("torch")]
    with suppress(OSError):
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0]
        about += re.findall(r"^(?:model name|microcode|flags|Features)\s*:.*$", first, re.MULTILINE)
    return hashlib.sha256("\n".join(about).encode()).hexdigest()[:8]
