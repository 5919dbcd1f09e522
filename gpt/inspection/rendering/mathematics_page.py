"""The page `docs/mathematics.md`: every function of `mathematics` with its formula and its own source."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpt.inspection.rendering import mathematics as m


class Entry(NamedTuple):
    """A function of the page.

    Attributes:
        function: whose source is shown.
        title: heading.
        text: one or two sentences.
        formulas: LaTeX, one line each. No backslash before punctuation: Markdown would eat it.
    """

    function: Callable[..., Any]
    title: str
    text: str
    formulas: tuple[str, ...]


INTRODUCTION = """\
# The mathematics, checked

One decoder block, its loss and its update, written out by hand: what autograd and torch's kernels do for the model.
Each piece of code below is the source of a function in `gpt/inspection/rendering/mathematics.py`, and every one is
tested in float64: forwards against the modules of `gpt` and torch, backwards against autograd, to an absolute 1e-10.

Letters: $B$ batch, $T$ query positions, $S$ key positions, $C$ width, $F$ hidden width, $H$ heads, $D$ head width,
$V$ ids (in attention: the values). $G_y$ is the gradient of the loss with respect to $y$, $\\odot$ multiplies element
by element, and sums without an index run over all positions. A residual connection $y = x + f(x)$ needs no function:
its backward is $G_x = G_y$ plus what comes back through $f$.

