// Small matmuls inside a kernel, for one type of element on one kind of processor. Each header below has:
//   PAIR                     how many rows of b are interleaved: 2 where an instruction multiplies pairs, else 1
//   pack, pack_transposed    bring x, or its transpose, into the form of b; the result may be x itself
//   transpose_matrix         brings a, or a sum, into its transpose
//   store_left_tile, store_right_tile    store 32 rows of 16 columns as a tile of matmul_tiles; see packing.h
//   MatmulScope              must exist in a worker around all calls
//   request_matmul()         returns 0, unless the system denies this process the instructions
//   matmul(c, ldc, a, lda, b, ldb, k, n, is_first)
//       c = a b, or c += a b where it is not the first. a is (16, 32 k); b is (32 k, 16 n) and packed; c is (16, 16 n)
//       float. ldc, lda: elements from one row to the next; ldb: from one group of PAIR rows to the next.
//   matmul_tiles(c, stride, a, next_a, b, next_b, depth, is_first)
//       The same for c (32, 32), of which a row is `stride` floats behind the one before, and for tiles: a is two rows
//       of `depth` tiles, and b is `depth` rows of two. A tile's TILE elements are contiguous. In a, tiles of a row
//       follow each other, and the second row is `next_a` elements further; in b, the two tiles of a row follow each
//       other, and the next row is `next_b` elements further.
#pragma once
#include "matmul_element.h"
#ifndef GPT_BFLOAT16
#include "matmul_float.h"
#elif defined(GPT_TILES)
#include "matmul_amx.h"
#else
#include "matmul_avx512_bf16.h"
#endif

// The same without gaps between the rows of the result; then x itself is packed where rows are not interleaved.
inline const element* pack(element* out, const element* x, int rows, int cols) {
    return PAIR == 1 ? x : pack(out, cols, x, rows, cols);
}
inline const element* pack_transposed(element* out, const element* x, int rows, int cols) {
    return pack_transposed(out, rows, x, rows, cols);
}
