// Matmuls y = x m^T of a pass, with weights of every kind. Each element of the result is computed in the same steps,
// whatever else is in the pass.
#pragma once
#include "../memory.h"
#include "../parallel.h"
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

#include "matmul_vectors.h"
#ifdef GPT_TILES
#include "matmul_amx.h"
#else
struct TileScope {};
struct TileScratch {
    TileScratch(Arena&, int, int) {}
};
inline int request_tiles() { return 0; }
#endif

// Blocks of outputs are shared among the workers.
inline void matmul(const Worker& w, [[maybe_unused]] const TileScratch& scratch, const Operands& o) {
#ifdef GPT_TILES
    if (o.m->kind == INT8_TILES) return matmul_tiles(w, scratch, o);
#endif
    matmul_blocks(w, o);
}
