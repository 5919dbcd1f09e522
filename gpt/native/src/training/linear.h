// Linear layers without bias: y = x W^T, dx = dy W, dW = dy^T x (torch.nn.Linear). Layers that read the same x are
// joined: queries, keys and values, or gate and up, are the parts of one layer, whose outputs lie side by side.
//
// Rows of x and y are computed by strips of 32. Each strip also leaves its x and dy as tiles, from which the weights'
// gradients are computed when all strips are done.
#pragma once
#include "../memory.h"
#include "matmul.h"

static const int STRIP = 32;  // rows that a task computes
static const int CHUNK = 64;  // outputs that are computed at a time, so that they stay in the nearest cache

// Columns of padding behind each row of packed weights. With a cache line more than the columns need, rows are an odd
// number of lines long: otherwise the rows of one column would share a few sets of the cache, and evict each other.
static const int GAP = 16;

struct Linear {
    static const int MAX_PARTS = 3;

    const float* weights[MAX_PARTS];  // (part_outputs, part_inputs) each
    float* gradients[MAX_PARTS];
    int parts, part_outputs, part_inputs;
    int padded_outputs, inputs;  // of a part, and of all; up to multiples of 32, as matmuls take them
    // The weights as elements, zero in the padding: row by row, packed for y = x W^T, and packed for dx = dy W.
    element* joined;
    element *forward, *backward;

    int outputs() const { return parts * padded_outputs; }
    size_t joined_size() const { return (size_t)outputs() * inputs; }
    size_t forward_size() const { return (size_t)inputs * (outputs() + GAP); }
    size_t backward_size() const { return (size_t)outputs() * (inputs + GAP); }

    // The place in `arrays`, as `weights` and `gradients` are, of output n of the joined layer; null in the padding.
    template <class T> T* row(T* const* arrays, int n) const {
        const int part = n / padded_outputs, i = n % padded_outputs;
        return i < part_outputs ? arrays[part] + (size_t)i * part_inputs : nullptr;
    }
};

// Copies 32 outputs of the weights to `joined`.
inline void join_weights(const Linear& l, int first) {
    for (int n = first; n < first + 32; n++) {
        element* out = l.joined + (size_t)n * l.inputs;
        memset((void*)out, 0, l.inputs * sizeof(element));
        const float* row = l.row(l.weights, n);
        if (!row) continue;
        for (int c = 0; c < l.part_inputs; c += simd::LANES) simd::store(out + c, simd::load(row + c));
    }
}

// Packs the joined weights for both matmuls.
inline void pack_weights(Linear& l) {
    pack_transposed(l.forward, l.outputs() + GAP, l.joined, l.outputs(), l.inputs);
    pack(l.backward, l.inputs + GAP, l.joined, l.outputs(), l.inputs);
}

// Copies the weights of a layer, and packs them.
inline void pack_layer(Linear& l) {
    for (int first = 0; first < l.outputs(); first += 32) join_weights(l, first);
    pack_weights(l);
}

// c (32, columns) = a (32, depth) b: columns from `first` on of packed weights b that have `width` of them.
inline void matmul_strip(float* c, int ldc, const element* a, int lda, const element* b, int width, int depth,
                         int first, int columns) {
    for (int row = 0; row < STRIP; row += 16)
        matmul(c + (size_t)row * ldc, ldc, a + (size_t)row * lda, lda, b + (size_t)PAIR * first, PAIR * (width + GAP),
               depth / 32, columns / 16);
}

// y = x W^T, of a strip: up to CHUNK outputs from `first` on; returns how many. x: (STRIP, l.inputs), with `stride`
// elements from one row to the next; y: (STRIP, CHUNK).
inline int linear_chunk(float* y, const Linear& l, const element* x, int stride, int first) {
    const int columns = std::min(CHUNK, l.outputs() - first);
    matmul_strip(y, CHUNK, x, stride, l.forward, l.outputs(), l.inputs, first, columns);
    return columns;
}

// dx = dy W, of a strip: up to CHUNK inputs from `first` on; returns how many. dy: (STRIP, l.outputs()); dx: (STRIP,
// CHUNK).
inline int linear_chunk_backward(float* dx, const Linear& l, const element* dy, int first) {
    const int columns = std::min(CHUNK, l.inputs - first);
    matmul_strip(dx, CHUNK, dy, l.outputs(), l.backward, l.inputs, l.outputs(), first, columns);
    return columns;
}

// Copies a chunk of results (STRIP, CHUNK), of which `columns` are computed, to `columns` columns of `out`, which has
// `stride` numbers from one row to the next: as elements, or as they are.
inline void store_chunk(element* out, int stride, const float* chunk, int columns) {
    for (int r = 0; r < STRIP; r++)
        for (int c = 0; c < columns; c += simd::LANES)
            simd::store(out + (size_t)r * stride + c, simd::load(chunk + r * CHUNK + c));
}
inline void copy_chunk(float* out, int stride, const float* chunk, int columns) {
    for (int r = 0; r < STRIP; r++) memcpy(out + (size_t)r * stride, chunk + r * CHUNK, columns * sizeof(float));
}

// The factors of one layer's weight gradient, for all strips, as tiles. Of dy, the tiles of one column follow each
// other; of x, those of one strip.
struct Factors {
    element *left, *right;
    int strips, outputs, inputs;

    Factors(Arena& arena, int strips, int outputs, int inputs)
        : left(arena.alloc<element>((size_t)strips * STRIP * outputs)),
          right(arena.alloc<element>((size_t)strips * STRIP * inputs)), strips(strips), outputs(outputs),
          inputs(inputs) {}
    Factors(Arena& arena, int strips, const Linear& l) : Factors(arena, strips, l.outputs(), l.inputs) {}

    // Stores columns of a strip of dy, or of x; `x` points to the first of them.
    void store_left(int strip, int first, int columns, const element* dy, int stride) const {
        for (int c = 0; c < columns; c += 16)
            store_left_tile(left + ((size_t)(first + c) / 16 * strips + strip) * TILE, dy + c, stride);
    }
    void store_right(int strip, int first, int columns, const element* x, int stride) const {
        for (int c = 0; c < columns; c += 16)
            store_right_tile(right + ((size_t)strip * (inputs / 16) + (first + c) / 16) * TILE, x + c, stride);
    }
};

static const int DEPTH_STRIPS = 16;  // strips of x that are multiplied while they are in the L2 cache

// Computes 32 outputs of dW: task number `task` of l.outputs() / 32. sums: (32, inputs). Adds to the gradient, or
// writes it.
inline void weight_gradient(const Linear& l, const Factors& f, int task, float* sums, bool adds) {
    const size_t next_left = (size_t)f.strips * TILE, next_right = (size_t)l.inputs / 16 * TILE;
    const element* left = f.left + (size_t)2 * task * next_left;
    for (int first = 0; first < f.strips; first += DEPTH_STRIPS) {
        const int depth = std::min(DEPTH_STRIPS, f.strips - first);
        for (int n = 0; n < l.inputs; n += 32)
            matmul_tiles(sums + n, l.inputs, left + (size_t)first * TILE, next_left,
                         f.right + first * next_right + (size_t)n / 16 * TILE, next_right, depth, first == 0);
    }
    for (int i = 0; i < 32; i++) {
        float* row = l.row(l.gradients, 32 * task + i);
        if (!row) continue;
        for (int c = 0; c < l.part_inputs; c += simd::LANES) {
            const simd::floats sum = simd::load(sums + (size_t)i * l.inputs + c);
            simd::store(row + c, adds ? simd::load(row + c) + sum : sum);
        }
    }
}
