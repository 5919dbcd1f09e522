// Matmuls on vectors: a block of outputs for some rows of x at a time, so that each weight that is read is used for all
// of them, in as many passes over the block as it takes for the sums to stay in registers.
#pragma once
#include "dot.h"

template <class Weights> inline Weights weights_of(const Matrix& m, int block, int first);
template <> inline Rows<float> weights_of(const Matrix& m, int block, int first) {
    return {(const float*)m.weights + (size_t)block * m.inputs * BLOCK + first, BLOCK};
}
template <> inline Rows<bf16> weights_of(const Matrix& m, int block, int first) {
    return {(const bf16*)m.weights + (size_t)block * m.inputs * BLOCK + first, BLOCK};
}
template <> inline Rows<int8_t> weights_of(const Matrix& m, int block, int first) {
    return {(const int8_t*)m.weights + (size_t)block * m.inputs * BLOCK + first, BLOCK};
}
template <> inline Int4Rows weights_of(const Matrix& m, int block, int first) {
    return {(const int8_t*)m.weights + (size_t)block * (m.inputs / 2) * BLOCK + first, BLOCK};
}

// N vectors of a block's outputs, from `first` on, for ROWS rows.
template <class Weights, int ROWS, int N> void matmul_part(const Operands& o, int row, int block, int first) {
    const Matrix& m = *o.m;
    const Weights weights = weights_of<Weights>(m, block, first);
    const float *x = o.x + row * o.ldx, *scales = m.scales + (size_t)block * (m.inputs / m.group) * BLOCK + first;
    floats sum[ROWS][N] = {};
    if (!m.scales) accumulate(sum, x, o.ldx, weights, 0, m.inputs);
    else
        for (int k = 0; k < m.inputs; k += m.group, scales += BLOCK) {
            floats part[ROWS][N] = {};
            accumulate(part, x, o.ldx, weights, k, k + m.group);
            for (int r = 0; r < ROWS; r++)
                for (int v = 0; v < N; v++) sum[r][v] = simd::fma(part[r][v], simd::load(scales + v * LANES), sum[r][v]);
        }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < N; v++) {
            const int output = block * BLOCK + first + v * LANES;
            float* y = o.y + (row + r) * o.ldy + output;
            if (m.bias) sum[r][v] += simd::load(m.bias + output);
            simd::store(y, o.add ? sum[r][v] + simd::load(y) : sum[r][v]);
        }
}

template <class Weights, int ROWS> void matmul_block(const Operands& o, int row, int block) {
    constexpr int N = widest(ROWS);
    const int end = std::min(BLOCK, o.m->outputs - block * BLOCK);  // the rest is padding
    for (int first = 0; first < end; first += N * LANES) matmul_part<Weights, ROWS, N>(o, row, block, first);
}

// Rows at a time, by how many are left.
static constexpr int MAX_ROWS = 12;
static constexpr int ROWS_OF[MAX_ROWS + 1] = {0, 1, 2, 3, 4, 3, 6, 4, 4, 6, 6, 4, 12};

template <class Weights> void matmul_weights(const Worker& w, const Operands& o) {
    const int blocks = round_up(o.m->outputs, BLOCK) / BLOCK;
    for (int block = w.first(blocks); block < w.end(blocks); block++)
        for (int row = 0, count; row < o.rows; row += count) {
            count = ROWS_OF[std::min(o.rows - row, MAX_ROWS)];
            switch (count) {
                case 1: matmul_block<Weights, 1>(o, row, block); break;
                case 2: matmul_block<Weights, 2>(o, row, block); break;
                case 3: matmul_block<Weights, 3>(o, row, block); break;
                case 4: matmul_block<Weights, 4>(o, row, block); break;
                case 6: matmul_block<Weights, 6>(o, row, block); break;
                default: matmul_block<Weights, MAX_ROWS>(o, row, block);
            }
        }
}

inline void matmul_blocks(const Worker& w, const Operands& o) {
    switch (o.m->kind) {
        case FLOAT32: return matmul_weights<Rows<float>>(w, o);
        case BFLOAT16: return matmul_weights<Rows<bf16>>(w, o);
        case INT8: return matmul_weights<Rows<int8_t>>(w, o);
        default: return matmul_weights<Int4Rows>(w, o);
    }
}
