// The matmuls y = x m^T of a pass, with weights of every kind. Each element of the result is computed in the same
// steps, whatever the other rows of x are.
#pragma once
#include "../memory.h"
#include "../team.h"
#include "model.h"
#include <algorithm>
#include <stdexcept>

// y = x m^T, or y += x m^T if `add` is set. Each row of x (rows, inputs) begins ldx elements after the row before it,
// and each row of y (rows, outputs) ldy elements.
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
// Processors without AMX have no tiles to configure or to request.
struct TileScope {};
struct TileScratch {
    TileScratch(Arena&, int, int) {}
};
inline int request_tiles() { return 0; }
#endif

// A share is some blocks of outputs.
inline void matmul(const Share& w, [[maybe_unused]] const TileScratch& scratch, const Operands& o) {
#ifdef GPT_TILES
    if (o.m->kind == INT8_TILES) return matmul_tiles(w, scratch, o);
#endif
    matmul_blocks(w, o);
}
