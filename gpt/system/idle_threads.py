"""How often torch's idle threads poll for work before they sleep: seldom where other processes keep the cores busy.

By default they poll for milliseconds, which is fastest on quiet cores. Where another process wants a core, they use up
their share of it by polling, and have none left when there is work.
"""

import os
import sys
import time
from pathlib import Path

POLLS = "GOMP_SPINCOUNT"
"""Read by torch's OpenMP library on Linux, when torch is loaded."""
FEW_POLLS = "1000"
CHOSEN_BY = (POLLS, "OMP_WAIT_POLICY", "LOCAL_WORLD_SIZE")
"""Variables that say it already; torchrun's processes start at once, so that each would find the others at work."""
PAUSE = 0.05
"""Seconds between two looks at the processors' clocks, which count hundredths."""
BUSY = 0.5
"""Cores in use by others, from which on they are busy: a process that always computes uses one."""
WORKING = (0, 1, 2, 5, 6)
"""Columns of a processor's line in /proc/stat: user, nice, system, interrupts."""


def poll_seldom_if_busy() -> None:
    """Set torch's number of polls in this process's environment, if others keep its cores busy; before torch is loaded.

    Nothing changes where the user has set it.
    """
    is_chosen = any(name in os.environ for name in CHOSEN_BY)
    if not is_chosen and "torch" not in sys.modules and cores_in_use(PAUSE) >= BUSY:
        os.environ[POLLS] = FEW_POLLS


def cores_in_use(seconds: float, stat: Path = Path("/proc/stat")) -> float:
    """Sleep, and return how many of this process's cores others used meanwhile; 0 where the system does not tell."""
    try:
        start = time.perf_counter()
        before = _worked(stat)
        time.sleep(seconds)
        return (_worked(stat) - before) / (time.perf_counter() - start)
    except (OSError, ValueError, AttributeError, IndexError):
        return 0.0


def _worked(stat: Path) -> float:
    """Return the seconds that this process's cores have worked since the machine was started."""
    mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    rows = (line.split() for line in stat.read_text(encoding="ascii").splitlines())
    ticks = sum(int(row[1 + column]) for row in rows if row[0] in mine for column in WORKING)
    return ticks / os.sysconf("SC_CLK_TCK")
