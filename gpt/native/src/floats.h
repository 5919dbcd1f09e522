// Sixteen floats at a time, by the vector types of GCC and Clang: they become AVX-512, AVX or NEON
// instructions, whatever the processor has.
#pragma once
#ifdef __AVX512F__
#include <immintrin.h>
#endif
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef float floats __attribute__((vector_size(64)));
typedef int32_t ints __attribute__((vector_size(64)));
typedef int8_t bytes __attribute__((vector_size(16)));
typedef int16_t shorts __attribute__((vector_size(32)));
typedef uint16_t halves __attribute__((vector_size(32)));
static const int LANES = 16;

static const int VECTORS = 4;  // of a block of 64

static inline int round_up(int n, int step) { return (n + step - 1) / step * step; }

template <class Vector> static inline Vector read(const void* from) {
    Vector x;
    memcpy(&x, from, sizeof x);
    return x;
}
static inline floats load(const float* p) { return read<floats>(p); }
static inline void store(float* p, floats x) { memcpy(p, &x, sizeof x); }
static inline floats all(float x) { return floats{} + x; }
static inline ints lanes() { return ints{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}; }
// What is not a number stays so in b, and only there.
template <class Number> static inline Number larger(Number a, Number b) { return a > b ? a : b; }
template <class Number> static inline Number smaller(Number a, Number b) { return a < b ? a : b; }

// Other types of number in memory, as floats. Compilers make one conversion to four times the width number by
// number, so it is two steps where there is no instruction for it.
#ifdef __AVX512F__
static inline ints widened(bytes x) { return (ints)_mm512_cvtepi8_epi32((__m128i)x); }
#else
static inline ints widened(bytes x) { return __builtin_convertvector(__builtin_convertvector(x, shorts), ints); }
#endif
static inline floats from_int8(const int8_t* p) { return __builtin_convertvector(widened(read<bytes>(p)), floats); }
static inline floats from_bfloat16(const uint16_t* p) { return (floats)(__builtin_convertvector(read<halves>(p), ints) << 16); }
// Integers of four bits, two to a byte: the upper or the lower ones.
static inline floats from_int4(const int8_t* p, int upper) {
    ints x = widened(read<bytes>(p));
    return __builtin_convertvector((upper ? x : x << 28 >> 24) >> 4, floats);
}

template <class Combine> static inline float reduce(floats x, Combine combine) {
    float of[LANES];
    store(of, x);
    for (int n = LANES / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++) of[i] = combine(of[i], of[i + n]);
    return of[0];
}
static inline float sum(floats x) { return reduce(x, [](float a, float b) { return a + b; }); }
static inline float largest(floats x) { return reduce(x, larger<float>); }

// e^x as 2^n 2^f, n whole, f in [-1/2, 1/2], by a polynomial of degree 6; relative error below 2e-7.
static inline floats exp(floats x) {
    floats t = smaller(all(88.0f), larger(all(-87.0f), x)) * 1.44269504f;
    floats n = (t + 12582912.0f) - 12582912.0f;  // so large a number has no bits left for a fraction
    floats f = t - n;
    floats p = f * 1.54035304e-4f + 1.33335581e-3f;
    p = p * f + 9.61812911e-3f;
    p = p * f + 5.55041087e-2f;
    p = p * f + 2.40226507e-1f;
    p = p * f + 6.93147181e-1f;
    p = p * f + 1.0f;
    return p * (floats)((__builtin_convertvector(n, ints) + 127) << 23);
}

static inline floats tanh(floats x) { return 1.0f - 2.0f / (exp(2.0f * x) + 1.0f); }

// Share of the normal distribution below x, absolute error below 2e-7 (Abramowitz and Stegun 7.1.26).
static inline floats normal_below(floats x) {
    floats size = larger(x, -x);
    floats t = 1.0f / (size * 0.23164189f + 1.0f);
    floats p = t * 1.061405429f - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    floats tail = 0.5f * p * t * exp(-0.5f * x * x);
    return x < 0.0f ? tail : 1.0f - tail;
}
