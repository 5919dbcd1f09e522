"""A process with a device whose memory is its own: runs the CUDA tests of float32 and of eager decoding on it.

    python -m boundary.run LIBRARY [pytest's arguments]

The device has numbers, those of the CPU, and mixes nothing with the CPU. What torch has for CUDA only is left out:
graphs, autocast, `torch.compile`.
"""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

from fake_cuda import library

NAME = "boundary"


def main() -> int:
    """Return pytest's exit code."""
    built, *arguments = sys.argv[1:]
    library.load(Path(built))  # before anything imports torch
    import pytest
    import torch

    from fake_cuda.install import move

    torch.utils.rename_privateuse1_backend(NAME)
    facts = {"is_available": lambda: True, "device_count": lambda: 1, "current_device": lambda: 0}
    nothing = {"_is_in_bad_fork": lambda: False, "manual_seed_all": lambda seed: None, "is_initialized": lambda: True}
    types = {"get_amp_supported_dtype": lambda: [torch.bfloat16, torch.float16]}
    torch._register_device_module(NAME, SimpleNamespace(**facts, **nothing, **types))
    torch.utils.generate_methods_for_privateuse1_backend()
    torch.nn.Module._apply = move  # type: ignore[method-assign, assignment]  # torch's own unties weights there
    os.environ["GPT_TEST_DEVICE"] = f"{NAME}:0"
    return pytest.main(["-q", "-p", "no:cacheprovider", *arguments])


if __name__ == "__main__":
    sys.exit(main())
