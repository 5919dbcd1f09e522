// Sampling a token from logits x, as gpt/generation/sampling.py does. p are the sampling parameters.
#pragma once
#include "../simd.h"
#include "model.h"
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <numeric>

// y = softmax(x); y may be x. Both have room for whole vectors.
inline void softmax(float* y, const float* x, int count) {
    using namespace simd;
    const float top = *std::max_element(x, x + count);
    floats total = {};
    for (int i = 0; i < count; i += LANES) {
        const floats score = load(x + i) - top;
        // simd::exp clamps its argument at -87 and so never returns 0, but filtered tokens must have probability 0.
        const floats e = select(lanes() < count - i, select(score > -87.0f, simd::exp(score), floats{}), floats{});
        total += e;
        store(y + i, e);
    }
    const float sum_of_all = simd::reduce_add(total);
    for (int i = 0; i < count; i++) y[i] /= sum_of_all;
}

// Sets the logits of the tokens that the filters drop to -inf. `ranks` and `order` are temporary memory.
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
        // A token stays if the tokens before it, which are more probable, do not reach top_p. The first always stays.
        double before = 0.0;
        for (int i = 0; i < count; before += ranks[order[i]], i++)
            if (before >= p.top_p && before > 0.0) x[order[i]] = -INFINITY;
    }
    // Tokens stay if their probability is at least min_p times the largest one.
    if (p.min_p > 0.0f) {
        softmax(ranks, x, count);
        const float least = p.min_p * *std::max_element(ranks, ranks + count);
        for (int i = 0; i < count; i++) x[i] = ranks[i] < least ? -INFINITY : x[i];
    }
}

inline bool is_finite(const float* x, int count) {
    float zero = 0.0f;
    for (int i = 0; i < count; i++) zero += x[i] * 0.0f;  // NaN if x[i] is not finite
    return zero == 0.0f;
}

// Applies the repetition penalty (Keskar et al., 2019) to the tokens that were seen. Dividing by a tiny penalty would
// give an infinite logit, so that logits are clamped.
inline void penalize(float* x, int count, float penalty, const uint8_t* seen) {
    for (int i = 0; i < count; i++)
        if (seen[i]) x[i] = std::min(FLT_MAX, std::max(-FLT_MAX, x[i] > 0.0f ? x[i] / penalty : x[i] * penalty));
}

// Samples a token by inverse transform sampling: the first token at which the sum of probabilities exceeds `uniform`, a
// random number in [0, 1). Returns the token, or -1 if a logit is not finite. x: the logits, which are overwritten.
// seen: 1 for tokens to penalize, or null.
inline int sample(float* x, int count, const Sampling& p, float uniform, const uint8_t* seen, float* ranks,
                  int32_t* order) {
    if (!is_finite(x, count)) return -1;
    count = std::min(count, p.ids);
    if (seen) penalize(x, count, p.penalty, seen);
    const float top = *std::max_element(x, x + count);
    if (p.temperature == 0.0f) return (int)(std::max_element(x, x + count) - x);
    // The largest logit becomes 0, so that a tiny temperature makes none of them infinitely large.
    for (int i = 0; i < count; i++) x[i] = (x[i] - top) / p.temperature;
    filter(x, count, p, ranks, order);
    softmax(x, x, count);
    // Because of rounding the probabilities do not add up to exactly 1, and their sum may not exceed `uniform`. The
    // last token with a probability is then returned.
    double total = 0.0, reached = 0.0;
    for (int i = 0; i < count; i++) total += x[i];
    int last = 0;
    for (int i = 0; i < count; i++) {
        if (x[i] > 0.0f) last = i;
        if ((reached += x[i]) > uniform * total) return i;
    }
    return last;
}
