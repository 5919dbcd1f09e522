// Matrix products of bfloat16 by the AMX tile unit (Intel, Instruction Set Extensions, chapter 3).
#pragma once
#include "vector.h"
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

// Linux gives the tile registers only to processes that ask; 0 where they are given.
static int request_tiles() { return (int)syscall(SYS_arch_prctl, 0x1023, 18); }

// While it lives, all eight tiles are 16 rows of 64 bytes; what other code had set up comes back.
class TileScope {
    struct alignas(64) Config {
        uint8_t palette, start, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } before;

  public:
    TileScope() {
        _tile_storeconfig(&before);
        Config mine;
        memset(&mine, 0, sizeof mine);
        mine.palette = 1;
        for (int i = 0; i < 8; i++) mine.row_bytes[i] = 64, mine.rows[i] = 16;
        _tile_loadconfig(&mine);
    }
    ~TileScope() {
        if (before.palette) _tile_loadconfig(&before);
        else _tile_release();
    }
};

// c = a b: a is 16 x 32k, b 32k x 16n, c 16 x 16n float. b is packed in pairs: its row r holds rows
// 2r and 2r + 1 of the matrix, interleaved. ld*: elements from one row to the next.
static inline void multiply(float* c, int ldc, const bf16* a, int lda, const bf16* b, int ldb, int k, int n) {
    int j = 0;
    for (; j + 4 <= n; j += 4) {
        _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
        for (int s = 0; s < k; s++) {
            const bf16* row = b + (size_t)16 * s * ldb + 32 * j;
            _tile_loadd(4, a + 32 * s, lda * 2);
            _tile_loadd(5, row, ldb * 2); _tile_dpbf16ps(0, 4, 5);
            _tile_loadd(6, row + 32, ldb * 2); _tile_dpbf16ps(1, 4, 6);
            _tile_loadd(5, row + 64, ldb * 2); _tile_dpbf16ps(2, 4, 5);
            _tile_loadd(6, row + 96, ldb * 2); _tile_dpbf16ps(3, 4, 6);
        }
        float* out = c + 16 * j;
        _tile_stored(0, out, ldc * 4); _tile_stored(1, out + 16, ldc * 4);
        _tile_stored(2, out + 32, ldc * 4); _tile_stored(3, out + 48, ldc * 4);
    }
    for (; j < n; j++) {
        _tile_zero(0);
        for (int s = 0; s < k; s++) {
            _tile_loadd(4, a + 32 * s, lda * 2);
            _tile_loadd(5, b + (size_t)16 * s * ldb + 32 * j, ldb * 2); _tile_dpbf16ps(0, 4, 5);
        }
        _tile_stored(0, c + 16 * j, ldc * 4);
    }
}

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
