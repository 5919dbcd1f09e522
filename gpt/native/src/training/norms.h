// Residual sums and norms of a block. The residual stream is float32. Widths are multiples of 16.
#pragma once
#include "../ops/norm.h"
#include "../parallel.h"
#include "dropout.h"
#include "matmul_element.h"

// Calls work(worker, n, stream of dropout) for each row.
template <class Arguments, class Work> inline void for_each_row(const Arguments& a, Work work) {
    const Dropout drop(a.seed, a.dropout);
    parallel(a.threads, [&](const Worker& w) {
        for (int n = w.first(a.rows); n < w.end(a.rows); n++) work(w, (size_t)n, drop, drop.stream(n));
    });
}

// out = x + dropout(y)
inline void add_row(float* out, const float* x, const element* y, int width, const Dropout& drop, uint32_t stream) {
    using namespace simd;
    for (int c = 0; c < width; c += LANES) {
        prefetch(x + c), prefetch(y + c), prefetch(out + c);
        store(out + c, load(x + c) + drop.apply(stream, c, load(y + c)));
    }
}

template <class Out> inline void drop_row(Out* y, const float* x, int width, const Dropout& drop, uint32_t stream) {
    using namespace simd;
    for (int c = 0; c < width; c += LANES) {
        prefetch(x + c), prefetch(y + c);
        store(y + c, drop.apply(stream, c, load(x + c)));
    }
}

struct AddArguments {
    const element* y;
    element* dy;
    const float* x;
    float* out;
    float dropout;
    uint32_t seed;
    int32_t rows, width, threads;
};

// out = x + dropout(y)
inline void add_forward(const AddArguments& a) {
    for_each_row(a, [&](const Worker&, size_t n, const Dropout& drop, uint32_t stream) {
        add_row(a.out + n * a.width, a.x + n * a.width, a.y + n * a.width, a.width, drop, stream);
    });
}

// dropout(x), to dy or else to out: the gradient of y, x being that of out.
inline void dropout(const AddArguments& a) {
    for_each_row(a, [&](const Worker&, size_t n, const Dropout& drop, uint32_t stream) {
        const size_t at = n * a.width;
        if (a.dy) drop_row(a.dy + at, a.x + at, a.width, drop, stream);
        else drop_row(a.out + at, a.x + at, a.width, drop, stream);
    });
}

struct AddNormArguments {
    const element* y;
    element* normed;
    const element* dnormed;
    element* dy;
    const float *x, *gain;
    float *stream, *mean, *inverse;
    const float* dstream;
    float *dx, *dgain;
    float eps, dropout;
    uint32_t seed;
    int32_t rows, width, centered, threads;
};

// stream = x + dropout(y), or x itself where y is null; normed = norm(stream) * gain. mean and inverse (deviation) are
// kept per row for the backward pass.
inline void add_norm_forward(const AddNormArguments& a) {
    for_each_row(a, [&](const Worker&, size_t n, const Dropout& drop, uint32_t stream) {
        const size_t at = n * a.width;
        if (a.y) add_row(a.stream + at, a.x + at, a.y + at, a.width, drop, stream);
        const float* summed = a.y ? a.stream : a.x;
        const Moments m = norm_row(a.normed + at, summed + at, a.gain, nullptr, a.width, {a.centered != 0, a.eps});
        a.mean[n] = m.mean, a.inverse[n] = m.inverse;
    });
}

// dx = dstream + the gradient through the norm; dy = dropout(dx), unless it is null; adds to dgain, (threads, width),
// one row per thread, initially zero.
inline void add_norm_backward(const AddNormArguments& a) {
    for_each_row(a, [&](const Worker& w, size_t n, const Dropout& drop, uint32_t key) {
        using namespace simd;
        const int width = a.width;
        const size_t at = n * width;
        const float *gain = a.gain, *stream = a.stream + at, *dstream = a.dstream + at;
        const element* dnormed = a.dnormed + at;
        const float mean = a.mean[n], inverse = a.inverse[n];
        float *dx = a.dx + at, *dgain = a.dgain + (size_t)w.index * width;
        element* dy = a.dy ? a.dy + at : nullptr;
        floats dot = {}, total = {};
        for (int c = 0; c < width; c += LANES) {
            prefetch(stream + c), prefetch(dnormed + c), prefetch(dstream + c);
            const floats unit = (load(stream + c) - mean) * inverse, d = load(dnormed + c), g = d * load(gain + c);
            store(dgain + c, fma(d, unit, load(dgain + c)));
            dot = fma(g, unit, dot), total += g;
        }
        // Parts of the gradient that would only scale or shift the row have no effect: the norm undoes them.
        const float along = reduce_add(dot) / width, shift = a.centered ? reduce_add(total) / width : 0.0f;
        for (int c = 0; c < width; c += LANES) {
            const floats unit = (load(stream + c) - mean) * inverse, g = load(dnormed + c) * load(gain + c);
            const floats out = fma(g - unit * along - shift, broadcast(inverse), load(dstream + c));
            store(dx + c, out);
            if (dy) store(dy + c, drop.apply(key, c, out));
        }
    });
}
