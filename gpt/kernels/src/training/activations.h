// Activations of a feed-forward network, and their derivatives.
#pragma once
#include "../parallel.h"
#include "matmul_element.h"

struct Relu {
    static simd::floats value(simd::floats x) { return simd::max(simd::floats{}, x); }
    static simd::floats slope(simd::floats x) { return simd::select(x > 0.0f, simd::broadcast(1.0f), simd::floats{}); }
};
struct SquaredRelu {
    static simd::floats value(simd::floats x) { return Relu::value(x) * Relu::value(x); }
    static simd::floats slope(simd::floats x) { return 2.0f * Relu::value(x); }
};
struct Gelu {
    static simd::floats value(simd::floats x) { return x * simd::Normal(x).cdf; }
    static simd::floats slope(simd::floats x) {
        const simd::Normal n(x);
        return simd::fma(x * 0.39894228f, n.density, n.cdf);
    }
};

// Calls work(i) for each vector of `count` elements, a multiple of 16.
template <class Work> inline void for_each_vector(int64_t count, int threads, Work work) {
    parallel(threads, [&](const Worker& w) {
        const int64_t vectors = count / 16, first = vectors * w.index / w.count, end = vectors * (w.index + 1) / w.count;
        for (int64_t i = 16 * first; i < 16 * end; i += simd::LANES) work(i);
    });
}

template <class Activation> inline void activate(element* y, const element* x, int64_t count, int threads) {
    using namespace simd;
    for_each_vector(count, threads, [=](int64_t i) {
        prefetch(x + i), prefetch(y + i);
        store(y + i, Activation::value(load(x + i)));
    });
}

template <class Activation> inline void activate_backward(element* dx, const element* dy, const element* x, int64_t count, int threads) {
    using namespace simd;
    for_each_vector(count, threads, [=](int64_t i) {
        prefetch(x + i), prefetch(dy + i), prefetch(dx + i);
        store(dx + i, load(dy + i) * Activation::slope(load(x + i)));
    });
}

// SwiGLU: y = silu(gate) * up. x: (rows, 2 width), gate and up side by side; y: (rows, width), width a multiple of 16.
inline void gate_forward(element* y, const element* x, int rows, int width, int threads) {
    using namespace simd;
    parallel(threads, [&](const Worker& w) {
        for (int n = w.first(rows); n < w.end(rows); n++)
            for (int c = 0; c < width; c += LANES) {
                const element* gate = x + (size_t)n * 2 * width + c;
                element* out = y + (size_t)n * width + c;
                prefetch(gate), prefetch(gate + width), prefetch(out);
                const floats g = load(gate);
                store(out, g * sigmoid(g) * load(gate + width));
            }
    });
}

inline void gate_backward(element* dx, const element* dy, const element* x, int rows, int width, int threads) {
    using namespace simd;
    parallel(threads, [&](const Worker& w) {
        for (int n = w.first(rows); n < w.end(rows); n++)
            for (int c = 0; c < width; c += LANES) {
                const element *gate = x + (size_t)n * 2 * width + c, *gradient = dy + (size_t)n * width + c;
                element* out = dx + (size_t)n * 2 * width + c;
                prefetch(gate), prefetch(gate + width), prefetch(gradient), prefetch(out), prefetch(out + width);
                const floats g = load(gate), s = sigmoid(g), d = load(gradient);
                store(out, d * load(gate + width) * s * fma(g, 1.0f - s, broadcast(1.0f)));
                store(out + width, d * g * s);
            }
    });
}
