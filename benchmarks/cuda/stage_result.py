"""The result of a stage, as a JSON file and as a Markdown table."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpt.files import write_atomic
from gpt.inspection.rendering.markdown import markdown_table

PREFIX = "cuda_"


@dataclass(frozen=True)
class StageResult:
    """Result of one stage.

    Attributes:
        title: of the table, with units.
        header: of the table.
        rows: of the table.
        facts: every number, for programs.
        problems: expectations that were not met, one line each.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    facts: dict[str, Any] = field(default_factory=dict)
    problems: Sequence[str] = ()


def failed(stage: str, reason: str) -> StageResult:
    """Return the result of a stage that did not finish."""
    return StageResult(stage, (), (), problems=[reason])


def write(folder: Path, stage: str, result: StageResult, about: dict[str, Any]) -> None:
    """Write `cuda_<stage>.json` into a folder, `about` first: machine, versions, seconds."""
    text = json.dumps({"benchmark": f"{PREFIX}{stage}", **about, **asdict(result)}, indent=1)
    write_atomic(folder / f"{PREFIX}{stage}.json", f"{text}\n".encode())


def render(folder: Path, stages: Sequence[str]) -> str:
    """Render the results in a folder as Markdown, in the order of `stages`."""
    parts = []
    for stage in stages:
        path = folder / f"{PREFIX}{stage}.json"
        if not path.is_file():
            parts.append(f"## {stage}\n\nNot run.")
            continue
        result = json.loads(path.read_text(encoding="utf-8"))
        lines = [f"## {stage}", f"{result['title']}, {result['date']}, {result['gpu']}, {result['seconds']:.0f} s."]
        if result["rows"]:
            align = "<" + ">" * (len(result["header"]) - 1)
            lines.append(markdown_table(result["header"], result["rows"], align))
        lines += [f"**Failed:** {problem}" for problem in result["problems"]]
        parts.append("\n\n".join(lines))
    return "\n\n".join(["# On a CUDA device", *parts]) + "\n"
