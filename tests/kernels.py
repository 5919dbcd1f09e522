"""Where the native kernels can run."""

import pytest
import torch

from gpt.native.build import find_compiler


def _missing() -> str | None:
    if not torch.cpu._is_amx_tile_supported():
        return "this processor has no AMX tiles"
    if not torch.cpu._init_amx():
        return "the system gives no process the AMX tiles"
    return None if find_compiler() else "there is no C++ compiler"


NO_NATIVE = _missing()
"""Why the kernels cannot run here; None where they must."""

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="there is no C++ compiler")

needs_native = pytest.mark.skipif(NO_NATIVE is not None, reason=NO_NATIVE or "")
