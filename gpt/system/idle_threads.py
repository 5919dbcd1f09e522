"""Let torch's idle threads poll less for work where other processes keep the cores busy.

By default idle threads poll for milliseconds before they sleep, which is fastest on quiet cores. If
another process wants the core, a thread uses up its share of it by polling, and has none left when
there is work.
"""

import os
import sys
import time
from pathlib import Path

POLLS = "GOMP_SPINCOUNT"
"""The variable that torch's OpenMP library reads on Linux when torch is loaded."""
FEW_POLLS = "1000"
"""The number of polls on busy cores; the default of GCC's OpenMP library is 300,000."""
CHOSEN_BY = (POLLS, "OMP_WAIT_POLICY", "LOCAL_WORLD_SIZE")
"""Variables with which nothing is chosen here.

The first two are the user's own choice. The last one is torchrun's: it starts its processes at the
same time, so that each would find the cores busy with the others.
"""
PAUSE = 0.05
"""Seconds of the measurement; the system counts a core's work in hundredths of a second."""
BUSY = 0.5
"""From how many cores in use the cores count as busy; a process that computes uses one."""
WORKING = (0, 1, 2, 5, 6)
"""Columns of a core's line in /proc/stat: user, nice, system, irq, softirq."""


def poll_seldom_if_busy() -> None:
    """Reduce the polls of torch's threads in this process if others keep its cores busy.

    This sets a variable of this process's environment, which torch reads when it is loaded.
    """
    is_chosen = any(name in os.environ for name in CHOSEN_BY)
    is_too_late = "torch" in sys.modules
    if is_chosen or is_too_late:
        return
    if cores_in_use(PAUSE) >= BUSY:
        os.environ[POLLS] = FEW_POLLS


def cores_in_use(seconds: float, stat: Path = Path("/proc/stat")) -> float:
    """Sleep for some seconds, and return how many of this process's cores were in use meanwhile.

    This process sleeps, so that the work is that of others. Return 0 if the system does not tell.
    """
    try:
        start = time.perf_counter()
        before = _worked(stat)
        time.sleep(seconds)
        return (_worked(stat) - before) / (time.perf_counter() - start)
    except (OSError, ValueError, AttributeError, IndexError):
        return 0.0


def _worked(stat: Path) -> float:
    """Return the seconds that this process's cores have worked since the machine was started."""
    cores = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    ticks = 0
    for line in stat.read_text(encoding="ascii").splitlines():
        name, *columns = line.split()
        if name in cores:
            ticks += sum(int(columns[column]) for column in WORKING)
    return ticks / os.sysconf("SC_CLK_TCK")
