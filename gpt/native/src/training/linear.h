// Linear layers (torch.nn.Linear): y = x W^T + b, and backward dx = dy W, dW = dy^T x, and db = the sum of the rows of
// dy. Layers that read the same x are joined: queries, keys and values, or c_gate and c_fc, are the parts of one layer,
// whose outputs lie side by side.
//
// Rows of x and y are computed by strips of 32. Each strip also leaves its x and dy as tiles, from which the weights'
// gradients are computed when all strips are done.
#pragma once
#include "../memory.h"
#include "matmul.h"
#include "rows.h"

static const int STRIP = 32;  // rows that a task computes
static const int CHUNK = 64;  // outputs that are computed at a time, so that they stay in the nearest cache

// Columns of padding behind each row of packed weights, whose columns are a multiple of 32. With 16 columns more, which
// are one cache line, rows are an odd number of lines long: otherwise the rows of one column would share a few sets of
// the cache, and evict each other.
static const int GAP = 16;

// The parameters of the parts of a layer: weights (part_outputs, part_inputs), and biases (part_outputs), which are
// null in a layer without.
struct LinearTensors {
    static const int MAX_PARTS = 3;
    float *weights[MAX_PARTS], *biases[MAX_PARTS];
};

struct Linear {
    LinearTensors parameters, gradients;
    int parts, part_outputs, part_inputs;
    // Up to multiples of 32, as matmuls take them:
    int padded_outputs;  // of one part
    int inputs;          // of all parts, which read the same
    // The weights as elements, 0 in the padding:
    element* joined;    // row by row
    element* forward;   // packed for y = x W^T
    element* backward;  // packed for dx = dy W
    float* bias;        // of all outputs, 0 in the padding; or null

    int outputs() const { return parts * padded_outputs; }
    bool has_bias() const { return parameters.biases[0] != nullptr; }
    size_t joined_size() const { return (size_t)outputs() * inputs; }
    size_t forward_size() const { return (size_t)inputs * (outputs() + GAP); }
    size_t backward_size() const { return (size_t)outputs() * (inputs + GAP); }

    // The weights of output n of the joined layer, in its parameters or gradients, and its bias, if the layer has any;
    // null in the padding.
    float* weights_of(const LinearTensors& tensors, int n) const {
        const int part = n / padded_outputs, i = n % padded_outputs;
        return i < part_outputs ? tensors.weights[part] + (size_t)i * part_inputs : nullptr;
    }
    float* bias_of(const LinearTensors& tensors, int n) const {
        const int part = n / padded_outputs, i = n % padded_outputs;
        return i < part_outputs ? tensors.biases[part] + i : nullptr;
    }
};

// Copies 32 outputs of the weights to `joined`.
inline void join_weights(const Linear& l, int first) {
    for (int n = first; n < first + 32; n++) {
        element* out = l.joined + (size_t)n * l.inputs;
        memset((void*)out, 0, l.inputs * sizeof(element));
        const float* row = l.weights_of(l.parameters, n);
        if (!row) continue;
        for (int c = 0; c < l.part_inputs; c += simd::LANES) simd::store(out + c, simd::load(row + c));
    }
}

// Packs the joined weights for both matmuls.
inline void pack_weights(Linear& l) {
    pack_transposed(l.forward, l.outputs() + GAP, l.joined, l.outputs(), l.inputs);
    pack(l.backward, l.inputs + GAP, l.joined, l.outputs(), l.inputs);
}

// Copies the biases of all outputs, if there are any.
inline void join_biases(const Linear& l) {
    if (!l.bias) return;
    for (int n = 0; n < l.outputs(); n++) {
        const float* bias = l.bias_of(l.parameters, n);
        l.bias[n] = bias ? *bias : 0.0f;
    }
}

// Copies the parameters of a layer, and packs its weights.
inline void pack_layer(Linear& l) {
    for (int first = 0; first < l.outputs(); first += 32) join_weights(l, first);
    pack_weights(l);
    join_biases(l);
}

// c (32, columns) = a (32, depth) b (depth, columns), where b is `columns` columns from `first` on of packed weights
// that have `width` columns. lda, ldc: numbers from one row of a, or c, to the next.
inline void matmul_strip(float* c, int ldc, const element* a, int lda, const element* b, int width, int depth,
                         int first, int columns) {
    for (int row = 0; row < STRIP; row += 16)
        matmul(c + (size_t)row * ldc, ldc, a + (size_t)row * lda, lda, b + (size_t)PAIR * first, PAIR * (width + GAP),
               depth / 32, columns / 16);
}

