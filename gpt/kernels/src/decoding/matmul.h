// Matmuls y = x m^T of a pass, with weights of every kind. Each number of the result takes the same steps whatever
// else is in the pass. With PLAIN defined, the loops are written as one would first write them: the reference.
#pragma once
#include "../parallel.h"
#include "model.h"
#include <algorithm>

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
