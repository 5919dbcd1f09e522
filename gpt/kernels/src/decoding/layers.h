// What lies between the products: norms, activations, attention of one head.
// With PLAIN defined, the loops are written as one would first write them; they are the reference.
#pragma once
#include "decode_model.h"
#include "floats.h"
#include <algorithm>
#include <cmath>

// --- elementwise: rows of floats, filled up to a multiple of 16 ------------------------------------

#ifdef PLAIN

static void normalise(float* y, const float* x, const float* gain, const float* bias, int width, bool is_centred, float eps) {
    double mean = 0.0, squares = 0.0;
    for (int c = 0; c < width && is_centred; c++) mean += x[c] / (double)width;
    for (int c = 0; c < width; c++) squares += (x[c] - mean) * (x[c] - mean);
    for (int c = 0; c < width; c++) y[c] = (x[c] - mean) / std::sqrt(squares / width + eps) * gain[c] + (bias ? bias[c] : 0.0f);
}

static void activate(float* y, const float* gate, int from, int to, Activation kind) {
    for (int i = from; i < to; i++) {
        const float x = y[i];
        switch (kind) {
            case GELU: y[i] = x * 0.5f * (1.0f + std::erf(x * 0.70710678f)); break;
            case GELU_TANH: y[i] = 0.5f * x * (1.0f + std::tanh(0.79788456f * (x + 0.044715f * x * x * x))); break;
            case RELU: y[i] = larger(0.0f, x); break;
            case RELU_SQUARED: y[i] = larger(0.0f, x) * larger(0.0f, x); break;
            case GATED_SILU: y[i] = x * gate[i] / (1.0f + std::exp(-gate[i]));
        }
    }
}

static void cap_logits(float* x, int count, float cap) {
    for (int i = 0; i < count; i++) x[i] = cap * std::tanh(x[i] / cap);
}

#else

// LayerNorm where it is centred, else RMSNorm. What lies past the width is 0 in x and in gain.
static void normalise(float* y, const float* x, const float* gain, const float* bias, int width, bool is_centred, float eps) {
    floats total = {}, squares = {};
    for (int c = 0; c < width && is_centred; c += LANES) total += load(x + c);
    const float mean = is_centred ? sum(total) / width : 0.0f;
    for (int c = 0; c < width; c += LANES) {
        floats v = load(x + c) - mean;
        if (c + LANES > width) v = lanes() < width - c ? v : floats{};
        squares += v * v;
    }
    const float inverse = 1.0f / std::sqrt(sum(squares) / width + eps);
    for (int c = 0; c < width; c += LANES) {
        floats v = (load(x + c) - mean) * inverse * load(gain + c);
        store(y + c, bias ? v + load(bias + c) : v);
    }
}

static floats activated(floats x, floats gate, Activation kind) {
    switch (kind) {
        case GELU: return x * normal_below(x);
        case GELU_TANH: return 0.5f * x * (1.0f + tanh(0.79788456f * (x + 0.044715f * x * x * x)));
        case RELU: return larger(floats{}, x);
        case RELU_SQUARED: return larger(floats{}, x) * larger(floats{}, x);
        default: return x * gate / (1.0f + exp(-gate));
    }
}

static void activate(float* y, const float* gate, int from, int to, Activation kind) {
    for (int i = from; i < to; i += LANES) store(y + i, activated(load(y + i), kind == GATED_SILU ? load(gate + i) : floats{}, kind));
}

static void cap_logits(float* x, int count, float cap) {
    for (int i = 0; i < count; i += LANES) store(x + i, cap * tanh(load(x + i) / cap));
}

#endif

// --- attention -----------------------------------------------------------------------------------

// Where the first number of a key lies; the others follow at a distance of BLOCK. Keys are turned in blocks of 64
// positions, (capacity / 64, D, 64), so that scores need no sum across lanes and a pass reads memory in order.
static size_t key_at(int position, int D) { return (size_t)(position / BLOCK) * BLOCK * D + position % BLOCK; }

// Of one query head over the first positions of its row; values (capacity, padded D). weights: (capacity), scratch.
#ifdef PLAIN

