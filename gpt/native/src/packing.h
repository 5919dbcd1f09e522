// How the factors of a product lie in memory, and how they get there.
#pragma once
#include "vector.h"
#include <stddef.h>

// Swaps rows and columns of 16 x 16 words of 32 bits.
static inline void transpose(__m512i r[16]) {
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]), t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; j++) {
            r[i + 2 * j] = _mm512_unpacklo_epi64(t[i + j], t[i + j + 2]);
            r[i + 2 * j + 1] = _mm512_unpackhi_epi64(t[i + j], t[i + j + 2]);
        }
    for (int j = 0; j < 4; j++)  // of each four rows: quarters 0 and 2, 1 and 3
        for (int i = 0; i < 16; i += 8) {
            t[i + j] = _mm512_shuffle_i32x4(r[i + j], r[i + 4 + j], 0x88);
            t[i + 4 + j] = _mm512_shuffle_i32x4(r[i + j], r[i + 4 + j], 0xdd);
        }
    for (int j = 0; j < 8; j++) {
        r[j] = _mm512_shuffle_i32x4(t[j], t[8 + j], 0x88);
        r[8 + j] = _mm512_shuffle_i32x4(t[j], t[8 + j], 0xdd);
    }
}

// Packs the transpose of x (rows x cols): pairs lie within its rows. For products with x^T.
static void pack_transposed(bf16* out, const bf16* x, int rows, int cols) {
    for (int r = 0; r < rows; r += 16)
        for (int c = 0; c < cols; c += 32) {
            __m512i words[16];
            for (int i = 0; i < 16; i++) words[i] = _mm512_loadu_si512(x + (size_t)(r + i) * cols + c);
            transpose(words);
            for (int i = 0; i < 16; i++) _mm512_storeu_si512(out + 2 * ((size_t)(c / 2 + i) * rows + r), words[i]);
        }
}

// Two rows of 16, interleaved.
static inline __m512i interleave(const bf16* even, const bf16* odd) {
    __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)even));
    __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)odd));
    return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

// Packs x (rows x cols): pairs are of neighbouring rows. For products with x.
static void pack(bf16* out, const bf16* x, int rows, int cols) {
    for (int r = 0; r < rows; r += 2)
        for (int c = 0; c < cols; c += 16)
            _mm512_storeu_si512(out + (size_t)r * cols + 2 * c, interleave(x + (size_t)r * cols + c, x + (size_t)(r + 1) * cols + c));
}
