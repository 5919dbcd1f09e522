"""Processes that train in turns: each keeps its model, and only one of them works at a time."""

import json
from dataclasses import asdict, dataclass, field

from benchmarks.conversation import Conversation
from benchmarks.processes import module_command


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
        dtype: of the matmuls.
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


class Worker(Conversation):
    """One process; its constructor returns once it is warm.

    Raises:
        GPTError: it cannot do its job.
    """

    def __init__(self, job: Job) -> None:
        super().__init__(job.name, module_command("benchmarks.worker", json.dumps(asdict(job))))

    def take_turn(self) -> Answer:
        """Some steps."""
        return Answer(**self.ask())
