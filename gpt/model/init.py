"""How weights start: GPT-2's rule, all of it here."""

import math

from torch import nn

STD = 0.02


def init_weights(model: nn.Module, n_layer: int) -> None:
    """Set every weight in place, from torch's default generator.

    Matrices and embeddings are normal with deviation 0.02, biases zero, norm gains one. The
    projections back into the residual stream (`c_proj`) are smaller by `sqrt(2 n_layer)`, since
    2 n_layer of them add up in it (Radford et al. 2019, GPT-2, section 2.3).
    """
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif parameter.dim() == 1:
            nn.init.ones_(parameter)
        elif name.endswith("c_proj.weight"):
            nn.init.normal_(parameter, std=STD / math.sqrt(2 * n_layer))
        else:
            nn.init.normal_(parameter, std=STD)
