// Matmuls with 8-bit weights by the AMX tile unit (Intel, Instruction Set Extensions, chapter 3). A row of x is written
// as 31-bit integers times a power of two, and each integer as four digits in base 256, which are in four rows of a
// tile. Matmuls of integers are exact in any order, so that only the last step rounds. Elements of at least 2^-6 of the
// largest magnitude of their row lose nothing. Smaller ones lose at most 2^-31 of that magnitude: less than sums in
// float32 lose.
#pragma once
#include "../amx.h"
#include <cmath>

static const int DIGITS = 4, TILE_ROWS = 16, TILE_INPUTS = 64, TILE_BYTES = TILE_ROWS * TILE_INPUTS;

inline int padded_inputs(int inputs) { return round_up(inputs, TILE_INPUTS); }
// How many rows of tiles the digits of some rows of x take.
inline int tile_rows(int rows) { return round_up(rows * DIGITS, TILE_ROWS); }

// Temporary memory of one worker: the digits of all rows, and for each row what 1 in its integers stands for.
struct TileScratch {
    int8_t* digits;
    float* units;
    TileScratch(Arena& a, int rows, int inputs)
        : digits(a.alloc<int8_t>((size_t)tile_rows(rows) * padded_inputs(inputs))), units(a.alloc<float>(rows)) {}
};

// The vector of elements from k on of a row of `count` elements; zeros after its end.
inline floats load_partial(const float* x, int k, int count) {
    return simd::select(simd::lanes() < count - k, simd::load(x + k), floats{});
}

// Splits a row of x into digits: (inputs / 64, stride, 64). The row has four adjacent rows of digits, the lowest digits
// in the first. Returns what 1 in the integers stands for, or NaN if an element is not finite. Rows are padded to a
// multiple of 64.
inline float split_row(int8_t* digits, int stride, const float* x, int inputs) {
    using namespace simd;
    floats top = {}, invalid = {};
    for (int k = 0; k < inputs; k += LANES) {
        const floats v = load_partial(x, k, inputs);
        top = max(top, max(v, -v));
        invalid = fma(v, floats{}, invalid);
    }
    int exponent;
    std::frexp(reduce_max(top), &exponent);  // the largest magnitude is less than 2^exponent
    exponent = std::max(exponent, -90);      // so that the factor below is finite
    const float factor = std::ldexp(1.0f, 30 - exponent);
    // The bytes of an integer are from 0 to 255, but digits must be from -128 to 127. Adding 128 to each byte but the
    // highest carries 1 into the next byte where the byte is 128 or more. Flipping the highest bit of these bytes then
    // subtracts the 128 again.
    const int half = 0x00808080;
    for (int k = 0; k < padded_inputs(inputs); k += LANES) {
        const ints d = (round(load_partial(x, k, inputs) * factor) + half) ^ half;
        int8_t* out = digits + (size_t)(k / TILE_INPUTS) * stride * TILE_INPUTS + k % TILE_INPUTS;
        for (int i = 0; i < DIGITS; i++) write(out + i * TILE_INPUTS, __builtin_convertvector(d >> 8 * i, bytes));
    }
    return std::ldexp(1.0f, exponent - 30) + reduce_add(invalid);
}

// Computes sums (16, 64): 16 rows of digits times a block of weights, over `steps` times 64 inputs.
inline void matmul_digits(int32_t* sums, const int8_t* digits, int stride, const int8_t* weights, int steps) {
    zero_tiles();
    for (int s = 0; s < steps; s++, digits += (size_t)stride * TILE_INPUTS, weights += 4 * TILE_BYTES) {
        // clang-format off
        LOAD_TILE(4, digits, TILE_INPUTS);
        LOAD_TILE(5, weights, 64); DOT_TILES("bssd", 0, 4, 5);
        LOAD_TILE(6, weights + TILE_BYTES, 64); DOT_TILES("bssd", 1, 4, 6);
        LOAD_TILE(7, weights + 2 * TILE_BYTES, 64); DOT_TILES("bssd", 2, 4, 7);
        LOAD_TILE(5, weights + 3 * TILE_BYTES, 64); DOT_TILES("bssd", 3, 4, 5);
        // clang-format on
    }
    store_tiles(sums, BLOCK * 4);
}

// Combines the sums of the four digits of a row into a block of its result.
inline void finish_row(const Operands& o, int row, int block, const int32_t* sums, float unit) {
    using namespace simd;
    const Matrix& m = *o.m;
    const auto sum = [=](int digit, int i) {
        return __builtin_convertvector(read<ints>(sums + digit * BLOCK + i), floats);
    };
    for (int i = 0; i < BLOCK; i += LANES) {
        floats y = sum(3, i);
        for (int d = 2; d >= 0; d--) y = fma(y, broadcast(256.0f), sum(d, i));
        const int output = block * BLOCK + i;
        float* out = o.y + row * o.ldy + output;
        y = y * unit * load(m.scales + output);
        if (m.bias) y += load(m.bias + output);
        store(out, o.add ? y + load(out) : y);
    }
}

// A matmul with INT8_TILES: weights (outputs / 64, inputs / 64, 4, 16, 16, 4) in tiles of 64 inputs for 16 outputs,
// with one scale for each output. Every share splits all rows anew, since waiting for the others would take more
// time.
inline void matmul_tiles(const Share& w, const TileScratch& scratch, const Operands& o) {
    const Matrix& m = *o.m;
    const int stride = tile_rows(o.rows), steps = padded_inputs(m.inputs) / TILE_INPUTS;
    for (int row = 0; row < o.rows; row++)
        scratch.units[row] =
            split_row(scratch.digits + (size_t)row * DIGITS * TILE_INPUTS, stride, o.x + row * o.ldx, m.inputs);
    const Range blocks = w.of(round_up(m.outputs, BLOCK) / BLOCK);
    for (int block = blocks.first; block < blocks.end; block++) {
        const int8_t* weights = (const int8_t*)m.weights + (size_t)block * steps * 4 * TILE_BYTES;
        // The digits of four rows fill a tile.
        for (int first = 0; first < o.rows; first += TILE_ROWS / DIGITS) {
            alignas(64) int32_t sums[TILE_ROWS * BLOCK];
            matmul_digits(sums, scratch.digits + (size_t)first * DIGITS * TILE_INPUTS, stride, weights, steps);
            for (int row = first; row < std::min(o.rows, first + TILE_ROWS / DIGITS); row++)
                finish_row(o, row, block, sums + (row - first) * DIGITS * BLOCK, scratch.units[row]);
        }
    }
}
