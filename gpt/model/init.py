"""Initialisation of all weights."""

import math

from torch import nn

from gpt.config import ModelConfig

STD = 0.02


def init_weights(model: nn.Module, config: ModelConfig) -> None:
    """Set every weight in place, from torch's default generator.

    Matrices and embeddings are normal with deviation 0.02, biases zero, norm gains one. The
    projections back into the residual stream (`c_proj`) are smaller by `sqrt(2 n_layer)`, since
    2 n_layer of them add up in it (Radford et al. 2019, GPT-2, section 2.3), or zero: a block then
    begins as the identity (Zhang et al. 2019, 1901.09321).
    """
    projection_std = STD / math.sqrt(2 * config.n_layer) if config.init == "gpt2" else 0.0
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif parameter.dim() == 1:
            nn.init.ones_(parameter)
        elif name.endswith("c_proj.weight"):
            nn.init.normal_(parameter, std=projection_std)
        else:
            nn.init.normal_(parameter, std=STD)
