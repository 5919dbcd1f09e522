// The activation of a feed-forward network, and its gradient.
#pragma once
#include "../ops/activations.h"
#include "../parallel.h"
#include "matmul_element.h"

// x: (rows, width), or for GATED_SILU (rows, 2 width), gate and up side by side; y: (rows, width), width a multiple
// of 16.
struct ActivationArguments {
    const element* x;
    element* y;
    const element* dy;
    element* dx;
    int32_t kind, rows, width, threads;
};

// Calls work(i) for each vector of y.
template <class Work> inline void for_each_vector(const ActivationArguments& a, Work work) {
    parallel(a.threads, [&](const Worker& w) {
        const int64_t vectors = (int64_t)a.rows * a.width / 16;
        const int64_t first = vectors * w.index / w.count, end = vectors * (w.index + 1) / w.count;
        for (int64_t i = 16 * first; i < 16 * end; i += simd::LANES) work(i);
    });
}

// Calls work(start in x, start in y) for each vector of gates.
template <class Work> inline void for_each_gate(const ActivationArguments& a, Work work) {
    parallel(a.threads, [&](const Worker& w) {
        for (int n = w.first(a.rows); n < w.end(a.rows); n++)
            for (int c = 0; c < a.width; c += simd::LANES) work((size_t)n * 2 * a.width + c, (size_t)n * a.width + c);
    });
}

inline void activation_forward(const ActivationArguments& a) {
    using namespace simd;
    const element* x = a.x;
    element* y = a.y;
    const int width = a.width;
    if (a.kind == GATED_SILU)
        return for_each_gate(a, [=](size_t at, size_t out) {
            prefetch(x + at), prefetch(x + at + width), prefetch(y + out);
            const floats g = load(x + at);
            store(y + out, g * sigmoid(g) * load(x + at + width));
        });
    with_activation(a.kind, [&](auto function) {
        for_each_vector(a, [=](int64_t i) {
            prefetch(x + i), prefetch(y + i);
            store(y + i, function.value(load(x + i)));
        });
    });
}

inline void activation_backward(const ActivationArguments& a) {
    using namespace simd;
    const element *x = a.x, *dy = a.dy;
    element* dx = a.dx;
    const int width = a.width;
    if (a.kind == GATED_SILU)
        return for_each_gate(a, [=](size_t at, size_t out) {
            prefetch(x + at), prefetch(x + at + width), prefetch(dy + out), prefetch(dx + at),
                prefetch(dx + at + width);
            const floats g = load(x + at), s = sigmoid(g), d = load(dy + out);
            // The slope of SiLU, g s, is s (1 + g (1 - s)).
            store(dx + at, d * load(x + at + width) * s * fma(g, 1.0f - s, broadcast(1.0f)));
            store(dx + at + width, d * g * s);
        });
    with_activation(a.kind, [&](auto function) {
        for_each_vector(a, [=](int64_t i) {
            prefetch(x + i), prefetch(dy + i), prefetch(dx + i);
            store(dx + i, load(dy + i) * function.slope(load(x + i)));
        });
    });
}