The page is made by `python scripts/explain.py mathematics --output docs/mathematics.md`.
"""

PARTS: dict[str, tuple[Entry, ...]] = {
    "Embedding": (
        Entry(m.embedding, "Lookup", "Each token takes its row of the table.", (r"X_t = E_{\text{token}_t}",)),
        Entry(
            m.embedding_backward,
            "Lookup, backward",
            "A scatter-add: a token that occurs twice gets both gradients, one that does not occur gets 0.",
            (r"G_{E,v} = \sum_{t : \text{token}_t = v} G_{X,t}",),
        ),
    ),
    "Linear layer": (
        Entry(
            m.linear,
            "Linear",
            "Tokens are rows and a weight is stored as (out, in), as in torch. The four projections of attention and "
            "the two layers of the feed-forward network are this.",
            (r"y = x W^\top + b",),
        ),
        Entry(
            m.linear_backward,
            "Linear, backward",
            "The weight is shared by all positions, so its gradient sums over them.",
            (r"G_x = G_y W", r"G_W = G_y^\top x, \quad G_b = \sum G_y"),
        ),
    ),
    "Normalisation": (
        Entry(
            m.layer_norm,
            "LayerNorm",
            "Mean and variance are of one token, over the width; the variance is the biased one, divided by C.",
            (
                r"\mu = \frac{1}{C} \sum_c x_c, \quad \sigma^2 = \frac{1}{C} \sum_c (x_c - \mu)^2 + \epsilon",
                r"y = w \odot \frac{x - \mu}{\sigma} + b",
            ),
        ),
        Entry(
            m.layer_norm_backward,
            "LayerNorm, backward",
            "What the mean and the deviation take out of the input, they take out of the gradient: its mean, and its "
            "part along the normalised input.",
            (
                r"n = \frac{x - \mu}{\sigma}, \quad g = w \odot G_y",
                r"G_x = \frac{1}{\sigma} \left( g - \text{mean}(g) - n \odot \text{mean}(g \odot n) \right)",
                r"G_w = \sum G_y \odot n, \quad G_b = \sum G_y",
            ),
        ),
        Entry(
            m.rms_norm,
            "RMSNorm",
            "LayerNorm without the mean and the bias.",
            (r"r^2 = \frac{1}{C} \sum_c x_c^2 + \epsilon, \quad y = w \odot \frac{x}{r}",),
        ),
        Entry(
            m.rms_norm_backward,
            "RMSNorm, backward",
            "As for LayerNorm, without the term of the mean.",
            (
                r"n = \frac{x}{r}, \quad g = w \odot G_y",
                r"G_x = \frac{1}{r} \left( g - n \odot \text{mean}(g \odot n) \right), \quad G_w = \sum G_y \odot n",
            ),
        ),
    ),
    "Causal attention": (
        Entry(
            m.softmax,
            "Softmax",
            "Subtracting the largest score changes nothing but keeps the exponential from overflowing.",
            (r"P_i = \frac{e^{S_i}}{\sum_j e^{S_j}}",),
        ),
        Entry(
            m.softmax_backward,
            "Softmax, backward",
            "The Jacobian of a row is never built: its product with the gradient needs one sum.",
            (r"G_S = (\text{diag}(P) - P P^\top) G_P = P \odot \left( G_P - \sum_i P_i G_{P,i} \right)",),
        ),
        Entry(
            m.attention_pattern,
            "Attention pattern",
            "The mask is aligned at the end, so that with a key/value cache (S larger than T) the last query sees "
            "every key.",
            (
                r"P = \text{softmax}\left( \frac{Q K^\top}{\sqrt{D}} + M \right)",
                r"M_{ts} = 0 \text{ where } s \le S - T + t, \quad -\infty \text{ elsewhere}",
            ),
        ),
        Entry(
            m.attention,
            "Attention",
            "Each query takes the average of the values that its row of P weighs.",
            ("O = P V",),
        ),
        Entry(
            m.attention_backward,
            "Attention, backward",
            "The chain rule through weighted sum, softmax and scores. Both gradients of the scores' factors carry the "
            "scale; masked scores get no gradient because P is 0 there.",
            (
                r"G_V = P^\top G_O, \quad G_P = G_O V^\top",
                r"G_S = P \odot (G_P - \text{rowsum}(P \odot G_P))",
                r"G_Q = \frac{G_S K}{\sqrt{D}}, \quad G_K = \frac{G_S^\top Q}{\sqrt{D}}",
            ),
        ),
    ),
    "Feed-forward network": (
        Entry(
            m.gelu,
            "GELU",
            "The input times the probability that a standard normal variable lies below it.",
            (r"\text{gelu}(x) = x \Phi(x) = \frac{x}{2} \left( 1 + \text{erf} \frac{x}{\sqrt{2}} \right)",),
        ),
        Entry(
            m.gelu_derivative,
            "GELU, derivative",
            "The product rule; the derivative of the distribution function is the density.",
            (r"\text{gelu}'(x) = \Phi(x) + x \phi(x), \quad \phi(x) = \frac{e^{-x^2 / 2}}{\sqrt{2 \pi}}",),
        ),
        Entry(
            m.feed_forward,
            "Feed-forward",
            "Out to the hidden width, an activation, and back; each position by itself.",
            (r"y = \text{gelu}(x W_1^\top + b_1) W_2^\top + b_2",),
        ),
        Entry(
            m.feed_forward_backward,
            "Feed-forward, backward",
            "Two linear layers and an activation, backwards.",
            (
                r"a = x W_1^\top + b_1, \quad h = \text{gelu}(a)",
                r"G_h = G_y W_2, \quad G_a = G_h \odot \text{gelu}'(a), \quad G_x = G_a W_1",
                r"G_{W_2} = G_y^\top h, \quad G_{b_2} = \sum G_y, \quad G_{W_1} = G_a^\top x, \quad G_{b_1} = \sum G_a",
            ),
        ),
        Entry(
            m.silu,
            "SiLU",
            "GELU's shape with the logistic function in the place of the normal one.",
            (r"\text{silu}(x) = x s(x), \quad s(x) = \frac{1}{1 + e^{-x}}",),
        ),
        Entry(
            m.silu_derivative,
            "SiLU, derivative",
            "The product rule, with $s' = s (1 - s)$.",
            (r"\text{silu}'(x) = s(x) \left( 1 + x (1 - s(x)) \right)",),
        ),
        Entry(
            m.swiglu,
            "SwiGLU",
            "A feed-forward network with a gate: three matrices, no biases.",
            (r"y = \left( \text{silu}(x W_g^\top) \odot x W_1^\top \right) W_2^\top",),
        ),
        Entry(
            m.swiglu_backward,
            "SwiGLU, backward",
            "The gradient comes back to the input in two ways: through the gate, and through what it gates.",
            (
                r"a = x W_g^\top, \quad u = x W_1^\top, \quad h = \text{silu}(a) \odot u, \quad G_h = G_y W_2",
                r"G_a = G_h \odot u \odot \text{silu}'(a), \quad G_u = G_h \odot \text{silu}(a)",
                r"G_x = G_a W_g + G_u W_1",
                r"G_{W_g} = G_a^\top x, \quad G_{W_1} = G_u^\top x, \quad G_{W_2} = G_y^\top h",
            ),
        ),
    ),
    "Loss": (
        Entry(
            m.cross_entropy,
            "Cross-entropy",
            "The mean over all N targets of the surprise at the right token, in nats; z are the logits.",
            (r"L = -\frac{1}{N} \sum_{t=1}^{N} \log \text{softmax}(z_t)_{\text{target}_t}",),
        ),
        Entry(
            m.cross_entropy_backward,
            "Cross-entropy, backward",
            "The predicted distribution minus the observed one, divided by the number of targets.",
            (r"G_z = \frac{1}{N} \left( \text{softmax}(z) - \text{onehot}(\text{target}) \right)",),
        ),
    ),
    "Update": (
        Entry(
            m.clip_by_global_norm,
            "Clipping",
            "One factor for all tensors, so that the direction stays; the norm is that of all gradients together.",
            (r"g \leftarrow g \cdot \min\left( 1, \frac{c}{\Vert g \Vert + 10^{-6}} \right)",),
        ),
        Entry(
            m.adam_update,
            "Adam",
            "Moving averages of the gradient and of its square, which start at 0 and are corrected for it. Steps count "
            "from 1, and epsilon stands outside the root.",
            (
                r"m_t = \beta_1 m_{t-1} + (1 - \beta_1) g_t, \quad v_t = \beta_2 v_{t-1} + (1 - \beta_2) g_t^2",
                r"\hat m_t = \frac{m_t}{1 - \beta_1^t}, \quad \hat v_t = \frac{v_t}{1 - \beta_2^t}",
                r"\theta_t = \theta_{t-1} - \eta \frac{\hat m_t}{\sqrt{\hat v_t} + \epsilon}",
            ),
        ),
        Entry(
            m.decoupled_decay,
            "Decoupled weight decay",
            "AdamW: the weights shrink before Adam's step, and the averages never see the decay.",
            (r"\theta \leftarrow \theta - \eta \lambda \theta",),
        ),
        Entry(
            m.warmup_cosine,
            "Warmup and cosine decay",
            "The peak is reached on the last step of the warmup, and the minimum is kept from the end of the decay on.",
            (
                r"\eta_i = \eta_{\max} \frac{i + 1}{w} \text{ for } i \lt w",
                r"\eta_i = \eta_{\min} + \frac{1}{2} (\eta_{\max} - \eta_{\min}) (1 + \cos \pi u), "
                r"\quad u = \min\left( 1, \frac{i - w}{d - w} \right)",
            ),
        ),
    ),
}

AS_OFTEN_WRITTEN = (
    (
        "feed-forward network",
        r"forward as $W_2 \phi(W_1 x)$, tokens as columns; backward with tokens as rows",
        r"one convention for both; torch's, and this page's, is $x W^\top + b$ with rows",
    ),
    (
        "SwiGLU",
        r"$x W_1^\top \odot \text{silu}(x W_g^\top)$, two matrices",
        r"that is the hidden layer; the output projection $W_2^\top$ makes the third",
    ),
    (
        "attention, backward",
        r"$G_Q = G_S K$, $G_K = G_S^\top Q$",
        r"each divided by $\sqrt{D}$, because the scores are",
    ),
    (
        "LayerNorm, backward",
        r"$\sigma^2$ is the variance",
        r"$\sigma^2$ is the variance plus $\epsilon$, as in the forward",
    ),
    (
        "cross-entropy, backward",
        "probabilities minus targets",
        "that is the gradient of the sum; of the mean it is $1/N$ of it",
    ),
    (
        "warmup",
        r"$\eta_{\max} i / w$ with $i$ from 0",
        "the first step would change nothing: $(i + 1) / w$",
    ),
    (
        "cosine decay",
        r"from $\eta_{\max}$ to 0, with no end",
        r"to $\eta_{\min}$, and held: past its end a cosine climbs again",
    ),
    (
        "nucleus (top-p)",
        r"the most likely tokens whose sum is $\le p$",
        "the smallest set of most likely tokens whose sum reaches $p$: the token that crosses $p$ stays, so the set is "
        "never empty",
    ),
)
"""A formula, how it is often written, and what is right."""


def mathematics_page() -> str:
    """Return the page as Markdown, ending in a newline."""
    sections = [INTRODUCTION]
    for part, entries in PARTS.items():
        sections += [f"## {part}\n", *map(_section, entries)]
    return "\n".join([*sections, _as_often_written(), _worked_numbers()])


def _section(entry: Entry) -> str:
    formulas = "\n".join(f"$$\n{formula}\n$$\n" for formula in entry.formulas)
    return f"### {entry.title}\n\n{formulas}\n{entry.text}\n\n```python\n{inspect.getsource(entry.function)}```\n"


def _as_often_written() -> str:
    rows = "".join(f"| {' | '.join(row)} |\n" for row in AS_OFTEN_WRITTEN)
    return "## As often written, and what is right\n\n| formula | as often written | right |\n|---|---|---|\n" + rows


def _worked_numbers() -> str:
    few, five, ramp = (torch.tensor(x, dtype=torch.float64) for x in ([1, 2, 3], [1, 5, 3, 2, 4], [0, 1, 2, 3, 4]))
    largest = five.where(five >= five.topk(3).values[-1], torch.tensor(-torch.inf))
    likely = ramp.softmax(-1).sort(descending=True).values
    at_most, reaching = (likely.cumsum(-1) <= 0.9).sum(), (likely.cumsum(-1) < 0.9).sum() + 1
    return f"""\
## Worked numbers

| what | comes to |
|---|---|
| logits [1, 2, 3] at temperature 0.5: softmax([1, 2, 3] / 0.5) | {_row((few / 0.5).softmax(-1), 3)} |
| top-k with k = 3 of the logits [1, 5, 3, 2, 4] | {_row(largest.softmax(-1), 3)} |
| softmax([0, 1, 2, 3, 4]) | {_row(ramp.softmax(-1), 4)} |
| the same from the largest, summed up | {_row(likely.cumsum(-1), 4)} |
| its nucleus for p = 0.9, the smallest set that reaches p | {reaching} tokens |
| the tokens whose sum is at most 0.9 | {at_most} tokens |
"""


def _row(values: Tensor, digits: int) -> str:
    return "[" + ", ".join(f"{value:.{digits}f}" if value else "0" for value in values.tolist()) + "]"
