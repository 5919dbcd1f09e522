// The gradients of a vector of attention weights and of their scores.
#pragma once
#include "dropout.h"

// e^x, of weights. Where they are rounded to bfloat16, a cubic polynomial in place of simd::exp's, found by Remez'
// algorithm: its relative error is 7.5e-5, a twentieth of the rounding's.
inline simd::floats weight_exp(simd::floats x) {
#ifdef GPT_BFLOAT16
    using namespace simd;
    const floats clamped = max(broadcast(-87.0f), x), log2e = broadcast(1.44269502f);
    const floats shifted = fma(clamped, log2e, broadcast(12582912.0f));
    const floats f = fma(clamped, log2e, 12582912.0f - shifted);
    floats p = fma(f, broadcast(0.0551716021f), broadcast(0.242611131f));
    p = fma(p, f, broadcast(0.693260995f));
    p = fma(p, f, broadcast(0.999928073f));
    return (floats)((words)p + ((words)shifted << 23));
#else
    return simd::exp(x);
#endif
}

struct WeightGradients {
    simd::floats kept, dscore;  // the weights after dropout; the gradient of their scores
};

// dweight: gradient of the weights after dropout; delta: see load_queries; streams: of dropout, plus the index of each.
inline WeightGradients gradients_of(simd::floats weight, simd::floats dweight, simd::floats delta, simd::words streams,
                                    const Dropout& drop) {
    simd::floats kept = weight;
    if (drop.active()) {
        const simd::ints mask = drop.kept(streams);
        dweight = drop.apply(mask, dweight), kept = drop.apply(mask, weight);
    }
    return {kept, weight * (dweight - delta)};
}
