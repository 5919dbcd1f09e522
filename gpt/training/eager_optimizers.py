"""torch's optimizers without their wrappers that import torch's compiler: half a second of the start of a training."""

import inspect

import torch


class Optimizer(torch.optim.Optimizer):
    """torch's base class whose methods are those that torch wraps to keep its compiler out of them.

    At its first call such a wrapper imports the compiler. Updates are never compiled here, so nothing is lost.
    """

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)


class AdamW(Optimizer, torch.optim.AdamW):
    """torch's AdamW."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))
