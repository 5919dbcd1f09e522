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

// Packs the transpose of x (rows x cols): pairs lie within its rows. For products with x^T.
static void pack_transposed(bf16* out, const bf16* x, int rows, int cols) {
    const uint32_t* in = (const uint32_t*)x;
    uint32_t* to = (uint32_t*)out;
    int half = cols / 2;
    __m512i step = _mm512_mullo_epi32(lanes(), _mm512_set1_epi32(half));
    for (int r = 0; r < rows; r += 16)
        for (int c = 0; c < half; c++)
            _mm512_storeu_si512(to + (size_t)c * rows + r, _mm512_i32gather_epi32(step, in + (size_t)r * half + c, 4));
}

// Packs x (rows x cols): pairs are of neighbouring rows. For products with x.
static void pack(bf16* out, const bf16* x, int rows, int cols) {
    for (int r = 0; r < rows; r += 2)
        for (int c = 0; c < cols; c += 16) {
            __m512i even = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)(x + (size_t)r * cols + c)));
            __m512i odd = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)(x + (size_t)(r + 1) * cols + c)));
            _mm512_storeu_si512(out + (size_t)r * cols + 2 * c, _mm512_or_si512(even, _mm512_slli_epi32(odd, 16)));
        }
}
