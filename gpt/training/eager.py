"""Optimizers of torch without what keeps `torch.compile` off them."""

import inspect

import torch
from torch.optim import Optimizer


class EagerOptimizer(Optimizer):
    """An optimizer that does not import torch's compiler.

    torch wraps the methods below, so that `torch.compile` leaves them alone. At the first call the
    wrapper imports the compiler, which takes a second at each start. No code that is compiled here
    calls an optimizer, so that the methods are taken out of their wrappers.
    """

    add_param_group = inspect.unwrap(Optimizer.add_param_group)
    zero_grad = inspect.unwrap(Optimizer.zero_grad)
    state_dict = inspect.unwrap(Optimizer.state_dict)
    load_state_dict = inspect.unwrap(Optimizer.load_state_dict)


class AdamW(EagerOptimizer, torch.optim.AdamW):
    """AdamW (Loshchilov and Hutter 2017, 1711.05101); its `step` does import the compiler."""
