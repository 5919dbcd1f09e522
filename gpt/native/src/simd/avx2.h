// AVX2 with FMA: 8 lanes, 16 registers.
#pragma once
#include <immintrin.h>

namespace simd {
static const int LANES = 8, SUMS = 12, TILE_ROWS = 6, TILE_VECTORS = 2;
}
#include "types.h"

namespace simd {

inline floats fma(floats a, floats b, floats c) { return _mm256_fmadd_ps(a, b, c); }
inline floats max(floats a, floats b) { return _mm256_max_ps(a, b); }
inline floats min(floats a, floats b) { return _mm256_min_ps(a, b); }
inline floats reciprocal(floats x) { return 1.0f / x; }
inline floats sqrt(floats x) { return _mm256_sqrt_ps(x); }
inline float reduce_add(floats x) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

inline floats load(const bf16* p) {
    return (floats)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16);
}
inline void store(bf16* p, floats x) {
    // The instruction packs the two halves of a register separately, so that the result is in quarters 0 and 2. The
    // permutation 0x08 moves these two side by side.
    const __m256i packed = _mm256_packus_epi32((__m256i)to_bf16<words>(x), _mm256_setzero_si256());
    _mm_storeu_si128((__m128i*)p, _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
}
inline ints widen(bytes x) { return (ints)_mm256_cvtepi8_epi32(_mm_cvtsi64_si128((int64_t)x)); }

}  // namespace simd
