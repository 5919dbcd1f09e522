// Every operation of simd.h, applied to arrays.
#include "simd.h"

using namespace simd;

template <class Function> static void map(float* y, const float* x, int n, Function function) {
    for (int i = 0; i < n; i += LANES) store(y + i, function(load(x + i)));
}
template <class Function> static void map2(float* y, const float* a, const float* b, int n, Function function) {
    for (int i = 0; i < n; i += LANES) store(y + i, function(load(a + i), load(b + i)));
}
// One number for each vector.
template <class Function> static void reduce(float* y, const float* x, int n, Function function) {
    for (int i = 0; i < n; i += LANES) y[i / LANES] = function(load(x + i));
}
template <class To, class From> static void copy(To* y, const From* x, int n) {
    for (int i = 0; i < n; i += LANES) store(y + i, load(x + i));
}

#define MAP(name, result)                              \
    void map_##name(float* y, const float* x, int n) { \
        map(y, x, n, [](floats v) { return result; }); \
    }
#define MAP2(name, result)                                              \
    void map2_##name(float* y, const float* a, const float* b, int n) { \
        map2(y, a, b, n, [](floats v, floats w) { return result; });    \
    }

#pragma GCC visibility push(default)
extern "C" {
int count_lanes() { return LANES; }

MAP(copy, v)
MAP(exp, exp(v))
MAP(tanh, tanh(v))
MAP(sigmoid, sigmoid(v))
MAP(reciprocal, reciprocal(v))
MAP(sqrt, sqrt(v))
MAP(density, Normal(v).density)
MAP(cdf, Normal(v).cdf)
#if defined(GPT_LANES) || defined(__AVX512F__)  // where there may be tiles
MAP(round, __builtin_convertvector(round(v), floats))
#endif
MAP(lanes, __builtin_convertvector(lanes(), floats) + v * 0.0f)
void map_reduce_add(float* y, const float* x, int n) { reduce(y, x, n, reduce_add); }
void map_reduce_max(float* y, const float* x, int n) { reduce(y, x, n, reduce_max); }

MAP2(max, max(v, w))
MAP2(min, min(v, w))
MAP2(select, select(v < w, v, w * 2.0f))
MAP2(fma, fma(v, w, v))
MAP2(multiply_add, multiply_add(3.0f, v, w))

void load_bf16(float* y, const bf16* x, int n) { copy(y, x, n); }
void store_bf16(bf16* y, const float* x, int n) { copy(y, x, n); }
void load_int8(float* y, const int8_t* x, int n) { copy(y, x, n); }
// Upper halves of all bytes, then the lower ones.
void load_int4s(float* y, const int8_t* x, int n) {
    for (int upper = 0; upper < 2; upper++)
        for (int i = 0; i < n; i += LANES) store(y + (1 - upper) * n + i, load_int4(x + i, upper));
}
}
