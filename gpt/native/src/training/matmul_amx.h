// Matmuls of bfloat16 by the AMX tile unit (Intel, Instruction Set Extensions, chapter 3).
#pragma once
#include "packing.h"
#include "../amx.h"

static const int PAIR = 2;

inline int request_matmul() { return request_tiles(); }

typedef TileScope MatmulScope;

// See matmul.h. Computes four tiles of c at a time (0 to 3), and then what is left, one at a time. Strides of tiles are
// in bytes: a float has 4 and a bf16 has 2. The tiles of b alternate between 5 and 6, so that one can be loaded while
// the other is multiplied.
[[gnu::noinline]] inline void matmul(float* c, int ldc, const bf16* a, int lda, const bf16* b, int ldb, int k, int n,
                                     bool is_first = true) {
    int j = 0;
    for (; j + 4 <= n; j += 4) {
        if (is_first) {
            zero_tiles();
        } else {
            LOAD_TILE(0, c + 16 * j, ldc * 4);
            LOAD_TILE(1, c + 16 * j + 16, ldc * 4);
            LOAD_TILE(2, c + 16 * j + 32, ldc * 4);
            LOAD_TILE(3, c + 16 * j + 48, ldc * 4);
        }
        for (int s = 0; s < k; s++) {
            const bf16* row = b + (size_t)16 * s * ldb + 32 * j;
            // clang-format off
            LOAD_TILE(4, a + 32 * s, lda * 2);
            LOAD_TILE(5, row, ldb * 2); DOT_TILES("bf16ps", 0, 4, 5);
            LOAD_TILE(6, row + 32, ldb * 2); DOT_TILES("bf16ps", 1, 4, 6);
            LOAD_TILE(5, row + 64, ldb * 2); DOT_TILES("bf16ps", 2, 4, 5);
            LOAD_TILE(6, row + 96, ldb * 2); DOT_TILES("bf16ps", 3, 4, 6);
            // clang-format on
        }
        store_tiles(c + 16 * j, ldc * 4);
    }
    for (; j < n; j++) {
        if (is_first) ZERO_TILE(0);
        else LOAD_TILE(0, c + 16 * j, ldc * 4);
        for (int s = 0; s < k; s++) {
            LOAD_TILE(4, a + 32 * s, lda * 2);
            LOAD_TILE(5, b + (size_t)16 * s * ldb + 32 * j, ldb * 2);
            DOT_TILES("bf16ps", 0, 4, 5);
        }
        STORE_TILE(0, c + 16 * j, ldc * 4);
    }
}

// See matmul.h. The four tiles of c are side by side and below each other; a tile's rows in memory are 64 bytes apart.
inline void matmul_tiles(float* c, int stride, const bf16* a, size_t next_a, const bf16* b, size_t next_b, int depth,
                         bool is_first) {
    float *right = c + 16, *below = c + (size_t)16 * stride, *across = below + 16;
    if (is_first) {
        zero_tiles();
    } else {
        LOAD_TILE(0, c, stride * 4);
        LOAD_TILE(1, right, stride * 4);
        LOAD_TILE(2, below, stride * 4);
        LOAD_TILE(3, across, stride * 4);
    }
    for (int k = 0; k < depth; k++) {
        LOAD_TILE(4, a + (size_t)k * TILE, 64);
        LOAD_TILE(5, a + next_a + (size_t)k * TILE, 64);
        LOAD_TILE(6, b + (size_t)k * next_b, 64);
        LOAD_TILE(7, b + (size_t)k * next_b + TILE, 64);
        DOT_TILES("bf16ps", 0, 4, 6);
        DOT_TILES("bf16ps", 1, 4, 7);
        DOT_TILES("bf16ps", 2, 5, 6);
        DOT_TILES("bf16ps", 3, 5, 7);
    }
    STORE_TILE(0, c, stride * 4);
    STORE_TILE(1, right, stride * 4);
    STORE_TILE(2, below, stride * 4);
    STORE_TILE(3, across, stride * 4);
}
