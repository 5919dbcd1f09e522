// Matmuls on vectors, for a block of outputs and some inputs at a time. The weights of these are read into the L1 cache
// once. All tiles of rows then use them there, one after another, while the following weights are prefetched.
#pragma once
#include "../ops/tile.h"

static const int STEP = 96;          // inputs at a time: their float32 weights of a block take 24 KB of the L1 cache
static const int PANEL = 48;         // rows at a time, whose sums are kept from one step of inputs to the next
static const int MAX_TILE_ROWS = 6;  // for so many rows the sums of a block stay in 24 registers

// The size of the weights of a block of outputs for some inputs.
template <class Weights> size_t weights_bytes(size_t inputs) {
    return inputs / Weights::IN_ROW * BLOCK * sizeof(typename Weights::Element);
}

// The weights of a block of outputs, from its output `first` on.
template <class Weights> Weights weights_of(const Matrix& m, int block, int first) {
    const char* start = (const char*)m.weights + block * weights_bytes<Weights>(m.inputs);
    return {(const typename Weights::Element*)start + first, BLOCK};
}

// A part of a matmul: the products of the inputs [first, end) of a tile of rows, whose first is `row`, with a block of
// outputs.
struct Part {
    int block, row, first, end;
    float* sums;  // of the inputs before `first`: (rows, BLOCK)
    Prefetch* prefetch;
};

// Computes N vectors of outputs of a part, from output `first` on, for ROWS rows.
template <class Weights, int ROWS, int N> void matmul_vectors(const Operands& o, const Part& p, int first) {
    const Matrix& m = *o.m;
    const Weights weights = weights_of<Weights>(m, p.block, first);
    const ByRows x = {o.x + p.row * o.ldx, o.ldx};
    floats sum[ROWS][N] = {};
    if (p.first > 0) load_tile(sum, p.sums + first, BLOCK);
    if (!m.scales) accumulate(sum, x, weights, p.first, p.end, *p.prefetch);
    else  // the sum of each group of inputs is multiplied by the scale of the group
        for (int k = p.first; k < p.end; k += m.group) {
            const float* scales = m.scales + ((size_t)p.block * m.inputs + k) / m.group * BLOCK + first;
            floats part[ROWS][N] = {};
            accumulate(part, x, weights, k, k + m.group, *p.prefetch);
            for (int r = 0; r < ROWS; r++)
                for (int v = 0; v < N; v++)
                    sum[r][v] = simd::fma(part[r][v], simd::load(scales + v * LANES), sum[r][v]);
        }
    // More inputs follow in the next step.
    if (p.end < m.inputs) return store_tile(p.sums + first, BLOCK, sum);
    const int output = p.block * BLOCK + first;
    float* y = o.y + p.row * o.ldy + output;
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < N; v++) {
            if (m.bias) sum[r][v] += simd::load(m.bias + output + v * LANES);
            if (o.add) sum[r][v] += simd::load(y + r * o.ldy + v * LANES);
        }
    store_tile(y, o.ldy, sum);
}

// Computes a part for ROWS rows, as many vectors of outputs at a time as have their sums in registers.
template <class Weights, int ROWS> void matmul_part(const Operands& o, const Part& p) {
    constexpr int N = widest(ROWS);
    const int end = std::min(BLOCK, o.m->outputs - p.block * BLOCK);  // the rest is padding
    for (int first = 0; first < end; first += N * LANES) matmul_vectors<Weights, ROWS, N>(o, p, first);
}

// Computes a block of outputs for the rows [first, end).
template <class Weights> void matmul_panel(const Operands& o, int block, int first, int end) {
    alignas(64) float sums[PANEL * BLOCK];
    const int inputs = o.m->inputs, rows = end - first, tiles = (rows + MAX_TILE_ROWS - 1) / MAX_TILE_ROWS;
    // Each tile goes through the inputs of a step once for every N vectors of outputs; see matmul_part.
    const int passes = tiles * (BLOCK / LANES / widest((rows + tiles - 1) / tiles));
    const int step = passes > 1 && !o.m->scales ? STEP : inputs;  // a step must not end within a group of inputs
    const char* weights = (const char*)weights_of<Weights>(*o.m, block, 0).data;
    const size_t input_bytes = weights_bytes<Weights>(2) / 2;  // of one input; int4 stores two inputs together
    for (int k = 0, next; k < inputs; k = next) {
        next = std::min(inputs, k + step);
        // Prefetched are the weights of the next step, or those 16 inputs ahead if there is only one pass.
        const int ahead = passes > 1 ? next : 16;
        Prefetch prefetch = {weights + input_bytes * ahead, input_bytes / passes};
        for (int tile = 0; tile < tiles; tile++) {
            // Tiles have about the same number of rows.
            const int row = rows * tile / tiles, count = rows * (tile + 1) / tiles - row;
            with_constant<1, MAX_TILE_ROWS>(count, [&](auto count) {
                matmul_part<Weights, count>(o, {block, first + row, k, next, sums + row * BLOCK, &prefetch});
            });
        }
    }
}

template <class Weights> void matmul_weights(const Share& w, const Operands& o) {
    const Range blocks = w.of(round_up(o.m->outputs, BLOCK) / BLOCK);
    for (int block = blocks.first; block < blocks.end; block++)
        for (int row = 0; row < o.rows; row += PANEL)
            matmul_panel<Weights>(o, block, row, std::min(o.rows, row + PANEL));
}

inline void matmul_blocks(const Share& w, const Operands& o) {
    switch (o.m->kind) {
        case FLOAT32: return matmul_weights<Rows<float>>(w, o);
        case BFLOAT16: return matmul_weights<Rows<bf16>>(w, o);
        case INT8: return matmul_weights<Rows<int8_t>>(w, o);
        case INT4: return matmul_weights<Int4Rows>(w, o);
        default: return;  // INT8_TILES, which Python makes only for processors with AMX
    }
}
