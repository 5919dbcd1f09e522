// Activations of a feed-forward network, and their derivatives. GELU_TANH and GATED_SILU are not among them: see
// ../decoding/layers.h and ../training/mlp.h.
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

// Calls work with the activation above of this kind.
template <class Work> inline void with_activation(int kind, Work work) {
    if (kind == GELU) work(Gelu());
    else if (kind == RELU) work(Relu());
    else work(SquaredRelu());
}
