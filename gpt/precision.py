"""Where float32 is not enough."""

import torch


def widest_dtype(device: torch.device) -> torch.dtype:
    """Return the most precise floating-point type of a device: MPS has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64
