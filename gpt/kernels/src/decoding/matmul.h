// Matrix products of a pass, y = x m^T, with weights of every kind.
// With PLAIN defined, the loops are written as one would first write them; they are the reference.
#pragma once
#include "decode_model.h"
#include "decode_workers.h"
#include "floats.h"
#include <algorithm>

#ifdef PLAIN

static float weight_of(const Matrix& m, int output, int input) {
    const size_t block = output / BLOCK, place = output % BLOCK, at = (block * m.inputs + input) * BLOCK + place;
    float scale = m.scales ? m.scales[(block * (m.inputs / m.group) + input / m.group) * BLOCK + place] : 1.0f;
    switch (m.kind) {
        case FLOAT32: return ((const float*)m.weights)[at];
        case BFLOAT16: {
            uint32_t bits = (uint32_t)((const uint16_t*)m.weights)[at] << 16;
            float x;
            memcpy(&x, &bits, 4);
            return x;
        }
        case INT8: return ((const int8_t*)m.weights)[at] * scale;
        default: {
            int8_t pair = ((const int8_t*)m.weights)[(block * (m.inputs / 2) + input / 2) * BLOCK + place];
            return (input % 2 ? pair >> 4 : (int8_t)((uint8_t)pair << 4) >> 4) * scale;
        }
    }
}

// y = x m^T, blocks of outputs shared among the workers. x: (slots, .), y: (slots, .).
static void multiply(const Worker& w, float* y, int ldy, const float* x, int ldx, int slots, const Matrix& m, bool add) {
    const int blocks = round_up(m.outputs, BLOCK) / BLOCK;
    for (int n = w.first(blocks) * BLOCK; n < std::min(m.outputs, w.end(blocks) * BLOCK); n++)
        for (int s = 0; s < slots; s++) {
            float total = 0.0f;
            for (int k = 0; k < m.inputs; k++) total += x[(size_t)s * ldx + k] * weight_of(m, n, k);
            float* out = y + (size_t)s * ldy + n;
            *out = total + (m.bias ? m.bias[n] : 0.0f) + (add ? *out : 0.0f);
        }
}

#else

// How to read the k-th row of 64 weights of a block.
struct Float32 {
    const float* p;
    Float32(const Matrix& m, int block) : p((const float*)m.weights + (size_t)block * m.inputs * BLOCK) {}
    floats at(int k, int i) const { return load(p + (size_t)k * BLOCK + i); }
};
struct BFloat16 {
    const uint16_t* p;
    BFloat16(const Matrix& m, int block) : p((const uint16_t*)m.weights + (size_t)block * m.inputs * BLOCK) {}
    floats at(int k, int i) const { return from_bfloat16(p + (size_t)k * BLOCK + i); }
};
struct Int8 {
    const int8_t* p;
    Int8(const Matrix& m, int block) : p((const int8_t*)m.weights + (size_t)block * m.inputs * BLOCK) {}
    floats at(int k, int i) const { return from_int8(p + (size_t)k * BLOCK + i); }
};
struct Int4 {
    const int8_t* p;
    Int4(const Matrix& m, int block) : p((const int8_t*)m.weights + (size_t)block * (m.inputs / 2) * BLOCK) {}
    floats at(int k, int i) const { return from_int4(p + (size_t)(k / 2) * BLOCK + i, k % 2); }
};

// Part of a block of outputs, 16 N from `first` on, for SLOTS slots; their sums stay in registers.
template <class Weights, int SLOTS, int N>
static void multiply_part(float* y, int ldy, const float* x, int ldx, const Matrix& m, int block, int first, bool add) {
    const Weights weights(m, block);
    const float* scales = m.scales ? m.scales + (size_t)block * (m.inputs / m.group) * BLOCK + first : nullptr;
    floats total[SLOTS][N] = {};
    for (int k = 0; k < m.inputs;) {
        floats part[SLOTS][N] = {};
        for (const int end = k + m.group; k < end; k++) {
            floats row[N];
            for (int v = 0; v < N; v++) row[v] = weights.at(k, first + v * LANES);
            for (int s = 0; s < SLOTS; s++)
                for (int v = 0; v < N; v++) part[s][v] += x[(size_t)s * ldx + k] * row[v];
        }
        for (int s = 0; s < SLOTS; s++)
            for (int v = 0; v < N; v++) total[s][v] += scales ? part[s][v] * load(scales + v * LANES) : part[s][v];
        if (scales) scales += BLOCK;
    }
    for (int s = 0; s < SLOTS; s++)
        for (int v = 0; v < N; v++) {
            float* out = y + (size_t)s * ldy + first + v * LANES;
            if (m.bias) total[s][v] += load(m.bias + (size_t)block * BLOCK + first + v * LANES);
            store(out, add ? total[s][v] + load(out) : total[s][v]);
        }
}

static const int FULL = 6;  // slots whose sums for a whole block fit into the registers

// A whole block: for few slots at once, so that each weight is read once; for many in two halves, so that there are
// registers for twice as many slots.
template <class Weights, int SLOTS>
static void multiply_block(float* y, int ldy, const float* x, int ldx, const Matrix& m, int block, bool add) {
    static const int N = SLOTS <= FULL ? VECTORS : VECTORS / 2;
    for (int first = 0; first < BLOCK; first += N * LANES)
        multiply_part<Weights, SLOTS, N>(y, ldy, x, ldx, m, block, first, add);
}

template <class Weights>
static void multiply_as(const Worker& w, float* y, int ldy, const float* x, int ldx, int slots, const Matrix& m, bool add) {
    const int blocks = round_up(m.outputs, BLOCK) / BLOCK;
    static const auto kernels = {multiply_block<Weights, 1>, multiply_block<Weights, 2>, multiply_block<Weights, 3>,
                                 multiply_block<Weights, 4>, multiply_block<Weights, 5>, multiply_block<Weights, 6>,
                                 multiply_block<Weights, 7>, multiply_block<Weights, 8>, multiply_block<Weights, 9>,
                                 multiply_block<Weights, 10>, multiply_block<Weights, 11>, multiply_block<Weights, 12>};
    const int most = slots <= (int)kernels.size() ? FULL : (int)kernels.size();  // few: memory is read in order
    for (int block = w.first(blocks); block < w.end(blocks); block++)
        for (int s = 0; s < slots;) {
            const int parts = (slots - s + most - 1) / most, count = (slots - s + parts - 1) / parts;  // of like size
            kernels.begin()[count - 1](y + (size_t)s * ldy + block * BLOCK, ldy, x + (size_t)s * ldx, ldx, m, block, add);
            s += count;
        }
}

// y = x m^T, or y += x m^T; blocks of outputs are shared among the workers. x: (slots, ldx), y: (slots, ldy).
static void multiply(const Worker& w, float* y, int ldy, const float* x, int ldx, int slots, const Matrix& m, bool add) {
    switch (m.kind) {
        case FLOAT32: return multiply_as<Float32>(w, y, ldy, x, ldx, slots, m, add);
        case BFLOAT16: return multiply_as<BFloat16>(w, y, ldy, x, ldx, slots, m, add);
        case INT8: return multiply_as<Int8>(w, y, ldy, x, ldx, slots, m, add);
        default: return multiply_as<Int4>(w, y, ldy, x, ldx, slots, m, add);
    }
}

#endif
