// Samples a token from logits, like gpt/generation/sampling.py.
#pragma once
#include "../simd.h"
#include "model.h"
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <numeric>

// x and y have room for whole vectors.
inline void softmax(float* y, const float* x, int count) {
    using namespace simd;
    const float top = *std::max_element(x, x + count);
    floats total = {};
    for (int i = 0; i < count; i += LANES) {
        const floats score = load(x + i) - top;
        // simd::exp clamps its argument at -87, so that it does not reach 0 by itself.
        const floats e = select(lanes() < count - i, select(score > -87.0f, simd::exp(score), floats{}), floats{});
        total += e;
        store(y + i, e);
    }
    const float sum_of_all = simd::reduce_add(total);
    for (int i = 0; i < count; i++) y[i] /= sum_of_all;
}

// Sets the logits of tokens that the filters drop to -inf. `ranks` and `order` are scratch.
inline void filter(float* x, int count, const Sampling& p, float* ranks, int32_t* order) {
    if (p.top_k > 0 && p.top_k < count) {
        std::copy(x, x + count, ranks);
        std::nth_element(ranks, ranks + p.top_k - 1, ranks + count, [](float a, float b) { return a > b; });
        const float least = ranks[p.top_k - 1];
        for (int i = 0; i < count; i++) x[i] = x[i] < least ? -INFINITY : x[i];
    }
    if (p.top_p < 1.0f) {
        softmax(ranks, x, count);
        std::iota(order, order + count, 0);
        std::sort(order, order + count,
                  [&](int a, int b) { return ranks[a] > ranks[b] || (ranks[a] == ranks[b] && a < b); });
        double before = 0.0;
        for (int i = 0; i < count; before += ranks[order[i]], i++)
            if (before >= p.top_p && before > 0.0) x[order[i]] = -INFINITY;
    }
    if (p.min_p > 0.0f) {
        softmax(ranks, x, count);
        const float least = p.min_p * *std::max_element(ranks, ranks + count);
        for (int i = 0; i < count; i++) x[i] = ranks[i] < least ? -INFINITY : x[i];
    }
}

inline bool is_finite(const float* x, int count) {
    float zero = 0.0f;
    for (int i = 0; i < count; i++) zero += x[i] * 0.0f;  // 0, or NaN
    return zero == 0.0f;
}

// The repetition penalty (Keskar et al., 2019), clamped to finite floats: a penalty may be tiny.
inline void penalize(float* x, int count, float penalty, const uint8_t* seen) {
    for (int i = 0; i < count; i++)
        if (seen[i]) x[i] = std::min(FLT_MAX, std::max(-FLT_MAX, x[i] > 0.0f ? x[i] / penalty : x[i] * penalty));
}

// Samples by inverse transform of `uniform` in [0, 1); returns the token, or -1 if a logit is not finite. `x` is
// overwritten; seen: the tokens to penalize, or null.
inline int sample(float* x, int count, const Sampling& p, float uniform, const uint8_t* seen, float* ranks,
                  int32_t* order) {
    if (!is_finite(x, count)) return -1;
    count = std::min(count, p.ids);
    if (seen) penalize(x, count, p.penalty, seen);
    const float top = *std::max_element(x, x + count);
    if (p.temperature == 0.0f) return (int)(std::max_element(x, x + count) - x);
    for (int i = 0; i < count; i++) x[i] = (x[i] - top) / p.temperature;
    filter(x, count, p, ranks, order);
    softmax(x, x, count);
    // The probabilities add up to 1 but for rounding, by which the sum might not reach `uniform`: then the last that is
    // possible is taken.
    double total = 0.0, reached = 0.0;
    for (int i = 0; i < count; i++) total += x[i];
    int last = 0;
    for (int i = 0; i < count; i++) {
        if (x[i] > 0.0f) last = i;
        if ((reached += x[i]) > uniform * total) return i;
    }
    return last;
}
