"""Try the loss terms of a configuration before a run begins, since plugins can add any function."""

import math

import torch
from torch import Tensor

from gpt.config import Config
from gpt.system.errors import ConfigError, first_line
from gpt.training.objective import LOSS_TERMS, Term

ALWAYS_LOGGED = ("loss", "learning_rate", "grad_norm")
"""Names that every training logs under `train/`, and which no loss term may therefore have."""


# The caller may have turned gradients off, without which every term would be refused.
@torch.inference_mode(False)
@torch.enable_grad()
def check_terms(config: Config, device: torch.device) -> None:
    """Try every loss term of a configuration on random logits.

    A term has to be a sum over positions, which is twice as large for a batch of twice the size.
    Training divides it by the number of tokens, which would make a mean far too small.

    Args:
        config: its `model.vocab_size` must not be None.

    Raises:
        ConfigError: a term cannot be used.
    """
    if not config.train.loss_terms:
        return
    assert config.model.vocab_size is not None
    length = config.model.block_size
    vocab_size = config.model.vocab_size
    # The trial has its own generator, so that it does not change the random numbers of the run.
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, length, vocab_size, generator=generator)  # (1, T, V)
    logits = logits.to(device).requires_grad_()
    targets = torch.randint(vocab_size, (1, length), generator=generator).to(device)  # (1, T)
    for name in config.train.loss_terms:
        key = f"train.loss_terms: {name}"
        if name in ALWAYS_LOGGED:
            raise ConfigError(
                f"{key} would be logged as train/{name}, which has another meaning; rename it"
            )
        once = _try_term(key, LOSS_TERMS[name], logits, targets)
        twice = _try_term(key, LOSS_TERMS[name], logits.repeat(2, 1, 1), targets.repeat(2, 1))
        # A sum doubles, a mean stays as it is, and a norm grows by the square root of 2. A
        # tolerance of 10% tells these apart, and allows for rounding.
        if not math.isclose(twice, 2 * once, rel_tol=0.1):
            raise ConfigError(
                f"{key} is {once:.4g} for a batch and {twice:.4g} for one twice as large; "
                "return the sum over positions, which doubles"
            )


def _try_term(key: str, term: Term, logits: Tensor, targets: Tensor) -> float:
    """Return the value of a loss term for some logits.

    Args:
        key: describes the term in messages.

    Raises:
        ConfigError: the term raises an error, or its value is not a single number with a gradient.
    """
    try:
        value = term(logits, targets)
    except Exception as error:  # a plugin's function can raise any error
        type_name = type(error).__name__
        raise ConfigError(f"{key} raises {type_name}: {first_line(error)}") from error
    if not isinstance(value, Tensor):
        type_name = type(value).__name__
        raise ConfigError(f"{key} returns a {type_name}; return a tensor of one number")
    if value.dim() > 0:
        shape = tuple(value.shape)
        raise ConfigError(f"{key} returns a tensor of shape {shape}; return its sum over positions")
    if not value.requires_grad:
        raise ConfigError(f"{key} has no gradient, and so no effect; compute it from the logits")
    return float(value.detach())
