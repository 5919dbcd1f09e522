// Activations of a feed-forward network, and their derivatives. GATED_SILU is not among them: see ../decoding/layers.h
// and ../training/mlp.h.
#pragma once
#include "../kinds.h"
#include "../simd.h"

// relu(x) = max(0, x); its slope is 1 where x > 0, and else 0.
struct Relu {
    static simd::floats value(simd::floats x) { return simd::max(simd::floats{}, x); }
    static simd::floats slope(simd::floats x) { return simd::select(x > 0.0f, simd::broadcast(1.0f), simd::floats{}); }
};
// relu2 of gpt/model/layers.py: relu(x)^2; its slope is 2 relu(x).
struct SquaredRelu {
    static simd::floats value(simd::floats x) { return Relu::value(x) * Relu::value(x); }
    static simd::floats slope(simd::floats x) { return 2.0f * Relu::value(x); }
};
// torch.nn.functional.gelu: x times the cdf of the normal distribution; its slope is cdf(x) + x cdf'(x), where cdf' is
// the density.
struct Gelu {
    static simd::floats value(simd::floats x) { return x * simd::Normal(x).cdf; }
    static simd::floats slope(simd::floats x) {
        const simd::Normal n(x);
        return simd::fma(x * 0.39894228f, n.density, n.cdf);  // the factor is 1 / sqrt(2 pi); see simd::Normal
    }
};

// GELU as in GPT-2 (Hendrycks and Gimpel, 2016): x (1 + t) / 2 with t = tanh(u), u = sqrt(2 / pi) (x + 0.044715 x^3).
// Its slope is (1 + t) / 2 + x (1 - t^2) u' / 2.
struct TanhGelu {
    static simd::floats tanh_of(simd::floats x) { return simd::tanh(0.79788456f * (x + 0.044715f * x * x * x)); }
    static simd::floats value(simd::floats x) { return 0.5f * x * (1.0f + tanh_of(x)); }
    static simd::floats slope(simd::floats x) {
        const simd::floats t = tanh_of(x);
        const simd::floats inner = 0.79788456f * (1.0f + 3.0f * 0.044715f * x * x);
        return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner;
    }
};

// Calls work with the activation above of this kind.
template <class Work> inline void with_activation(int kind, Work work) {
    if (kind == GELU) work(Gelu());
    else if (kind == GELU_TANH) work(TanhGelu());
    else if (kind == RELU) work(Relu());
    else work(SquaredRelu());
}
