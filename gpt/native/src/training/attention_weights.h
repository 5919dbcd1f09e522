// The exponentials and logarithms of attention's softmax.
#pragma once
#include "matmul_element.h"

// e^x for x <= 0. Where weights are rounded to bfloat16, a cubic polynomial takes the place of that of simd::exp. It
// has the smallest relative error between -1/2 and 1/2, 7.5e-5, a twenty-fifth of the rounding's.
inline simd::floats weight_exp(simd::floats x) {
    using namespace simd;
#ifdef GPT_BFLOAT16
    // The rest is as in simd::exp, which says why, without the upper bound of x and the last bits of 1 / ln 2.
    const floats clamped = max(broadcast(-87.0f), x), log2e = broadcast(1.44269502f), shift = broadcast(12582912.0f);
    const floats shifted = fma(clamped, log2e, shift);
    const floats f = fma(clamped, log2e, shift - shifted);
    floats p = fma(f, broadcast(0.0551716021f), broadcast(0.242611131f));
    p = fma(p, f, broadcast(0.693260995f));
    p = fma(p, f, broadcast(0.999928073f));
    return (floats)((words)p + ((words)shifted << 23));
#else
    return exp(x);
#endif
}

// log x of a normal x > 0. The bits of x, as an integer, are nearly 2^23 (log2 x + 127 - 0.043), from which follows a y
// that is wrong by at most 0.03. Two steps of Halley's method for e^y = x leave a twelfth of the third power of the
// error each.
inline simd::floats log(simd::floats x) {
    using namespace simd;
    floats y = (__builtin_convertvector((ints)x, floats) - 1064990000.0f) * 8.26295829e-8f;  // ln 2 / 2^23
    for (int step = 0; step < 2; step++) {
        const floats ratio = x * exp(-y);
        y += 2.0f * (ratio - 1.0f) / (ratio + 1.0f);
    }
    return y;
}