static void attend(float* y, const float* q, const float* keys, const float* values, int positions, int D, float* weights) {
    float top = -INFINITY, total = 0.0f;
    for (int j = 0; j < positions; j++) {
        weights[j] = 0.0f;
        for (int d = 0; d < D; d++) weights[j] += q[d] * keys[key_at(j, D) + (size_t)d * BLOCK];
        top = std::max(top, weights[j]);
    }
    for (int j = 0; j < positions; j++) total += weights[j] = std::exp(weights[j] - top);
    for (int d = 0; d < D; d++) {
        float value = 0.0f;
        for (int j = 0; j < positions; j++) value += weights[j] * values[(size_t)j * round_up(D, LANES) + d];
        y[d] = value / total;
    }
}

#else

// Columns d to d + 16 N of the weighted sum of values.
template <int N>
static void add_values(float* y, const float* values, int d, int positions, int D, const float* weights, float inverse) {
    const int padded = round_up(D, LANES);
    floats part[4][N] = {};  // of every fourth position
    int j = 0;
    for (; j + 4 <= positions; j += 4)
        for (int i = 0; i < 4; i++)
            for (int n = 0; n < N; n++) part[i][n] += weights[j + i] * load(values + (size_t)(j + i) * padded + d + n * LANES);
    for (; j < positions; j++)
        for (int n = 0; n < N; n++) part[0][n] += weights[j] * load(values + (size_t)j * padded + d + n * LANES);
    for (int n = 0; n < N; n++, d += LANES) {
        const floats value = ((part[0][n] + part[1][n]) + (part[2][n] + part[3][n])) * inverse;
        if (d + LANES <= D) store(y + d, value);
        else for (int i = 0; i < D - d; i++) y[d + i] = value[i];
    }
}

static void attend(float* y, const float* q, const float* keys, const float* values, int positions, int D, float* weights) {
    floats top = all(-INFINITY), total = {};
    for (int j = 0; j < positions; j += BLOCK) {
        const float* block = keys + key_at(j, D);
        floats scores[VECTORS] = {};
        for (int d = 0; d < D; d++)
            for (int v = 0; v < VECTORS; v++) scores[v] += q[d] * load(block + (size_t)d * BLOCK + v * LANES);
        for (int v = 0; v < VECTORS; v++) {
            scores[v] = lanes() < positions - j - v * LANES ? scores[v] : all(-INFINITY);
            top = larger(top, scores[v]);
            store(weights + j + v * LANES, scores[v]);
        }
    }
    const float peak = largest(top);
    for (int j = 0; j < positions; j += LANES) {
        floats e = exp(load(weights + j) - peak);
        e = lanes() < positions - j ? e : floats{};
        store(weights + j, e);
        total += e;
    }
    const float inverse = 1.0f / sum(total);
    for (int d = 0; d < D; d += 4 * LANES) {
        static const auto kernels = {add_values<1>, add_values<2>, add_values<3>, add_values<4>};
        kernels.begin()[std::min(3, (D - d - 1) / LANES)](y, values, d, positions, D, weights, inverse);
    }
}

#endif

// A head's vector, normed, turned and scaled; y may be x.
static void prepare_head(float* y, const float* x, const Model& m, const float* gain, int position, float scale) {
    const int D = m.head_width, half = D / 2;
    float inverse = scale;
    if (gain) {
        float squares = 0.0f;
        for (int d = 0; d < D; d++) squares += x[d] * x[d];
        inverse = scale / std::sqrt(squares / D + m.eps);
    }
    for (int d = 0; d < D; d++) y[d] = x[d] * inverse * (gain ? gain[d] : 1.0f);
    if (!m.cosine) return;
    const float *cosine = m.cosine + (size_t)position * D, *sine = m.sine + (size_t)position * D;
    for (int d = 0; d < half; d++) {
        const float a = y[d], b = y[half + d];
        y[d] = a * cosine[d] - b * sine[d];
        y[half + d] = b * cosine[half + d] + a * sine[half + d];
    }
}
