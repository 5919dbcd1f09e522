// LayerNorm (Ba et al., 2016) or RMSNorm (Zhang and Sennrich, 2019) of one row.
#pragma once
#include "../simd.h"

struct Norm {
    bool centered;  // LayerNorm, else RMSNorm
    float eps;
};

struct Moments {
    float mean;     // 0 for RMSNorm
    float inverse;  // 1 / the standard deviation, or 1 / the root mean square for RMSNorm
};

// Writes the normalized row x to y: y = (x - mean) inverse gain + bias, as torch.nn.LayerNorm and RMSNorm of
// gpt/model/layers.py do. Rows are padded to whole vectors; the padding of x and gain is 0. bias may be null.
template <class Out>
inline Moments norm_row(Out* y, const float* x, const float* gain, const float* bias, int width, const Norm& norm) {
    using namespace simd;
    floats total = {}, squares = {};
    for (int c = 0; c < width && norm.centered; c += LANES) total += load(x + c);
    const float mean = reduce_add(total) / width;
    int whole = 0;
    for (; whole + LANES <= width; whole += LANES) {
        const floats v = load(x + whole) - mean;
        squares = fma(v, v, squares);
    }
    if (whole < width) {  // the last vector, whose padding is 0 but must not count as a distance from the mean
        const floats v = select(lanes() < width - whole, load(x + whole) - mean, floats{});
        squares = fma(v, v, squares);
    }
    const float inverse = 1.0f / std::sqrt(reduce_add(squares) / width + norm.eps);
    for (int c = 0; c < width; c += LANES) {
        prefetch(y + c);
        const floats v = (load(x + c) - mean) * inverse, g = load(gain + c);
        store(y + c, bias ? fma(v, g, load(bias + c)) : v * g);
    }
    return {mean, inverse};
}
