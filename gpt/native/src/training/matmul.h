// Small matmuls inside a kernel, for one type of element on one kind of processor. Each header below has:
//   PAIR              number of rows of b that are interleaved
//   pack, pack_transposed   bring b into that form; the result may be x itself
//   transpose_matrix  brings a, or a sum, into its transpose
//   MatmulScope       must exist in a worker around all calls
//   request_matmul()  returns 0, unless the system denies this process the instructions
//   matmul(c, ldc, a, lda, b, ldb, k, n, is_first)   c = a b, or c += a b where it is not the first: a is 16 x 32k,
//                     b 32k x 16n and packed, c 16 x 16n float; ld*: elements from one row to the next, of b from one
//                     group of PAIR rows to the next
#pragma once
#include "matmul_element.h"
#ifndef GPT_BFLOAT16
#include "matmul_float.h"
#elif defined(GPT_TILES)
#include "matmul_amx.h"
#else
#include "matmul_avx512_bf16.h"
#endif

// Without gaps between the rows of the result.
inline const element* pack(element* out, const element* x, int rows, int cols) {
    return PAIR == 1 ? x : pack(out, cols, x, rows, cols);
}
inline const element* pack_transposed(element* out, const element* x, int rows, int cols) {
    return pack_transposed(out, rows, x, rows, cols);
}
