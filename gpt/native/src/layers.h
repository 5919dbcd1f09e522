// What lies between the matrix products of a block: residual sums, norms, activations. The residual
// stream is float32, what enters a product bfloat16. Widths are multiples of 16.
#pragma once
#include "vector.h"
#include <omp.h>
#include <stddef.h>

// --- residual sum and norm -----------------------------------------------------------------------

struct NormShape {
    int rows, width, threads;
    bool centred;  // LayerNorm, else RMSNorm
    float eps;
};

// stream = x + dropout(y), or x itself where y is null; normed = norm(stream) * gain.
// mean and inverse (deviation) are kept per row for the backward pass.
static void add_norm_forward(float* stream, bf16* normed, float* mean, float* inverse, const float* x, const bf16* y,
                             const float* gain, const NormShape& s, const Dropout& drop) {
    const int C = s.width;
#pragma omp parallel for num_threads(s.threads) schedule(static)
    for (int n = 0; n < s.rows; n++) {
        const size_t at = (size_t)n * C;
        const float* row = x + at;
        vec total = all(0.0f), squares = all(0.0f);
        if (y) {
            const uint32_t key = drop.stream(n);
            for (int c = 0; c < C; c += 16) {
                ahead(row + c), ahead(y + at + c), ahead(stream + at + c);
                store(stream + at + c, load(row + c) + drop.apply(key, c, load(y + at + c)));
            }
            row = stream + at;
        }
        if (s.centred)
            for (int c = 0; c < C; c += 16) total = total + load(row + c);
        const vec m = all(sum(total) / C);
        for (int c = 0; c < C; c += 16) {
            vec v = load(row + c) - m;
            squares = fma(v, v, squares);
        }
        const vec r = all(1.0f / sqrtf(sum(squares) / C + s.eps));
        for (int c = 0; c < C; c += 16) {
            ahead(normed + at + c);
            store(normed + at + c, (load(row + c) - m) * r * load(gain + c));
        }
        mean[n] = _mm512_cvtss_f32(m), inverse[n] = _mm512_cvtss_f32(r);
    }
}

// dx = dstream + the gradient through the norm; dy = dropout(dx), unless dy is null.
// dgain: (threads, C), one row a thread, zero at first.
static void add_norm_backward(float* dx, bf16* dy, float* dgain, const float* dstream, const bf16* dnormed, const float* stream,
                              const float* mean, const float* inverse, const float* gain, const NormShape& s, const Dropout& drop) {
    const int C = s.width;
#pragma omp parallel num_threads(s.threads)
    {
        float* own = dgain + (size_t)omp_get_thread_num() * C;
#pragma omp for schedule(static)
        for (int n = 0; n < s.rows; n++) {
            const size_t at = (size_t)n * C;
            const vec m = all(mean[n]), r = all(inverse[n]);
            vec dot = all(0.0f), total = all(0.0f);
            for (int c = 0; c < C; c += 16) {
                ahead(stream + at + c), ahead(dnormed + at + c), ahead(dstream + at + c);
                vec unit = (load(stream + at + c) - m) * r, d = load(dnormed + at + c), g = d * load(gain + c);
                store(own + c, fma(d, unit, load(own + c)));
                dot = fma(g, unit, dot), total = total + g;
            }
            const vec along = all(sum(dot) / C), shift = all(s.centred ? sum(total) / C : 0.0f);
            const uint32_t key = drop.stream(n);
            for (int c = 0; c < C; c += 16) {
                vec unit = (load(stream + at + c) - m) * r, g = load(dnormed + at + c) * load(gain + c);
                vec out = load(dstream + at + c) + r * (g - unit * along - shift);
                store(dx + at + c, out);
                if (dy) store(dy + at + c, drop.apply(key, c, out));
            }
        }
    }
}

// --- residual sum alone --------------------------------------------------------------------------

