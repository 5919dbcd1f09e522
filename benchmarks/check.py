"""`scripts/bench.py check`: whether a kernel is ten times slower than it should be, on whatever machine this is."""

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.options import check_json
from benchmarks.output import describe, finish
from gpt.cli.common import add_command, report
from gpt.cli.tables import Table
from gpt.settings import read_settings

if TYPE_CHECKING:
    from benchmarks.check_cases import Case

EXAMPLE = "python scripts/bench.py check"
SECONDS, TRIES = 0.1, 3
"""At least so long and so often each side is run, in one thread; the best time counts: that bears other processes."""
NOTE = "us: fastest of many calls in one thread. Torch: its own operators in float32. Above its limit a kernel fails."


@dataclass(frozen=True)
class Finding:
    """A timed kernel.

    Attributes:
        name: of the kernel.
        seconds: of one call.
        reference_seconds: of one call of what it is compared with.
        limit: of their ratio.
    """

    name: str
    seconds: float
    reference_seconds: float
    limit: float

    @property
    def ratio(self) -> float:
        """How many times the reference's time it takes."""
        return self.seconds / self.reference_seconds

    @property
    def fails(self) -> bool:
        """Whether it is far slower than it should be."""
        return self.ratio > self.limit


def add_parser(subparsers: Any) -> None:
    """The options of this measurement."""
    parser = add_command(
        subparsers, "check", "Fail if a kernel is far slower than torch's own operators on this machine.", EXAMPLE
    )
    parser.add_argument("--json", metavar="FILE", help="write the last line there too")
    parser.set_defaults(run=run, config=None, overrides=[])


def run(arguments: argparse.Namespace) -> int:
    """Exit code 1 where a kernel fails; its name is on standard error."""
    check_json(arguments)

    import torch

    torch.set_num_threads(1)
    facts = describe("check", arguments, 1)
    findings = [time_case(case) for case in _cases()]
    finish(arguments, [table_of(findings)], {**facts, "kernels": summary_of(findings)})
    failures = [finding for finding in findings if finding.fails]
    for one in failures:
        report(f"too slow: {one.name} takes {one.ratio:.1f} times as long as torch's operators, limit {one.limit:g}")
    return 1 if failures else 0


def _cases() -> "Iterable[Case]":
    """All kernels that this processor has."""
    import torch

    from benchmarks.check_cases import decoding_cases, optimizer_case, training_cases
    from gpt.kernels.training.library import Kernels
    from gpt.processor import supported_processors

    settings = read_settings()
    fast = supported_processors(settings.processor)[0].matmul_dtype
    for dtype in dict.fromkeys((torch.float32, fast)):
        yield from training_cases(Kernels(dtype, settings, report))
    yield optimizer_case(fast)
    yield from decoding_cases()


def time_case(case: "Case") -> Finding:
    """Time both sides, the reference first."""
    reference = best_seconds(case.reference)
    return Finding(case.name, best_seconds(case.ours), reference, case.limit)


def best_seconds(call: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """The fastest of at least `TRIES` calls and `SECONDS`, after one that does not count."""
    call()
    best, tries, end = float("inf"), 0, clock() + SECONDS
    while tries < TRIES or clock() < end:
        start = clock()
        call()
        best, tries = min(best, clock() - start), tries + 1
    return best


def summary_of(findings: Sequence[Finding]) -> dict[str, Any]:
    """For JSON: each kernel by name."""
    return {
        one.name: {
            "seconds": one.seconds,
            "reference_seconds": one.reference_seconds,
            "ratio": one.ratio,
            "limit": one.limit,
            "fails": one.fails,
        }
        for one in findings
    }


def table_of(findings: Sequence[Finding]) -> Table:
    """A line for each kernel."""
    rows = [
        (
            one.name,
            f"{one.seconds * 1e6:,.0f}",
            f"{one.reference_seconds * 1e6:,.0f}",
            f"{one.ratio:.2f}",
            f"{one.limit:g}",
            "too slow" if one.fails else "",
        )
        for one in findings
    ]
    return Table("Kernels beside torch", ("kernel", "us", "torch us", "times", "limit", ""), rows, "<>>>><", NOTE)
