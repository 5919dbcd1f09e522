// From logits to a token, as gpt/generation/decoding/sampling.py does it.
#pragma once
#include "decode_model.h"
#include <algorithm>
#include <cmath>
#include <numeric>

static void softmax(float* x, int count) {
    float top = *std::max_element(x, x + count), total = 0.0f;
    for (int i = 0; i < count; i++) total += x[i] = std::exp(x[i] - top);
    for (int i = 0; i < count; i++) x[i] /= total;
}

// Logits that stay; the others become -inf. `ranks` and `order` are scratch.
static void filter(float* x, int count, const Sampling& p, float* ranks, int32_t* order) {
    if (p.top_k > 0 && p.top_k < count) {
        std::copy(x, x + count, ranks);
        std::nth_element(ranks, ranks + p.top_k - 1, ranks + count, [](float a, float b) { return a > b; });
        const float least = ranks[p.top_k - 1];
        for (int i = 0; i < count; i++) x[i] = x[i] < least ? -INFINITY : x[i];
    }
    if (p.top_p < 1.0f) {
        std::copy(x, x + count, ranks);
        softmax(ranks, count);
        std::iota(order, order + count, 0);
        std::sort(order, order + count, [&](int a, int b) { return ranks[a] > ranks[b] || (ranks[a] == ranks[b] && a < b); });
        float before = 0.0f;
        for (int i = 0; i < count; before += ranks[order[i]], i++)
            if (before >= p.top_p && before > 0.0f) x[order[i]] = -INFINITY;
    }
    if (p.min_p > 0.0f) {
        std::copy(x, x + count, ranks);
        softmax(ranks, count);
        const float least = p.min_p * *std::max_element(ranks, ranks + count);
        for (int i = 0; i < count; i++) x[i] = ranks[i] < least ? -INFINITY : x[i];
    }
}

// The token that a number in [0, 1) picks. `x` is overwritten; seen: which tokens the penalty is for, or null.
static int draw(float* x, int count, const Sampling& p, float uniform, const uint8_t* seen, float* ranks, int32_t* order) {
    for (int i = 0; i < count && seen; i++)
        if (seen[i]) x[i] = x[i] > 0.0f ? x[i] / p.penalty : x[i] * p.penalty;
    const float top = *std::max_element(x, x + count);
    if (p.temperature == 0.0f) return (int)(std::max_element(x, x + count) - x);
    for (int i = 0; i < count; i++) x[i] = (x[i] - top) / p.temperature;
    filter(x, count, p, ranks, order);
    softmax(x, count);
    double total = 0.0, reached = 0.0;
    for (int i = 0; i < count; i++) total += x[i];
    int last = 0;
    for (int i = 0; i < count; i++) {
        if (x[i] > 0.0f) last = i;
        if ((reached += x[i]) > uniform * total) return i;
    }
    return last;
}

static bool is_finite(const float* x, int count) {
    float product = 0.0f;
    for (int i = 0; i < count; i++) product += x[i] * 0.0f;  // 0, or not a number
    return product == 0.0f;
}
