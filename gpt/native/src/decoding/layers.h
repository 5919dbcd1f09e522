// What a pass computes between matmuls: activations, norms of queries and keys, and rotary positions. Rows of floats
// are padded to a multiple of 64.
#pragma once
#include "../ops/activations.h"
#include "model.h"
#include <cmath>

// y = activation(y) for the elements [first, end); for GATED_SILU y *= silu(gate).
inline void activate(float* y, const float* gate, int first, int end, int activation) {
    using namespace simd;
    const auto apply = [=](auto function) {
        for (int i = first; i < end; i += LANES) store(y + i, function.value(load(y + i)));
    };
    if (activation == GATED_SILU)
        for (int i = first; i < end; i += LANES) store(y + i, load(y + i) * load(gate + i) * sigmoid(load(gate + i)));
    else with_activation(activation, apply);
}

// Writes the vector x of a head to y, which may be x: scaled, normalized by RMSNorm if there is a gain, and rotated by
// its position (Su et al., 2021) if the model has rotary positions.
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
