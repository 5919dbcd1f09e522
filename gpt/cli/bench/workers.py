"""Processes that train in turns: each keeps its model, and only one of them works at a time."""

import contextlib
import json
import subprocess
import tempfile
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any, Self

from gpt.cli.bench.processes import environment, failure, module_command
from gpt.errors import GPTError


@dataclass(frozen=True)
class Job:
    """What one process does.

    Attributes:
        name: shown to the user.
        kind: gpt, nanogpt or hugging_face.
        config: configuration file.
        overrides: of it.
        warmup: steps of the first turn.
        steps: of every later one.
        dtype: of a peer.
        checkout: of nanoGPT.
    """

    name: str
    kind: str
    config: str
    overrides: list[str] = field(default_factory=list)
    warmup: int = 10
    steps: int = 20
    dtype: str = "float32"
    checkout: str = ""


@dataclass(frozen=True)
class Answer:
    """What a process says after a turn.

    Attributes:
        milliseconds: of each step.
        dtype: of the matrix products.
        blocks: native, compiled or eager.
        parameters: weights of the model.
        before_bytes: resident before the model was built.
        peak_bytes: most resident since the process began.
    """

    milliseconds: list[float]
    dtype: str
    blocks: str
    parameters: int
    before_bytes: int
    peak_bytes: int


class Worker:
    """One process; its constructor returns once it is warm.

    Raises:
        GPTError: it cannot do its job.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self._command = module_command("gpt.cli.bench.worker", json.dumps(asdict(job)))
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  # closed in __exit__
        self._process = subprocess.Popen(
            self._command,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            encoding="utf-8",
        )
        try:
            self._read()
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def take_turn(self) -> Answer:
        """Some steps."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died; reading says how
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        return self._read()

    def _read(self) -> Answer:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            code = self._process.wait()
            raise GPTError(f"{self.job.name}: {failure(self._command, code, self._log.read())}")
        content: dict[str, Any] = json.loads(line)
        if "error" in content:
            raise GPTError(f"{self.job.name}: {content['error']}")
        return Answer(**content)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End it: at the end of its input it stops by itself, and clears its folder away."""
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
