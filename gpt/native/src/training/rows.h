// What a block computes row by row between its matmuls: norms, dropout and residual sums (Block.forward of
// gpt/model/gpt.py, and its gradient). The residual stream is float.
// Widths are multiples of 16.
#pragma once
#include "../memory.h"
#include "../ops/norm.h"
#include "dropout.h"
#include "matmul_element.h"

// sums += x, of `count` numbers.
inline void add_row(float* sums, const float* x, int count) {
    using namespace simd;
    for (int c = 0; c < count; c += LANES) store(sums + c, load(sums + c) + load(x + c));
}

// The parameters of a norm (C), or sums of their gradients. The bias is null where the norm has none.
struct NormTensors {
    float *gain, *bias;
};

// The residual stream (rows, C) where it enters a norm, and the moments of each row, which the backward pass needs.
struct Stream {
    float* x;               // (rows, C)
    float *mean, *inverse;  // (rows): see Moments
    int width;              // C

    Stream(Arena& arena, int rows, int width)
        : x(arena.alloc<float>((size_t)rows * width)), mean(arena.alloc<float>(rows)),
          inverse(arena.alloc<float>(rows)), width(width) {}
    float* row(int n) const { return x + (size_t)n * width; }

    // normed = norm(x) gain + bias, of row n: torch.nn.LayerNorm, or RMSNorm of gpt/model/layers.py. Keeps the moments.
    void norm(element* normed, int n, const NormTensors& parameters, const Norm& norm) const {
        const Moments m = norm_row(normed, row(n), parameters.gain, parameters.bias, width, norm);
        mean[n] = m.mean;
        inverse[n] = m.inverse;
    }

    // Adds the gradient through the norm of row n to dx, given that of its result, dnormed; adds to those of the
    // parameters, `sums`. Computes the result, `normed`, again. With unit = (x - mean) inverse and g = dnormed gain:
    //     normed = unit gain + bias
    //     dgain += dnormed unit
    //     dbias += dnormed
    //     dx += inverse (g - unit mean(g unit) - mean(g)), without the last mean for RMSNorm, which is not centered
    // The parts that are subtracted would only scale or shift the row, which the norm undoes.
    void norm_backward(float* dx, const NormTensors& sums, element* normed, int n, const float* dnormed,
                       const NormTensors& parameters, bool is_centered) const {
        using namespace simd;
        const float *gain = parameters.gain, *bias = parameters.bias;
        const float *row = this->row(n), mean = this->mean[n], inverse = this->inverse[n];
        floats dot = {}, total = {};
        for (int c = 0; c < width; c += LANES) {
            const floats unit = (load(row + c) - mean) * inverse, d = load(dnormed + c);
            const floats g = d * load(gain + c);
            store(normed + c, bias ? fma(unit, load(gain + c), load(bias + c)) : unit * load(gain + c));
            store(sums.gain + c, fma(d, unit, load(sums.gain + c)));
            dot = fma(g, unit, dot);
            total += g;
        }
        if (bias) add_row(sums.bias, dnormed, width);
        const float along = reduce_add(dot) / width;
        const float shift = is_centered ? reduce_add(total) / width : 0.0f;
        for (int c = 0; c < width; c += LANES) {
            const floats unit = (load(row + c) - mean) * inverse, g = load(dnormed + c) * load(gain + c);
            store(dx + c, fma(g - unit * along - shift, broadcast(inverse), load(dx + c)));
        }
    }
};

// out = x + dropout(y), of columns from `first` on of row n.
inline void add_dropped(float* out, const float* x, const float* y, int n, int first, int columns,
                        const Dropout& drop) {
    using namespace simd;
    const uint32_t stream = drop.stream(n);
    for (int c = 0; c < columns; c += LANES) store(out + c, load(x + c) + drop.apply(stream, first + c, load(y + c)));
}

// y = dropout(x), of row n: the gradient of dropout is dropout of the gradient, by the same seed.
template <class Out> inline void drop_row(Out* y, const float* x, int n, int width, const Dropout& drop) {
    using namespace simd;
    const uint32_t stream = drop.stream(n);
    for (int c = 0; c < width; c += LANES) store(y + c, drop.apply(stream, c, load(x + c)));
}
