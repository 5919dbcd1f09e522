// Matmuls y = x m^T of a pass, with weights of every kind. Each element of the result is computed in the same steps,
// whatever else is in the pass. With PLAIN defined, the loops are written in the simplest way: the reference.
#pragma once
#include "../arena.h"
#include "../parallel.h"
#include "../simd.h"
#include "model.h"
#include <algorithm>
#include <stdexcept>

// y = x m^T, or y += x m^T. x: (rows, ldx), y: (rows, ldy).
struct Operands {
    float* y;
    size_t ldy;
    const float* x;
    size_t ldx;
    int rows;
    const Matrix* m;
    bool add;
};

#ifdef PLAIN
#include "matmul_plain.h"
#else
#include "matmul_vectors.h"
#endif
#if defined(__AMX_INT8__) && !defined(PLAIN)
#include "matmul_amx.h"
#else
struct TileScope {};
struct TileScratch {
    TileScratch(Arena&, int, int) {}
};
inline int request_tiles() { return 0; }
#endif

// Blocks of outputs are shared among the workers.
inline void matmul(const Worker& w, const TileScratch& scratch, const Operands& o) {
#if defined(__AMX_INT8__) && !defined(PLAIN)
    if (o.m->kind == INT8_TILES) return matmul_tiles(w, scratch, o);
#endif
    matmul_blocks(w, o);
}