// y = x W^T + b, of a strip: up to CHUNK outputs from `first` on; returns how many. x: (STRIP, l.inputs), with `stride`
// elements from one row to the next; y: (STRIP, CHUNK).
inline int linear_chunk(float* y, const Linear& l, const element* x, int stride, int first) {
    const int columns = std::min(CHUNK, l.outputs() - first);
    matmul_strip(y, CHUNK, x, stride, l.forward, l.outputs(), l.inputs, first, columns);
    for (int r = 0; r < STRIP && l.bias; r++) add_row(y + r * CHUNK, l.bias + first, columns);
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

// sums = the sums of `columns` columns of a strip.
inline void sum_columns(float* sums, const element* dy, int stride, int columns) {
    for (int c = 0; c < columns; c += simd::LANES) {
        simd::floats sum = {};
        for (int r = 0; r < STRIP; r++) sum += simd::load(dy + (size_t)r * stride + c);
        simd::store(sums + c, sum);
    }
}

// The factors of one layer's weight gradient, for all strips, as tiles of 32 rows and 16 columns (see packing.h).
struct Factors {
    element* left;   // of dy: the tiles of 16 columns follow each other, one for each strip
    element* right;  // of x: the tiles of a strip follow each other, one for each 16 columns
    float* dbias;    // (strips, outputs): what each strip adds to the gradient of the bias; or null
    int strips, outputs, inputs;

    Factors(Arena& arena, int strips, const Linear& l)
        : left(arena.alloc<element>((size_t)strips * STRIP * l.outputs())),
          right(arena.alloc<element>((size_t)strips * STRIP * l.inputs)),
          dbias(l.has_bias() ? arena.alloc<float>((size_t)strips * l.outputs()) : nullptr), strips(strips),
          outputs(l.outputs()), inputs(l.inputs) {}

    // Stores `columns` columns of a strip from `first` on, of dy and of x; these point to the first of the columns.
    void store_left(int strip, int first, int columns, const element* dy, int stride) const {
        for (int c = 0; c < columns; c += 16)
            store_left_tile(left + ((size_t)(first + c) / 16 * strips + strip) * TILE, dy + c, stride);
        if (dbias) sum_columns(dbias + (size_t)strip * outputs + first, dy, stride, columns);
    }
    void store_right(int strip, int first, int columns, const element* x, int stride) const {
        for (int c = 0; c < columns; c += 16)
            store_right_tile(right + ((size_t)strip * (inputs / 16) + (first + c) / 16) * TILE, x + c, stride);
    }
};

// Computes the gradients of 32 biases from output `first` on, and adds them to the gradient or writes them.
inline void bias_gradient(const Linear& l, const Factors& f, int first, bool adds) {
    for (int n = first; n < first + 32; n++) {
        float* gradient = l.bias_of(l.gradients, n);
        if (!gradient) continue;
        float sum = adds ? *gradient : 0.0f;
        for (int strip = 0; strip < f.strips; strip++) sum += f.dbias[(size_t)strip * f.outputs + n];
        *gradient = sum;
    }
}

static const int DEPTH_STRIPS = 16;  // strips of x that are multiplied while they are in the L2 cache

// Computes 32 outputs of dW = dy^T x and of db, and adds them to the gradient or writes them: task number `task` of
// l.outputs() / 32. sums: memory for (32, inputs). A few strips are multiplied by all columns of x before the next ones
// are added.
inline void weight_gradient(const Linear& l, const Factors& f, int task, float* sums, bool adds) {
    const size_t next_left = (size_t)f.strips * TILE;                // to the next 16 outputs
    const size_t next_right = (size_t)l.inputs / 16 * TILE;          // to the next strip
    const element* outputs = f.left + (size_t)2 * task * next_left;  // 32 outputs are two columns of tiles
    for (int first = 0; first < f.strips; first += DEPTH_STRIPS) {
        const int depth = std::min(DEPTH_STRIPS, f.strips - first);
        const element *left = outputs + (size_t)first * TILE, *right = f.right + first * next_right;
        for (int n = 0; n < l.inputs; n += 32)
            matmul_tiles(sums + n, l.inputs, left, next_left, right + (size_t)n / 16 * TILE, next_right, depth,
                         first == 0);
    }
    for (int i = 0; i < 32; i++) {
        float* row = l.weights_of(l.gradients, 32 * task + i);
        if (!row) continue;
        for (int c = 0; c < l.part_inputs; c += simd::LANES) {
            const simd::floats sum = simd::load(sums + (size_t)i * l.inputs + c);
            simd::store(row + c, adds ? simd::load(row + c) + sum : sum);
        }
    }
    if (f.dbias) bias_gradient(l, f, 32 * task, adds);
}
