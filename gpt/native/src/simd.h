// Arithmetic on vectors that are as wide as the processor's registers. A back end defines the width (LANES), how many
// sums fit into registers beside their factors (SUMS, and TILE_ROWS x TILE_VECTORS in a matmul), and the few operations
// for which compilers do not find the best instructions. All other operations are written here once. In every back end
// max(a, b) and min(a, b) are NaN where b is NaN.
#pragma once
#ifdef GPT_LANES
// The generic back end with GPT_LANES lanes. It has as many sums as the back end below with the same width.
namespace simd {
static const int LANES = GPT_LANES, SUMS = LANES == 8 ? 12 : 24, TILE_ROWS = 4, TILE_VECTORS = 16 / LANES > 2 ? 4 : 2;
}
#include "simd/generic.h"
#elif defined(__AVX512F__)
#include "simd/avx512.h"
#elif defined(__AVX2__) && defined(__FMA__)
#include "simd/avx2.h"
#elif defined(__aarch64__)
#include "simd/neon.h"
#else
#error "define GPT_LANES: there is no back end for this processor"
#endif

// n rounded up to a multiple of step.
inline int round_up(int n, int step) { return (n + step - 1) / step * step; }

// Calls work(n) with n as a constant that the compiler knows; n is from FIRST to LAST.
template <int FIRST, int LAST, class Work> inline void with_constant(int n, Work work) {
    if constexpr (FIRST < LAST)
        if (n > FIRST) return with_constant<FIRST + 1, LAST>(n, work);
    work(std::integral_constant<int, FIRST>());
}

namespace simd {

// a b + c, with the same a in all lanes.
inline floats multiply_add(float a, floats b, floats c) { return fma(broadcast(a), b, c); }

// The index of each lane.
inline ints lanes() {
    static const int32_t indices[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return read<ints>(indices);
}
// a in the lanes where the mask is set, b in the others.
inline floats select(ints mask, floats a, floats b) { return mask ? a : b; }
inline float reduce_max(floats x) {
    float lane[LANES], result;
    store(lane, x);
    result = lane[0];
    for (int i = 1; i < LANES; i++) result = lane[i] > result ? lane[i] : result;
    return result;
}

// Prefetches what a loop over p will load later, `distance` bytes ahead. The hardware does that too, but too late for
// loops that compute much between two loads: GELU of data outside the cache takes 1.2 ms with this, and 2.9 without.
template <class T> inline void prefetch(const T* p, size_t distance = 2048) {
    __builtin_prefetch((const char*)p + distance);
}
// Prefetches into the L2 cache what is read so much later that the L1 cache would have evicted it.
template <class T> inline void prefetch_outer(const T* p) { __builtin_prefetch(p, 0, 2); }

// Loads of other types as floats.
inline floats load(const int8_t* p) { return __builtin_convertvector(widen(read<bytes>(p)), floats); }
// Loads the upper or the lower one of the two 4-bit integers in each byte.
inline floats load_int4(const int8_t* p, int upper) {
    const ints x = widen(read<bytes>(p));
    // A shift to the right fills a word with the sign of its highest bit, which must be the sign of the integer.
    // `widen` has seen to that for the upper integers. The lower ones are moved to the top of the word first.
    return __builtin_convertvector((upper ? x : x << 28 >> 24) >> 4, floats);
}

// e^x = 2^n 2^f, where x / ln 2 = n + f with an integer n and f in [-1/2, 1/2]. 2^f is computed by its Taylor
// polynomial of degree 6, whose coefficients are (ln 2)^k / k!. The relative error is below 2e-7. x is clamped
// between -87 and 88, so that the result is a normal number.
inline floats exp(floats x) {
    const floats clamped = min(broadcast(88.0f), max(broadcast(-87.0f), x)), log2e = broadcast(1.44269502f);
    // 1.5 * 2^23 is so large that the sum is rounded to an integer, and that the last bits of the sum are n.
    const floats shifted = fma(clamped, log2e, broadcast(12582912.0f));
    const floats n = shifted - 12582912.0f;
    // 1 / ln 2 is the sum of log2e, which is rounded to float32, and of 1.926e-8, which the rounding leaves out.
    const floats f = fma(clamped, broadcast(1.92596300e-8f), fma(clamped, log2e, -n));
    floats p = fma(f, broadcast(1.54035304e-4f), broadcast(1.33335581e-3f));
    p = fma(p, f, broadcast(9.61812911e-3f));
    p = fma(p, f, broadcast(5.55041087e-2f));
    p = fma(p, f, broadcast(2.40226507e-1f));
    p = fma(p, f, broadcast(6.93147181e-1f));
    p = fma(p, f, broadcast(1.0f));
    return (floats)((words)p + ((words)shifted << 23));  // adds n to the exponent of p
}

inline floats tanh(floats x) { return 1.0f - 2.0f / (exp(2.0f * x) + 1.0f); }
inline floats sigmoid(floats x) { return reciprocal(1.0f + exp(-x)); }

// The normal distribution at x: its density times sqrt(2 pi), and its cumulative distribution function (cdf) with an
// absolute error below 2e-7. The cdf follows from the error function of x / sqrt(2), by Abramowitz and Stegun 7.1.26:
// their p, 0.3275911, is divided by sqrt(2) here, and their five coefficients are as printed.
struct Normal {
    floats density, cdf;
    explicit Normal(floats x) : density(exp(-0.5f * x * x)) {
        const floats t = reciprocal(fma(broadcast(0.23164189f), max(x, -x), broadcast(1.0f)));
        floats p = fma(t, broadcast(1.061405429f), broadcast(-1.453152027f));
        p = fma(p, t, broadcast(1.421413741f));
        p = fma(p, t, broadcast(-0.284496736f));
        p = fma(p, t, broadcast(0.254829592f));
        const floats tail = 0.5f * p * t * density;
        cdf = select(x < 0.0f, tail, 1.0f - tail);
    }
};

}  // namespace simd
