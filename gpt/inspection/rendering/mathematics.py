"""The mathematics of training a decoder block, forward and backward, as functions of plain tensors.

For reading and for tests; the model computes the same with torch's own kernels and autograd.

Letters: B batch, T query positions, S key positions, C width, F hidden width, H heads, D head width, V ids.
(...) stands for any leading dimensions, such as B, T. A backward takes the gradient of the loss with respect
to the output first, and returns those with respect to the inputs, in the order of the forward function. In formulas
G_y is the gradient with respect to y, and * multiplies element by element.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import one_hot


def embedding(tokens: Tensor, table: Tensor) -> Tensor:
    """X = E[tokens]: (...) int64, (V, C) -> (..., C) (1706.03762, section 3.4)."""
    return table[tokens]


def embedding_backward(grad_x: Tensor, tokens: Tensor, vocab_size: int) -> Tensor:
    """G_E[v] = sum of G_X over the positions that hold token v: (..., C), (...) int64 -> (V, C)."""
    grad_table = grad_x.new_zeros(vocab_size, grad_x.size(-1))
    return grad_table.index_add(0, tokens.flatten(), grad_x.flatten(0, -2))


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """y = x W^T + b: (..., in), (out, in), (out) -> (..., out)."""
    return x @ weight.T + bias


def linear_backward(grad_y: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """G_x = G_y W, G_W = G_y^T x, G_b = sum G_y, the last two over all positions.

    (..., out), (..., in), (out, in) -> (..., in), (out, in), (out).
    """
    return grad_y @ weight, torch.einsum("...o,...i->oi", grad_y, x), torch.einsum("...o->o", grad_y)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """y = w * (x - mean) / sigma + b, sigma^2 = variance + eps, over C (1607.06450, equation 4, with eps).

    (..., C), two of (C) -> (..., C).
    """
    centered = x - x.mean(-1, keepdim=True)
    sigma = (centered.square().mean(-1, keepdim=True) + eps).sqrt()
    return weight * centered / sigma + bias


def layer_norm_backward(grad_y: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """G_x = (g - mean(g) - n * mean(g * n)) / sigma, with n = (x - mean) / sigma and g = w * G_y; G_w, G_b.

    G_w = sum G_y * n and G_b = sum G_y over all positions: two of (..., C), (C) -> (..., C), two of (C).
    """
    centered = x - x.mean(-1, keepdim=True)
    sigma = (centered.square().mean(-1, keepdim=True) + eps).sqrt()
    normed, grad = centered / sigma, weight * grad_y
    grad_x = (grad - grad.mean(-1, keepdim=True) - normed * (grad * normed).mean(-1, keepdim=True)) / sigma
    return grad_x, torch.einsum("...c,...c->c", grad_y, normed), torch.einsum("...c->c", grad_y)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """y = w * x / r, r^2 = mean(x^2) + eps, over C: (..., C), (C) -> (..., C) (1910.07467, equation 4, with eps)."""
    return weight * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def rms_norm_backward(grad_y: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """G_x = (g - n * mean(g * n)) / r, with n = x / r and g = w * G_y; G_w = sum G_y * n over all positions.

    Two of (..., C), (C) -> (..., C), (C).
    """
    rms = (x.square().mean(-1, keepdim=True) + eps).sqrt()
    normed, grad = x / rms, weight * grad_y
    grad_x = (grad - normed * (grad * normed).mean(-1, keepdim=True)) / rms
    return grad_x, torch.einsum("...c,...c->c", grad_y, normed)


def causal_conv(h: Tensor, weight: Tensor) -> Tensor:
    """y_t = h_t + sum_j w_j * h_(t - j), h before the first position 0: (B, T, C), (C, 1, K) -> (B, T, C).

    A Canon layer: 2512.17351, section 4.
    """
    span = weight.size(-1)
    past = torch.cat((h.new_zeros(h.size(0), span - 1, h.size(2)), h), dim=1)  # y_t reads the rows t to t + K - 1
    return h + sum(weight[:, 0, j] * past[:, span - 1 - j : past.size(1) - j] for j in range(span))


def causal_conv_backward(grad_y: Tensor, h: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """G_h,t = G_y,t + sum_j w_j * G_y,(t + j), G_w,j = sum_t h_t * G_y,(t + j), G_y after the last position 0.

    Two of (B, T, C), (C, 1, K) -> (B, T, C), (C, 1, K).
    """
    span, length = weight.size(-1), h.size(1)
    future = torch.cat((grad_y, grad_y.new_zeros(h.size(0), span - 1, h.size(2))), dim=1)
    shifted = [future[:, j : j + length] for j in range(span)]
    grad_h = grad_y + sum(weight[:, 0, j] * grad for j, grad in enumerate(shifted))
    grad_weight = torch.stack([torch.einsum("btc,btc->c", h, grad) for grad in shifted], dim=-1)
    return grad_h, grad_weight.unsqueeze(1)


def softmax(scores: Tensor) -> Tensor:
    """P_i = exp(S_i) / sum_j exp(S_j) over the last dimension: (..., S) -> (..., S)."""
    exponentials = (scores - scores.amax(-1, keepdim=True)).exp()  # the largest is 1: none overflows
    return exponentials / exponentials.sum(-1, keepdim=True)


def softmax_backward(grad_p: Tensor, p: Tensor) -> Tensor:
    """G_S = (diag(P) - P P^T) G_P = P * (G_P - sum(P * G_P)), row by row, from the output P: (..., S) all three."""
    return p * (grad_p - (p * grad_p).sum(-1, keepdim=True))


def attention_pattern(q: Tensor, k: Tensor) -> Tensor:
    """P = softmax(Q K^T / sqrt(D)), causal: (B, H, T, D), (B, H, S, D) -> (B, H, T, S).

    Query t sees the keys s <= S - T + t.
    """
    queries, keys = q.size(-2), k.size(-2)
    scores = q @ k.mT / math.sqrt(q.size(-1))
    visible = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
    return softmax(scores.masked_fill(~visible, -math.inf))


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """O = P V: (B, H, T, D), two of (B, H, S, D) -> (B, H, T, D) (1706.03762, equation 1)."""
    return attention_pattern(q, k) @ v


def attention_backward(grad_o: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """G_V = P^T G_O, G_P = G_O V^T, G_S by the softmax, G_Q = G_S K / sqrt(D), G_K = G_S^T Q / sqrt(D).

    Dao et al. 2022, 2205.14135, appendix B.2. Two of (B, H, T, D), two of (B, H, S, D) -> G_Q (B, H, T, D),
    G_K and G_V (B, H, S, D).
    """
    p = attention_pattern(q, k)
    grad_v = p.mT @ grad_o
    grad_p = grad_o @ v.mT
    grad_s = softmax_backward(grad_p, p)  # 0 where masked, for P is
    scale = 1 / math.sqrt(q.size(-1))
    return grad_s @ k * scale, grad_s.mT @ q * scale, grad_v


def gelu(x: Tensor) -> Tensor:
    """x Phi(x), Phi the normal distribution function (1606.08415, section 2); exact, not its tanh approximation.

    Any shape; the same comes back, here and from the three functions like it.
    """
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def gelu_derivative(x: Tensor) -> Tensor:
    """Phi(x) + x phi(x), phi the normal density."""
    density = (-0.5 * x.square()).exp() / math.sqrt(2 * math.pi)
    return 0.5 * (1 + torch.erf(x / math.sqrt(2))) + x * density


def feed_forward(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """y = gelu(x W1^T + b1) W2^T + b2: (..., C), (F, C), (F), (C, F), (C) -> (..., C) (1706.03762, equation 2)."""
    return linear(gelu(linear(x, w1, b1)), w2, b2)


def feed_forward_backward(
    grad_y: Tensor, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """With a = x W1^T + b1 and h = gelu(a): G_h = G_y W2, G_a = G_h * gelu'(a), G_x = G_a W1.

    G_W1 = G_a^T x, G_b1 = sum G_a, G_W2 = G_y^T h, G_b2 = sum G_y over all positions. Two of (..., C), then
    (F, C), (F), (C, F) -> (..., C), (F, C), (F), (C, F), (C).
    """
    a = linear(x, w1, b1)
    grad_h, grad_w2, grad_b2 = linear_backward(grad_y, gelu(a), w2)
    grad_x, grad_w1, grad_b1 = linear_backward(grad_h * gelu_derivative(a), x, w1)
    return grad_x, grad_w1, grad_b1, grad_w2, grad_b2


def silu(x: Tensor) -> Tensor:
    """x sigmoid(x) (1606.08415, section 2; the Swish of 1710.05941 with beta 1)."""
    return x * torch.sigmoid(x)


def silu_derivative(x: Tensor) -> Tensor:
    """sigmoid(x) (1 + x (1 - sigmoid(x)))."""
    sigmoid = torch.sigmoid(x)
    return sigmoid * (1 + x * (1 - sigmoid))


def swiglu(x: Tensor, w_gate: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    """y = (silu(x Wg^T) * x W1^T) W2^T: (..., C), two of (F, C), (C, F) -> (..., C) (2002.05202, equation 6)."""
    return (silu(x @ w_gate.T) * (x @ w1.T)) @ w2.T


def swiglu_backward(
    grad_y: Tensor, x: Tensor, w_gate: Tensor, w1: Tensor, w2: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """With a = x Wg^T, u = x W1^T, h = silu(a) * u: G_h = G_y W2, G_a = G_h * u * silu'(a), G_u = G_h * silu(a).

    G_x = G_a Wg + G_u W1; G_Wg = G_a^T x, G_W1 = G_u^T x, G_W2 = G_y^T h over all positions. Two of (..., C),
    two of (F, C), (C, F) -> (..., C), two of (F, C), (C, F).
    """
    a, u = x @ w_gate.T, x @ w1.T
    grad_h, grad_w2, _ = linear_backward(grad_y, silu(a) * u, w2)
    through_gate, grad_w_gate, _ = linear_backward(grad_h * u * silu_derivative(a), x, w_gate)
    through_value, grad_w1, _ = linear_backward(grad_h * silu(a), x, w1)
    return through_gate + through_value, grad_w_gate, grad_w1, grad_w2


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """L = -1/N sum log softmax(logits)[target] over all N targets: (..., V), (...) int64 -> scalar, in nats."""
    chosen = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return (logits.logsumexp(-1) - chosen).mean()


def cross_entropy_backward(logits: Tensor, targets: Tensor) -> Tensor:
    """G_logits = (softmax(logits) - onehot(targets)) / N: (..., V), (...) int64 -> (..., V)."""
    return (softmax(logits) - one_hot(targets, logits.size(-1))) / targets.numel()


def clip_by_global_norm(grads: Sequence[Tensor], max_norm: float) -> list[Tensor]:
    """g <- g min(1, max_norm / (norm + 1e-6)), norm over all tensors together (1211.5063, algorithm 1).

    Tensors of any shapes; the same come back.
    """
    norm = math.sqrt(sum(float(grad.square().sum()) for grad in grads))
    return [grad * min(1.0, max_norm / (norm + 1e-6)) for grad in grads]


def adam_update(
    parameter: Tensor, grad: Tensor, m: Tensor, v: Tensor, t: int, lr: float, betas: tuple[float, float], eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Step t, counted from 1: theta <- theta - lr m' / (sqrt(v') + eps) (1412.6980, algorithm 1).

    m <- beta1 m + (1 - beta1) g, v <- beta2 v + (1 - beta2) g^2, both 0 at first;
    m' = m / (1 - beta1^t), v' = v / (1 - beta2^t). Returns theta, m, v, all of the parameter's shape.
    """
    m = betas[0] * m + (1 - betas[0]) * grad
    v = betas[1] * v + (1 - betas[1]) * grad.square()
    corrected_m, corrected_v = m / (1 - betas[0] ** t), v / (1 - betas[1] ** t)
    return parameter - lr * corrected_m / (corrected_v.sqrt() + eps), m, v


def decoupled_decay(parameter: Tensor, lr: float, weight_decay: float) -> Tensor:
    """theta <- theta - lr lambda theta; AdamW is this, then `adam_update` (1711.05101, algorithm 2).

    As in torch, lambda is multiplied by the whole learning rate; in the paper by the schedule's factor alone.
    """
    return parameter - lr * weight_decay * parameter


def warmup_cosine(step: int, warmup_steps: int, decay_steps: int, peak: float, min_lr: float) -> float:
    """Learning rate of update `step`, counted from 0: a line up to the peak, half a cosine down to `min_lr`.

    peak (step + 1) / warmup_steps (1706.02677, section 2.2), then (1608.03983, equation 5), with
    u = (step - warmup_steps) / (decay_steps - warmup_steps), at most 1: min_lr + (peak - min_lr) (1 + cos(pi u)) / 2.
    """
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    progress = min(1.0, (step - warmup_steps) / max(1, decay_steps - warmup_steps))
    return min_lr + (peak - min_lr) * 0.5 * (1 + math.cos(math.pi * progress))
