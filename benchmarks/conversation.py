"""A process that is spoken to in lines of JSON: one request on its standard input, one answer on its output."""

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from benchmarks.processes import environment, failure
from gpt.errors import GPTError


class Conversation:
    """One process; the constructor returns its first answer, given without a request, in `greeting`.

    Args:
        name: shown to the user.
        command: words; the process prints nothing but answers, and ends at the end of its input.

    Raises:
        GPTError: it ends, or answers with an `error`.
    """

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self._name, self._command = name, command
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  # closed in `close`
        self._process = subprocess.Popen(
            command,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            encoding="utf-8",
        )
        try:
            self.greeting = self._read()
        except BaseException:
            self.close()
            raise

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and wait for the answer.

        Raises:
            GPTError: as for the constructor.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died; reading says how
            self._process.stdin.write(f"{json.dumps(request)}\n")
            self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._log.seek(0)
            raise GPTError(f"{self._name}: {failure(self._command, code, self._log.read())}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise GPTError(f"{self._name}: {answer['error']}")
        return answer

    def close(self) -> None:
        """End the process, which clears its folder away at the end of its input."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
