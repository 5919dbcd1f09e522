"""Whether a compiled library may be used on this machine.

A crash of native code ends a process, so a library is first tried by one of its own, `gpt.native.trial`. What came of
it is kept beside the library, in a record that says what was compared. While a command uses the library, a fatal signal
writes the stacks of all threads into another file. Something else may have caused it, so the library is then tried
again, and longer.
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
from gpt.system.progress import Report, announced

SECONDS = 600
"""Longest trial; one takes 5 s of processor time, and several minutes where many processes want the cores."""
CRASHES = ("SIGSEGV", "SIGILL", "SIGBUS", "SIGFPE", "SIGABRT", "SIGTRAP", "SIGSYS", "SIGXCPU")
"""Signals that a process sends itself; others, as from Ctrl-C or for lack of memory, prove nothing."""
DIFFERS, EDITED = 3, 4
"""Exit codes of a trial: numbers differ, printed as a line; the code that they are compared with was edited."""
BELIEVED_CRASHES = 2
"""Crashes of runs that count as proof, also where trials agree with PyTorch."""
ROUNDS_AFTER_CRASH = 3
"""How often a trial repeats its comparisons where a run has crashed."""
MAX_BYTES = 1 << 20
"""Size of the largest file that is read."""
STACK = "Fatal Python error: "
"""Begins what `faulthandler` writes."""
LOGITS_ONLY = "logits"
"""What a trial of the engine prints if the code of sampling was edited: tokens have nothing to be compared with."""


@dataclass(frozen=True)
class Record:
    """What came of a trial.

    Attributes:
        library: the file's name, with its checksum.
        processor: the class of processors that it is for.
        compared: what was compared with PyTorch's; empty if the trial did not come to its end.
        reason: why the library must not be used; None: it agrees.
        crashes: number of crashes in runs that were known.
    """

    library: str
    processor: str
    compared: str
    reason: str | None
    crashes: int


class Verdict:
    """What is known of a library of a source, for a processor class of this name, on this machine."""

    def __init__(self, library: Path, source: str, name: str, folder: Path) -> None:
        self._source, self._name, self._library = source, name, library
        self.path = folder / f"{library.stem}-{machine()}.trial"
        self.stacks = self.path.with_suffix(".crash")

    def why_not(self, report: Report) -> str | None:
        """Return why the library must not be used; None if it may. Without a record of this it is tried now.

        Raises:
            DeviceError: it cannot be tried, since the model's code was edited.
        """
        crashes = self._crashes()
        known = read_record(self.path)
        if known is not None and self._is_about_this(known, crashes):
            return known.reason
        with announced(report, f"trying the {self._name} kernels in a process of their own, once"):
            record = self._try(crashes)
        if isinstance(record, str):
            return record
        try:
            write_atomic(self.path, json.dumps(asdict(record)).encode())
        except OSError as error:
            report(
                f"the {self._name} kernels are tried at every start, which takes seconds: {self.path.parent} cannot be "
                f"written ({error.strerror}); XDG_CACHE_HOME may name another folder"
            )
        return record.reason

    def watch(self) -> None:
        """Let a crash in a command write its stacks where `why_not` looks; pytest and notebooks keep their own way."""
        if "gpt.cli.start" in sys.modules or not faulthandler.is_enabled():
            with suppress(OSError):
                faulthandler.enable(self.stacks.open("a"))

    def _is_about_this(self, known: Record, crashes: list[str]) -> bool:
        if (known.library, known.processor) != (self._library.name, self._name):
            return False
        if known.compared == LOGITS_ONLY and changed_code(SAMPLING) is None:
            return False
        return known.crashes == len(crashes)

    def _crashes(self) -> list[str]:
        """Return with which signals, in words, processes ended in the kernels, as far as stacks can tell."""
        try:
            text = read_file(self.stacks, MAX_BYTES).decode(errors="replace")
        except OSError:
            return []
        room = f"native/{self._source.split('/')[0]}/"
        found = text.split(STACK)[1:]
        return [_in_words(stacks) for stacks in found if room in _innermost_calls(stacks)]

    def _try(self, crashes: list[str]) -> Record | str:
        """Return what came of a trial; if the next one may end otherwise, only why it failed."""
        rounds = ROUNDS_AFTER_CRASH if crashes else 1
        code, lines = self._run_trial(rounds)
        if code == EDITED:
            raise DeviceError(lines[-1])
        reason = None if code == 0 else _why_trial_failed(code, lines)
        if reason is not None and not _is_final(code):
            return reason
        if crashes and (reason is not None or len(crashes) >= BELIEVED_CRASHES):
            where = f"{self.stacks} has its stack; remove it to try them again"
            reason = f"a process ended in them with {crashes[-1]} ({where})"
        compared = lines[-1] if code == 0 else ""
        return Record(self._library.name, self._name, compared, reason, len(crashes))

    def _run_trial(self, rounds: int) -> tuple[int | None, list[str]]:
        """Return the exit code of a trial, None if it did not end by itself, and what it printed."""
        # -P: no file of the current folder takes the place of a module
        command = [sys.executable, "-P", "-m", "gpt.native.trial"]
        command += [self._source, self._name, str(self._library), str(rounds)]
        options = {"env": child_environment(), "stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
        try:
            done = subprocess.run(command, timeout=SECONDS, check=False, **options)  # type: ignore[call-overload]
        except subprocess.TimeoutExpired:
            return None, [f"did not end within {SECONDS} s"]
        except OSError as error:
            return None, [str(error)]
        return done.returncode, [*done.stderr.splitlines(), *done.stdout.splitlines()]


def read_record(path: Path) -> Record | None:
    """Return the record in a file; None where there is none, or it is not whole."""
    try:
        record = Record(**parse_json(read_file(path, MAX_BYTES)))
    except (OSError, ValueError, TypeError):
        return None
    texts = (record.library, record.processor, record.compared, record.reason or "")
    is_whole = all(isinstance(text, str) for text in texts) and isinstance(record.crashes, int)
    says_what = bool(record.compared or record.reason)
    return record if is_whole and says_what else None


def any_failed(folder: Path) -> bool:
    """Return whether a library in a folder has failed on this machine, perhaps one of older sources."""
    records = map(read_record, folder.glob(f"*-{machine()}.trial"))
    return any(record is not None and record.reason is not None for record in records)


def _in_words(stacks: str) -> str:
    """Return what ended a process, from the first line of its stacks: "a bus error", "an abort"."""
    name = stacks.partition("\n")[0].lower().removesuffix("ed")
    return f"{'an' if name[:1] in 'ai' else 'a'} {name}"


def _innermost_calls(stacks: str) -> str:
    """Return the innermost call of the thread that crashed; of every thread if that one is not Python's."""
    threads = re.findall(r"^(Current thread|Thread) 0x.*\n(.*)$", stacks.replace("\\", "/"), re.MULTILINE)
    crashed = [call for name, call in threads if name == "Current thread"]
    return "\n".join(crashed or [call for _, call in threads])


def _why_trial_failed(code: int | None, lines: list[str]) -> str:
    if code is None:
        return f"a trial of them {lines[-1]}"
    if code == DIFFERS:
        return f"in a trial of them {lines[-1]}"
    if code < 0:
        return f"a trial of them ended with {signal.Signals(-code).name}"
    return f"a trial of them ended with code {code}: {''.join(lines[-1:])}"


def _is_final(code: int | None) -> bool:
    """Return whether the next trial would end alike."""
    if code is None:
        return False
    if code < 0:
        return signal.Signals(-code).name in CRASHES
    return code in (0, DIFFERS) or code >= 2**31  # a crash on Windows


@cache
def machine() -> str:
    """Return a hash of what decides how a trial ends, beside the library.

    That is the processor, kernel release and torch's OpenMP, by which it may crash, and the code it is compared with.
    """
    about = [platform.machine(), platform.processor(), platform.release(), version("torch")]
    about.append(FINGERPRINT.read_text(encoding="utf-8"))
    with suppress(OSError):
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0]
        about += re.findall(r"^(?:model name|microcode|flags|Features)\s*:.*$", first, re.MULTILINE)
    return hashlib.sha256("\n".join(about).encode()).hexdigest()[:8]
