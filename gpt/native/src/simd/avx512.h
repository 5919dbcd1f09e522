// AVX-512: 16 lanes, 32 registers.
#pragma once
#include <immintrin.h>

namespace simd {
static const int LANES = 16, SUMS = 24, TILE_ROWS = 8, TILE_VECTORS = 2;
}
#include "types.h"

namespace simd {

inline floats fma(floats a, floats b, floats c) { return _mm512_fmadd_ps(a, b, c); }
inline floats max(floats a, floats b) { return _mm512_max_ps(a, b); }
inline floats min(floats a, floats b) { return _mm512_min_ps(a, b); }
// An estimate and one step of Newton's method: accurate to 2^-28, and four times as fast as a division.
inline floats reciprocal(floats x) {
    const floats t = _mm512_rcp14_ps(x);
    return t * (floats)_mm512_fnmadd_ps(t, x, broadcast(2.0f));
}
inline floats sqrt(floats x) { return _mm512_sqrt_ps(x); }
inline float reduce_add(floats x) { return _mm512_reduce_add_ps(x); }
inline ints round(floats x) { return (ints)_mm512_cvtps_epi32(x); }

inline floats load(const bf16* p) {
    return (floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16);
}
inline void store(bf16* p, floats x) {
#ifdef __AVX512BF16__
    _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(x));
#else
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16((__m512i)to_bf16<words>(x)));
#endif
}
inline ints widen(bytes x) { return (ints)_mm512_cvtepi8_epi32((__m128i)x); }

}  // namespace simd
