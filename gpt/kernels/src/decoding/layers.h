// The operations between matmuls: norms, activations, rotary positions. Rows of floats are padded to a multiple of 64.
// With PLAIN defined, the loops are written in the simplest way: the reference.
#pragma once
#include "../simd.h"
#include "model.h"
#include <cmath>

#ifdef PLAIN

inline void normalize(float* y, const float* x, const float* gain, const float* bias, const Model& m) {
    double mean = 0.0, squares = 0.0;
    for (int c = 0; c < m.dim && m.is_layer_norm; c++) mean += x[c] / (double)m.dim;
    for (int c = 0; c < m.dim; c++) squares += (x[c] - mean) * (x[c] - mean);
    for (int c = 0; c < m.dim; c++)
        y[c] = (x[c] - mean) / std::sqrt(squares / m.dim + m.eps) * gain[c] + (bias ? bias[c] : 0.0f);
}

inline void activate(float* y, const float* gate, int first, int end, int activation) {
    for (int i = first; i < end; i++) {
        const float x = y[i], positive = x > 0.0f || x != x ? x : 0.0f;
        switch (activation) {
            case GELU: y[i] = x * 0.5f * (1.0f + std::erf(x * 0.70710678f)); break;
            case GELU_TANH: y[i] = 0.5f * x * (1.0f + std::tanh(0.79788456f * (x + 0.044715f * x * x * x))); break;
            case RELU: y[i] = positive; break;
            case RELU_SQUARED: y[i] = positive * positive; break;
            case GATED_SILU: y[i] = x * gate[i] / (1.0f + std::exp(-gate[i]));
        }
    }
}

inline void cap_logits(float* x, int first, int end, float cap) {
    for (int i = first; i < end; i++) x[i] = cap * std::tanh(x[i] / cap);
}

#else

using simd::floats;
using simd::LANES;

// LayerNorm (Ba et al., 2016) or RMSNorm (Zhang and Sennrich, 2019). The padding is 0 in x and in gain.
inline void normalize(float* y, const float* x, const float* gain, const float* bias, const Model& m) {
    floats total = {}, squares = {};
    for (int c = 0; c < m.dim && m.is_layer_norm; c += LANES) total += simd::load(x + c);
    const float mean = m.is_layer_norm ? simd::reduce_add(total) / m.dim : 0.0f;
    for (int c = 0; c < m.dim; c += LANES) {
        floats v = simd::load(x + c) - mean;
        if (c + LANES > m.dim) v = simd::select(simd::lanes() < m.dim - c, v, floats{});
        squares = simd::fma(v, v, squares);
    }
    const float inverse = 1.0f / std::sqrt(simd::reduce_add(squares) / m.dim + m.eps);
    for (int c = 0; c < m.dim; c += LANES) {
        const floats v = (simd::load(x + c) - mean) * inverse, g = simd::load(gain + c);
        simd::store(y + c, bias ? simd::fma(v, g, simd::load(bias + c)) : v * g);
    }
}

inline floats activated(floats x, floats gate, int activation) {
    switch (activation) {
        case GELU: return x * simd::Normal(x).cdf;
        case GELU_TANH: return 0.5f * x * (1.0f + simd::tanh(0.79788456f * (x + 0.044715f * x * x * x)));
        case RELU: return simd::max(floats{}, x);
        case RELU_SQUARED: return simd::max(floats{}, x) * simd::max(floats{}, x);
        default: return x * gate * simd::sigmoid(gate);
    }
}

inline void activate(float* y, const float* gate, int first, int end, int activation) {
    for (int i = first; i < end; i += LANES)
        simd::store(y + i, activated(simd::load(y + i), activation == GATED_SILU ? simd::load(gate + i) : floats{}, activation));
}

inline void cap_logits(float* x, int first, int end, float cap) {
    for (int i = first; i < end; i += LANES) simd::store(x + i, cap * simd::tanh(simd::load(x + i) / cap));
}

#endif

// The vector of a head, normed if there is a gain, rotated by its position (Su et al., 2021), and scaled; y may be x.
inline void prepare_head(float* y, const float* x, const Model& m, const float* gain, int position, float scale) {
    const int D = m.head_dim, half = D / 2;
    float factor = scale;
    if (gain) {
        float squares = 0.0f;
        for (int d = 0; d < D; d++) squares += x[d] * x[d];
        factor = scale / std::sqrt(squares / D + m.eps);
    }
    for (int d = 0; d < D; d++) y[d] = x[d] * factor * (gain ? gain[d] : 1.0f);
    if (!m.cos) return;
    const float *cos = m.cos + (size_t)position * D, *sin = m.sin + (size_t)position * D;
    for (int d = 0; d < half; d++) {
        const float a = y[d], b = y[half + d];
        y[d] = a * cos[d] - b * sin[d];
        y[half + d] = b * cos[half + d] + a * sin[half + d];
    }
}
