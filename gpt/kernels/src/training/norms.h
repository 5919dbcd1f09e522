// Residual sums and norms of a block. The residual stream is float32. Widths are multiples of 16.
#pragma once
#include "../parallel.h"
#include "dropout.h"
#include "matmul_element.h"

struct Rows {
    int count, width;
};

struct Norm {
    bool centered;  // LayerNorm, else RMSNorm
    float eps;
};

// out = x + dropout(y)
inline void add_row(float* out, const float* x, const element* y, int width, const Dropout& drop, uint32_t stream) {
    using namespace simd;
    for (int c = 0; c < width; c += LANES) {
        prefetch(x + c), prefetch(y + c), prefetch(out + c);
        store(out + c, load(x + c) + drop.apply(stream, c, load(y + c)));
    }
}

inline void add_forward(float* out, const float* x, const element* y, const Rows& s, const Dropout& drop, int threads) {
    parallel(threads, [&](const Worker& w) {
        for (int n = w.first(s.count); n < w.end(s.count); n++) {
            const size_t at = (size_t)n * s.width;
            add_row(out + at, x + at, y + at, s.width, drop, drop.stream(n));
        }
    });
}

inline void norm_row(element* normed, float* mean, float* inverse, const float* x, const float* gain, int width, const Norm& norm) {
    using namespace simd;
    floats total = {}, squares = {};
    for (int c = 0; c < width && norm.centered; c += LANES) total += load(x + c);
    const float m = reduce_add(total) / width;
    for (int c = 0; c < width; c += LANES) {
        const floats v = load(x + c) - m;
        squares = fma(v, v, squares);
    }
    const float r = 1.0f / std::sqrt(reduce_add(squares) / width + norm.eps);
    for (int c = 0; c < width; c += LANES) {
        prefetch(normed + c);
        store(normed + c, (load(x + c) - m) * r * load(gain + c));
    }
    *mean = m, *inverse = r;
}

// stream = x + dropout(y), or x itself where y is null; normed = norm(stream) * gain. mean and inverse (deviation) are
// kept per row for the backward pass.
inline void add_norm_forward(float* stream, element* normed, float* mean, float* inverse, const float* x, const element* y, const float* gain,
                             const Rows& s, const Norm& norm, const Dropout& drop, int threads) {
    parallel(threads, [&](const Worker& w) {
        for (int n = w.first(s.count); n < w.end(s.count); n++) {
            const size_t at = (size_t)n * s.width;
            if (y) add_row(stream + at, x + at, y + at, s.width, drop, drop.stream(n));
            norm_row(normed + at, mean + n, inverse + n, (y ? stream : x) + at, gain, s.width, norm);
        }
    });
}

// dx = dstream + the gradient through the norm; dy = dropout(dx), unless it is null; adds to dgain.
inline void add_norm_row_backward(float* dx, element* dy, float* dgain, const float* dstream, const element* dnormed, const float* stream, float mean,
                                  float inverse, const float* gain, int width, const Norm& norm, const Dropout& drop, uint32_t key) {
    using namespace simd;
    floats dot = {}, total = {};
    for (int c = 0; c < width; c += LANES) {
        prefetch(stream + c), prefetch(dnormed + c), prefetch(dstream + c);
        const floats unit = (load(stream + c) - mean) * inverse, d = load(dnormed + c), g = d * load(gain + c);
        store(dgain + c, fma(d, unit, load(dgain + c)));
        dot = fma(g, unit, dot), total += g;
    }
    const float along = reduce_add(dot) / width, shift = norm.centered ? reduce_add(total) / width : 0.0f;
    for (int c = 0; c < width; c += LANES) {
        const floats unit = (load(stream + c) - mean) * inverse, g = load(dnormed + c) * load(gain + c);
        const floats out = fma(g - unit * along - shift, broadcast(inverse), load(dstream + c));
        store(dx + c, out);
        if (dy) store(dy + c, drop.apply(key, c, out));
    }
}

// dgain: (threads, width), one row per thread, initially zero.
inline void add_norm_backward(float* dx, element* dy, float* dgain, const float* dstream, const element* dnormed, const float* stream, const float* mean,
                              const float* inverse, const float* gain, const Rows& s, const Norm& norm, const Dropout& drop, int threads) {
    parallel(threads, [&](const Worker& w) {
        for (int n = w.first(s.count); n < w.end(s.count); n++) {
            const size_t at = (size_t)n * s.width;
            add_norm_row_backward(dx + at, dy ? dy + at : nullptr, dgain + (size_t)w.index * s.width, dstream + at, dnormed + at, stream + at, mean[n],
                                  inverse[n], gain, s.width, norm, drop, drop.stream(n));
        }
    });
}

// y = dropout(x): dropout by itself, and the backward pass of add_forward.
template <class Out> inline void dropout_rows(Out* y, const float* x, const Rows& s, const Dropout& drop, int threads) {
    using namespace simd;
    parallel(threads, [&](const Worker& w) {
        for (int n = w.first(s.count); n < w.end(s.count); n++) {
            const uint32_t key = drop.stream(n);
            for (int c = 0; c < s.width; c += LANES) {
                const size_t at = (size_t)n * s.width + c;
                prefetch(x + at), prefetch(y + at);
                store(y + at, drop.apply(key, c, load(x + at)));
            }
        }
    });
}
