"""One pre-LN decoder block."""

from torch import Tensor, nn

from gpt.config import ModelConfig
from gpt.model.attention import Attention, LayerCache
from gpt.model.feed_forward import build_mlp
from gpt.model.norm import build_norm
from gpt.model.positions import Rotation


class Block(nn.Module):
    """`x + attn(ln_1(x))`, then `x + mlp(ln_2(x))`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.ln_1 = build_norm(config)
        self.attn = Attention(config)
        self.ln_2 = build_norm(config)
        self.mlp = build_mlp(config)

    def forward(
        self, x: Tensor, rotation: Rotation | None, mask: Tensor | None, cache: LayerCache | None = None
    ) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        x = x + self.attn(self.ln_1(x), rotation, mask, cache)
        return x + self.mlp(self.ln_2(x))
