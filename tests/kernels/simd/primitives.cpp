// Every operation of simd.h, applied to arrays.
#include "simd.h"

using namespace simd;

template <class Function> static void map(float* y, const float* x, int n, Function function) {
    for (int i = 0; i < n; i += LANES) store(y + i, function(load(x + i)));
}
template <class Function> static void map2(float* y, const float* a, const float* b, int n, Function function) {
    for (int i = 0; i < n; i += LANES) store(y + i, function(load(a + i), load(b + i)));
}

extern "C" {
int count_lanes() { return LANES; }

void map_copy(float* y, const float* x, int n) { map(y, x, n, [](floats v) { return v; }); }
void map_exp(float* y, const float* x, int n) { map(y, x, n, [](floats v) { return exp(v); }); }
void map_tanh(float* y, const float* x, int n) { map(y, x, n, [](floats v) { return tanh(v); }); }
void map_sigmoid(float* y, const float* x, int n) { map(y, x, n, [](floats v) { return sigmoid(v); }); }
void map_reciprocal(float* y, const float* x, int n) { map(y, x, n, [](floats v) { return reciprocal(v); }); }
void map_density(float* y, const float* x, int n) { map(y, x, n, [](floats v) { return Normal(v).density; }); }
void map_cdf(float* y, const float* x, int n) { map(y, x, n, [](floats v) { return Normal(v).cdf; }); }
void map_lanes(float* y, const float* x, int n) {
    map(y, x, n, [](floats) { return __builtin_convertvector(lanes(), floats); });
}
// One number for each vector.
void map_reduce_add(float* y, const float* x, int n) { for (int i = 0; i < n; i += LANES) y[i / LANES] = reduce_add(load(x + i)); }
void map_reduce_max(float* y, const float* x, int n) { for (int i = 0; i < n; i += LANES) y[i / LANES] = reduce_max(load(x + i)); }

void map2_max(float* y, const float* a, const float* b, int n) { map2(y, a, b, n, [](floats v, floats w) { return max(v, w); }); }
void map2_min(float* y, const float* a, const float* b, int n) { map2(y, a, b, n, [](floats v, floats w) { return min(v, w); }); }
void map2_select(float* y, const float* a, const float* b, int n) {
    map2(y, a, b, n, [](floats v, floats w) { return select(v < w, v, w * 2.0f); });
}
void map2_fma(float* y, const float* a, const float* b, int n) { map2(y, a, b, n, [](floats v, floats w) { return fma(v, w, v); }); }
void map2_multiply_add(float* y, const float* a, const float* b, int n) {
    map2(y, a, b, n, [](floats v, floats w) { return multiply_add(3.0f, v, w); });
}

void load_bf16(float* y, const bf16* x, int n) { for (int i = 0; i < n; i += LANES) store(y + i, load(x + i)); }
void store_bf16(bf16* y, const float* x, int n) { for (int i = 0; i < n; i += LANES) store(y + i, load(x + i)); }
void load_int8(float* y, const int8_t* x, int n) { for (int i = 0; i < n; i += LANES) store(y + i, load(x + i)); }
// Upper halves of all bytes, then the lower ones.
void load_int4s(float* y, const int8_t* x, int n) {
    for (int upper = 0; upper < 2; upper++)
        for (int i = 0; i < n; i += LANES) store(y + (1 - upper) * n + i, load_int4(x + i, upper));
}
}
