// The middle of a feed-forward network, between its first linear layers and c_proj: MLP.forward and SwiGLU.forward of
// gpt/model/layers.py. The outputs of the first layers are called `up`, and the inputs of c_proj `hidden`.
#pragma once
#include "../ops/activations.h"
#include "linear.h"

// Widths are up to multiples of 32, as those of a Linear; the padding of `up` is 0, and so is what it becomes.
struct MlpShape {
    int activation;
    int hidden;      // numbers of a row of `hidden`
    int up_outputs;  // numbers of a row of `up`: as many, or twice as many, of which the gates are the first half
};

// hidden = activation(c_fc(x)), of MLP.forward; `up` is c_fc(x).
inline void activate(element* hidden, const element* up, int columns, int activation) {
    using namespace simd;
    with_activation(activation, [&](auto function) {
        for (int c = 0; c < columns; c += LANES) store(hidden + c, function.value(load(up + c)));
    });
}

// hidden = silu(c_gate(x)) * c_fc(x), of SwiGLU.forward, with silu(g) = g sigmoid(g); `gate` is c_gate(x) and `factor`
// is c_fc(x).
inline void activate_gated(element* hidden, const element* gate, const element* factor, int columns) {
    using namespace simd;
    for (int c = 0; c < columns; c += LANES) {
        const floats g = load(gate + c);
        store(hidden + c, g * sigmoid(g) * load(factor + c));
    }
}

// Keeps `columns` outputs of the first layers from `first` on as elements in `up`, a strip of them, and computes what
// they make known of `hidden`. outputs: (STRIP, CHUNK).
inline void activate_strip(element* hidden, element* up, const float* outputs, int first, int columns,
                           const MlpShape& shape) {
    const int end = first + columns;
    for (int r = 0; r < STRIP; r++) {
        element *up_row = up + (size_t)r * shape.up_outputs, *hidden_row = hidden + (size_t)r * shape.hidden;
        const float* output_row = outputs + (size_t)r * CHUNK;
        for (int c = 0; c < columns; c += simd::LANES) simd::store(up_row + first + c, simd::load(output_row + c));
        if (shape.activation != GATED_SILU) {
            activate(hidden_row + first, up_row + first, columns, shape.activation);
            continue;
        }
        // Gates wait for the numbers that they multiply, which come `shape.hidden` columns later.
        const int first_factor = std::max(first, shape.hidden);
        if (first_factor >= end) continue;
        const int gate = first_factor - shape.hidden;
        activate_gated(hidden_row + gate, up_row + gate, up_row + first_factor, end - first_factor);
    }
}

// dup, the gradient of up, is dhidden activation'(up). Computes hidden again, which the forward pass does not keep.
inline void activate_backward(element* dup, element* hidden, const element* up, const float* dhidden, int columns,
                              int activation) {
    using namespace simd;
    with_activation(activation, [&](auto function) {
        for (int c = 0; c < columns; c += LANES) {
            const floats x = load(up + c);
            store(hidden + c, function.value(x));
            store(dup + c, load(dhidden + c) * function.slope(x));
        }
    });
}

// The same for hidden = silu(gate) * factor. Gates and their gradients are at `up` and `dup`, and the factors are
// `distance` numbers further:
//     dgate = dhidden factor silu'(gate), with silu'(g) = s (1 + g (1 - s)) and s = sigmoid(g),
//     dfactor = dhidden silu(gate).
inline void activate_gated_backward(element* dup, element* hidden, const element* up, int distance,
                                    const float* dhidden, int columns) {
    using namespace simd;
    for (int c = 0; c < columns; c += LANES) {
        const floats gate = load(up + c), factor = load(up + distance + c), d = load(dhidden + c);
        const floats s = sigmoid(gate);
        store(hidden + c, gate * s * factor);
        store(dup + c, d * factor * s * fma(gate, 1.0f - s, broadcast(1.0f)));
        store(dup + distance + c, d * gate * s);
    }
}

// Computes the gradient of a strip of `up` from that of `columns` columns of `hidden` from `first` on. Also computes
// these columns of `hidden` again. dhidden: (STRIP, CHUNK).
inline void activate_strip_backward(element* dup, element* hidden, const element* up, const float* dhidden, int first,
                                    int columns, const MlpShape& shape) {
    for (int r = 0; r < STRIP; r++) {
        const size_t up_at = (size_t)r * shape.up_outputs + first, hidden_at = (size_t)r * shape.hidden + first;
        const float* d = dhidden + (size_t)r * CHUNK;
        if (shape.activation == GATED_SILU)
            activate_gated_backward(dup + up_at, hidden + hidden_at, up + up_at, shape.hidden, d, columns);
        else activate_backward(dup + up_at, hidden + hidden_at, up + up_at, d, columns, shape.activation);
    }
}
