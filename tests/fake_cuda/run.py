"""A process with a fake `cuda:0`: runs the scenarios of a module and prints what they report as one line of JSON.

    python -m fake_cuda.run LIBRARY MODULE FOLDER

LIBRARY is what `fake_cuda.library.build` made; the scenarios run in FOLDER, in the module's order.
"""

import contextlib
import json
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

from fake_cuda import library


def main() -> None:
    """Report {"facts": ...} of a scenario that came to its end, {"error": ...} of another."""
    built, name, folder = sys.argv[1:]
    library.load(Path(built))  # before anything imports torch
    from fake_cuda.device import FakeCuda
    from fake_cuda.stand_ins import install

    os.chdir(folder)
    device = FakeCuda()
    install(device)
    reports: dict[str, Any] = {}
    with contextlib.redirect_stdout(sys.stderr), device:
        for scenario, function in import_module(name).SCENARIOS.items():
            device.forget()
            try:
                reports[scenario] = {"facts": function(device)}
            except Exception as error:
                lines = "".join(traceback.format_exception(error)).splitlines()
                reports[scenario] = {"error": f"{type(error).__name__}: {error}"[:2000], "trace": lines[-60:]}
    print(json.dumps(reports))


if __name__ == "__main__":
    main()