static void add_forward(float* out, const float* x, const bf16* y, const NormShape& s, const Dropout& drop) {
#pragma omp parallel for num_threads(s.threads) schedule(static)
    for (int n = 0; n < s.rows; n++) {
        const uint32_t key = drop.stream(n);
        for (int c = 0; c < s.width; c += 16) {
            const size_t at = (size_t)n * s.width + c;
            ahead(x + at), ahead(y + at), ahead(out + at);
            store(out + at, load(x + at) + drop.apply(key, c, load(y + at)));
        }
    }
}

static void add_backward(bf16* dy, const float* dout, const NormShape& s, const Dropout& drop) {
#pragma omp parallel for num_threads(s.threads) schedule(static)
    for (int n = 0; n < s.rows; n++) {
        const uint32_t key = drop.stream(n);
        for (int c = 0; c < s.width; c += 16) {
            const size_t at = (size_t)n * s.width + c;
            ahead(dout + at), ahead(dy + at);
            store(dy + at, drop.apply(key, c, load(dout + at)));
        }
    }
}

// --- dropout alone -------------------------------------------------------------------------------

// out = dropout(x); its own backward pass, with the same seed.
static void drop_out(float* out, const float* x, const NormShape& s, const Dropout& drop) {
#pragma omp parallel for num_threads(s.threads) schedule(static)
    for (int n = 0; n < s.rows; n++) {
        const uint32_t key = drop.stream(n);
        for (int c = 0; c < s.width; c += 16) {
            const size_t at = (size_t)n * s.width + c;
            ahead(x + at), ahead(out + at);
            store(out + at, drop.apply(key, c, load(x + at)));
        }
    }
}

// --- activations ---------------------------------------------------------------------------------

struct Relu {
    static vec value(vec x) { return _mm512_max_ps(all(0.0f), x); }
    static vec slope(vec x) { return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, all(0.0f), _CMP_GT_OQ), all(1.0f)); }
};
struct SquaredRelu {
    static vec value(vec x) { return Relu::value(x) * Relu::value(x); }
    static vec slope(vec x) { return all(2.0f) * Relu::value(x); }
};
struct Gelu {
    static vec value(vec x) { return x * Normal(x).below; }
    static vec slope(vec x) {
        Normal n(x);
        return fma(x * all(0.39894228f), n.bell, n.below);
    }
};

// SwiGLU: y = silu(gate) * up. x: (rows, 2 width), gate and up side by side; y: (rows, width).
static void gate_forward(bf16* y, const bf16* x, const NormShape& s) {
#pragma omp parallel for num_threads(s.threads) schedule(static)
    for (int n = 0; n < s.rows; n++)
        for (int c = 0; c < s.width; c += 16) {
            const bf16* gate = x + (size_t)n * 2 * s.width + c;
            bf16* out = y + (size_t)n * s.width + c;
            ahead(gate), ahead(gate + s.width), ahead(out);
            vec g = load(gate);
            store(out, g * sigmoid(g) * load(gate + s.width));
        }
}
static void gate_backward(bf16* dx, const bf16* dy, const bf16* x, const NormShape& s) {
#pragma omp parallel for num_threads(s.threads) schedule(static)
    for (int n = 0; n < s.rows; n++)
        for (int c = 0; c < s.width; c += 16) {
            const bf16 *gate = x + (size_t)n * 2 * s.width + c, *from = dy + (size_t)n * s.width + c;
            bf16* out = dx + (size_t)n * 2 * s.width + c;
            ahead(gate), ahead(gate + s.width), ahead(from), ahead(out), ahead(out + s.width);
            vec g = load(gate), share = sigmoid(g), d = load(from);
            store(out, d * load(gate + s.width) * share * fma(g, all(1.0f) - share, all(1.0f)));
            store(out + s.width, d * g * share);
        }
}

template <class Activation> static void activate(bf16* y, const bf16* x, int64_t count, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < count; i += 16) {
        ahead(x + i), ahead(y + i);
        store(y + i, Activation::value(load(x + i)));
    }
}
template <class Activation> static void activate_backward(bf16* dx, const bf16* dy, const bf16* x, int64_t count, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < count; i += 16) {
        ahead(x + i), ahead(dy + i), ahead(dx + i);
        store(dx + i, load(dy + i) * Activation::slope(load(x + i)));
    }
}
