// Sixteen floats at a time: bfloat16 in memory, float32 in registers.
#pragma once
#include <immintrin.h>
#include <math.h>
#include <stdint.h>

typedef uint16_t bf16;
typedef __m512 vec;

static inline vec load(const float* p) { return _mm512_loadu_ps(p); }
static inline void store(float* p, vec x) { _mm512_storeu_ps(p, x); }
static inline vec load(const bf16* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
}
static inline void store(bf16* p, vec x) { _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(x)); }

// Fetches what a loop over p comes to in a moment. The processor does that by itself, but too late for loops that
// compute much between two loads: GELU of what is not in the cache takes 1.2 ms instead of 2.9.
template <class T> static inline void ahead(const T* p) { _mm_prefetch((const char*)p + 2048, _MM_HINT_T0); }

static inline vec all(float x) { return _mm512_set1_ps(x); }
static inline float sum(vec x) { return _mm512_reduce_add_ps(x); }
static inline vec fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
static inline __m512i lanes() { return _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0); }

// Of two numbers max_ps gives the second where one is NaN, so that NaN stays NaN here and below.
// e^x as 2^n 2^f, f in [-1/2, 1/2], by a polynomial of degree 5; relative error below 3e-6.
static inline vec exp(vec x) {
    vec t = _mm512_max_ps(all(-87.0f), x) * all(1.44269504f);
    vec n = _mm512_roundscale_ps(t, 0);
    vec f = t - n;
    vec p = fma(all(1.33335581e-3f), f, all(9.61812910e-3f));
    p = fma(p, f, all(5.55041086e-2f));
    p = fma(p, f, all(2.40226507e-1f));
    p = fma(p, f, all(6.93147182e-1f));
    return _mm512_scalef_ps(fma(p, f, all(1.0f)), n);
}

// 1 / x to 2^-28: an estimate and a step of Newton's method, a quarter of the time of a division.
static inline vec reciprocal(vec x) {
    vec t = _mm512_rcp14_ps(x);
    return t * _mm512_fnmadd_ps(t, x, all(2.0f));
}

static inline vec sigmoid(vec x) { return reciprocal(all(1.0f) + exp(_mm512_min_ps(all(87.0f), all(0.0f) - x))); }

// Normal distribution: its density without the factor 1 / sqrt(2 pi), and the share of it below x, with an
// absolute error below 1e-7 (Abramowitz and Stegun 7.1.26 for the error function).
struct Normal {
    vec bell, below;
    explicit Normal(vec x) : bell(exp(all(-0.5f) * x * x)) {
        vec d = fma(all(0.3275911f * 0.70710678f), _mm512_abs_ps(x), all(1.0f));
        vec t = reciprocal(d);
        vec p = fma(all(1.061405429f), t, all(-1.453152027f));
        p = fma(p, t, all(1.421413741f));
        p = fma(p, t, all(-0.284496736f));
        p = fma(p, t, all(0.254829592f)) * t;
        vec tail = all(0.5f) * p * bell;
        below = _mm512_mask_mov_ps(all(1.0f) - tail, _mm512_cmp_ps_mask(x, all(0.0f), _CMP_LT_OQ), tail);
    }
};

// A 32-bit hash whose every output bit depends on every input bit (Wellons 2018, lowbias32).
static inline uint32_t hash(uint32_t x) {
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ (x >> 16);
}
static inline __m512i hash(__m512i x) {
    x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 16));
    x = _mm512_mullo_epi32(x, _mm512_set1_epi32(0x7feb352d));
    x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 15));
    x = _mm512_mullo_epi32(x, _mm512_set1_epi32((int)0x846ca68bu));
    return _mm512_xor_si512(x, _mm512_srli_epi32(x, 16));
}

// Dropout by counting: element i of stream s is kept if a hash of both reaches the threshold, so
// that the backward pass needs no stored mask and threads need no common generator.
struct Dropout {
    uint32_t seed, threshold;
    float scale;
    Dropout(uint32_t seed, float p) : seed(seed), threshold((uint32_t)(p * 4294967296.0)), scale(1.0f / (1.0f - p)) {}
    bool active() const { return threshold != 0; }
    uint32_t stream(uint32_t s) const { return hash(seed ^ hash(s)); }
    __mmask16 kept(__m512i stream_plus_index) const {
        return _mm512_cmpge_epu32_mask(hash(stream_plus_index), _mm512_set1_epi32((int)threshold));
    }
    vec apply(__mmask16 kept, vec x) const { return _mm512_maskz_mul_ps(kept, x, all(scale)); }
    // Elements i to i + 15 of a stream.
    vec apply(uint32_t stream, int i, vec x) const {
        return active() ? apply(kept(_mm512_add_epi32(_mm512_set1_epi32((int)stream + i), lanes())), x) : x;
    }
};
