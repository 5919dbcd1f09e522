"""Muon for the sharded matrices of FSDP2."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gpt.distributed.sharding import from_local, full_tensor, shard_like, to_local
from gpt.training.muon import Muon, Orthogonalize, orthogonalize_together


class ShardedMuon(Muon):
    """Muon of which each process updates its own rows, and gathers the others' to orthogonalize a matrix."""

    def _update(
        self,
        weights: list[Tensor],
        gradients: list[Tensor],
        momenta: list[Tensor],
        rate: float,
        group: dict[str, Any],
        orthogonalize: Orthogonalize = orthogonalize_together,
    ) -> None:
        def gathered(parts: Sequence[Tensor], steps: int, dtype: torch.dtype) -> Tensor:
            matrices = [full_tensor(from_local(part, weight)) for part, weight in zip(parts, weights, strict=True)]
            updates = orthogonalize(matrices, steps, dtype)
            return torch.stack([to_local(shard_like(u, weight)) for u, weight in zip(updates, weights, strict=True)])

        own_weights, own_gradients, own_momenta = (
            [to_local(tensor) for tensor in tensors] for tensors in (weights, gradients, momenta)
        )
        super()._update(own_weights, own_gradients, own_momenta, rate, group, gathered)
