// LayerNorm (Ba et al., 2016) or RMSNorm (Zhang and Sennrich, 2019) of one row.
#pragma once
#include "../simd.h"

struct Norm {
    bool centered;  // LayerNorm, else RMSNorm
    float eps;
};

struct Moments {
    float mean, inverse;  // the mean is 0 unless centered; the other is 1 / deviation
};

// Rows end in padding up to a whole vector, 0 in x and in gain. bias may be null.
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
    if (whole < width) {  // the padding is 0, whose distance from the mean does not count
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
