// Packs the factors of bfloat16 matmuls into their memory layout, and transposes. Instructions multiply pairs of
// bfloat16: of a left factor, two that are side by side, and of a right factor, two of which one is below the other. A
// word has 32 bits: such a pair, or a float.
#pragma once
#include "../simd.h"
#ifdef __AVX512F__
#include <immintrin.h>
#endif

// Pointers to words point into arrays of elements, which the attribute allows.
typedef uint32_t __attribute__((may_alias)) word;
static const int TILE = 16 * 32;  // elements of a tile: 16 rows of 16 pairs

#ifdef __AVX512F__
// Swaps rows and columns of 16 x 16 words. Instructions exchange words inside of quarters of registers, or whole
// quarters. First, words of two rows are paired, and then such pairs of two pairs of rows, so that a quarter has four
// words of one column. Then the quarters find their places in two rounds: 0x88 takes quarters 0 and 2 of both operands,
// and 0xdd takes quarters 1 and 3.
inline void transpose(__m512i r[16]) {
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; j++) {
            r[i + 2 * j] = _mm512_unpacklo_epi64(t[i + j], t[i + j + 2]);
            r[i + 2 * j + 1] = _mm512_unpackhi_epi64(t[i + j], t[i + j + 2]);
        }
    for (int j = 0; j < 4; j++)
        for (int i = 0; i < 16; i += 8) {
            t[i + j] = _mm512_shuffle_i32x4(r[i + j], r[i + 4 + j], 0x88);
            t[i + 4 + j] = _mm512_shuffle_i32x4(r[i + j], r[i + 4 + j], 0xdd);
        }
    for (int j = 0; j < 8; j++) {
        r[j] = _mm512_shuffle_i32x4(t[j], t[8 + j], 0x88);
        r[8 + j] = _mm512_shuffle_i32x4(t[j], t[8 + j], 0xdd);
    }
}

// The same from memory to memory. Strides: words from one row to the next.
inline void transpose(word* out, size_t out_stride, const word* in, size_t in_stride) {
    __m512i rows[16];
    for (int i = 0; i < 16; i++) rows[i] = _mm512_loadu_si512(in + i * in_stride);
    transpose(rows);
    for (int i = 0; i < 16; i++) _mm512_storeu_si512(out + i * out_stride, rows[i]);
}

// 16 pairs: of each, the first from `even` and the second from `odd`.
inline void interleave(word* out, const bf16* even, const bf16* odd) {
    const __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)even));
    const __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)odd));
    _mm512_storeu_si512(out, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
}
#else
inline void transpose(word* out, size_t out_stride, const word* in, size_t in_stride) {
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++) out[i * out_stride + j] = in[j * in_stride + i];
}

inline void interleave(word* out, const bf16* even, const bf16* odd) {
    for (int i = 0; i < 16; i++) out[i] = (uint32_t)odd[i] << 16 | even[i];
}
#endif

// Packs x as the right factor of a matmul: pairs come from adjacent rows. x: (rows, cols) -> (rows / 2, cols, 2). From
// one row of the result to the next there are `stride` pairs.
inline const bf16* pack(bf16* out, int stride, const bf16* x, int rows, int cols) {
    for (int r = 0; r < rows; r += 2)
        for (int c = 0; c < cols; c += 16)
            interleave((word*)out + (size_t)(r / 2) * stride + c, x + (size_t)r * cols + c,
                       x + (size_t)(r + 1) * cols + c);
    return out;
}

// Packs the transpose of x as the right factor of a matmul: pairs are side by side in the rows of x, and are words of a
// transpose. x: (rows, cols) -> (cols / 2, rows, 2). From one row of the result to the next there are `stride` pairs.
inline const bf16* pack_transposed(bf16* out, int stride, const bf16* x, int rows, int cols) {
    for (int r = 0; r < rows; r += 16)
        for (int c = 0; c < cols; c += 32)
            transpose((word*)out + (size_t)(c / 2) * stride + r, stride, (const word*)(x + (size_t)r * cols + c),
                      cols / 2);
    return out;
}

// Transposes x: (rows, cols) -> (cols, rows), of floats, and of elements. Of those, pairs from two rows become words
// first, since a row of the result has them side by side. Strides: numbers from one row to the next.
inline void transpose_matrix(float* out, int stride, const float* x, int x_stride, int rows, int cols) {
    for (int r = 0; r < rows; r += 16)
        for (int c = 0; c < cols; c += 16)
            transpose((word*)out + (size_t)c * stride + r, stride, (const word*)x + (size_t)r * x_stride + c, x_stride);
}

inline void transpose_matrix(bf16* out, int stride, const bf16* x, int x_stride, int rows, int cols) {
    alignas(64) word pairs[16 * 16];
    for (int r = 0; r < rows; r += 32)
        for (int c = 0; c < cols; c += 16) {
            for (int i = 0; i < 16; i++) {
                const bf16* even = x + (size_t)(r + 2 * i) * x_stride + c;
                interleave(pairs + 16 * i, even, even + x_stride);
            }
            transpose((word*)(out + (size_t)c * stride + r), stride / 2, pairs, 16);
        }
}

// Store tiles of the factors of a weight gradient, dW = dy^T x, whose depth is the positions, which are rows of both. A
// right tile has 32 rows and 16 columns of x, packed: 16 rows of 16 pairs. A left tile has the transpose of 32 rows and
// 16 columns of dy: 16 rows of 32 elements. stride: elements from one row to the next of x and of dy.
inline void store_right_tile(bf16* tile, const bf16* x, int stride) {
    for (int i = 0; i < 16; i++)
        interleave((word*)tile + 16 * i, x + (size_t)2 * i * stride, x + (size_t)(2 * i + 1) * stride);
}

inline void store_left_tile(bf16* tile, const bf16* dy, int stride) {
    alignas(64) bf16 pairs[TILE];
    store_right_tile(pairs, dy, stride);
    transpose((word*)tile, 16, (const word*)pairs, 16);
}
