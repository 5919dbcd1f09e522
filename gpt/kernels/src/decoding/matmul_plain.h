// The reference: one element after another.
#pragma once
#include <cstring>

inline float weight_at(const Matrix& m, int output, int input) {
    const size_t block = output / BLOCK, column = output % BLOCK, index = (block * m.inputs + input) * BLOCK + column;
    const float scale = m.scales ? m.scales[(block * (m.inputs / m.group) + input / m.group) * BLOCK + column] : 1.0f;
    switch (m.kind) {
        case FLOAT32: return ((const float*)m.weights)[index];
        case BFLOAT16: {
            const uint32_t bits = (uint32_t)((const uint16_t*)m.weights)[index] << 16;
            float x;
            memcpy(&x, &bits, 4);
            return x;
        }
        case INT8: return ((const int8_t*)m.weights)[index] * scale;
        default: {
            const int8_t pair = ((const int8_t*)m.weights)[(block * (m.inputs / 2) + input / 2) * BLOCK + column];
            return (input % 2 ? pair >> 4 : (int8_t)((uint8_t)pair << 4) >> 4) * scale;
        }
    }
}

inline void matmul_blocks(const Worker& w, const Operands& o) {
    const Matrix& m = *o.m;
    const int blocks = (m.outputs + BLOCK - 1) / BLOCK;
    for (int n = w.first(blocks) * BLOCK; n < std::min(m.outputs, w.end(blocks) * BLOCK); n++)
        for (int row = 0; row < o.rows; row++) {
            float sum = 0.0f;
            for (int k = 0; k < m.inputs; k++) sum += o.x[row * o.ldx + k] * weight_at(m, n, k);
            float& y = o.y[row * o.ldy + n];
            y = sum + (m.bias ? m.bias[n] : 0.0f) + (o.add ? y : 0.0f);
        }
}
