// Matmuls with 8-bit weights by the AMX tile unit (Intel, Instruction Set Extensions, chapter 3). A row of x becomes
// 31-bit integers times a power of two, and each integer four digits in base 256, which are in four rows of a tile: the
// integer matmul is then exact, in any order, and only the last step rounds. Elements within 2^-6 of the largest
// magnitude of their row lose nothing, smaller ones at most 2^-31 of that magnitude: less than sums in float32 lose.
#pragma once
#include "../amx.h"
#include <cmath>

static const int DIGITS = 4, TILE_ROWS = 16, TILE_INPUTS = 64, TILE_BYTES = 1024;

inline int padded_inputs(int inputs) { return round_up(inputs, TILE_INPUTS); }
inline int tile_rows(int rows) { return round_up(rows * DIGITS, TILE_ROWS); }

// Of one worker: the digits of some rows, and the value of a unit of each row's integers.
struct TileScratch {
    int8_t* digits;
    float* units;
    TileScratch(Arena& a, int rows, int inputs)
        : digits(a.alloc<int8_t>((size_t)tile_rows(rows) * padded_inputs(inputs))), units(a.alloc<float>(rows)) {}
};

// Elements k to k + 15 of a row of `count`; zeros past its end.
inline __m512 load_partial(const float* x, int k, int count) {
    const int left = count - k;
    return _mm512_maskz_loadu_ps(left >= 16 ? 0xffff : left > 0 ? (1 << left) - 1 : 0, x + k);
}

// Splits a row into digits: (inputs / 64, stride, 64), the first of them in the first of four adjacent rows. Returns
// the value of a unit of the integers; NaN if an element is not finite.
inline float split_row(int8_t* digits, int stride, const float* x, int inputs) {
    __m512 top = _mm512_setzero_ps(), invalid = top;
    for (int k = 0; k < inputs; k += 16) {
        const __m512 v = load_partial(x, k, inputs);
        top = _mm512_max_ps(top, _mm512_abs_ps(v));
        invalid = _mm512_fmadd_ps(v, _mm512_setzero_ps(), invalid);
    }
    int exponent;
    std::frexp(_mm512_reduce_max_ps(top), &exponent);  // the largest is less than 2^exponent
    exponent = std::max(exponent, -90);
    const __m512 factor = _mm512_set1_ps(std::ldexp(1.0f, 30 - exponent));
    const __m512i half = _mm512_set1_epi32(0x00808080);  // so that digits are from -128 to 127
    for (int k = 0; k < padded_inputs(inputs); k += 16) {
        const __m512i n = _mm512_cvtps_epi32(_mm512_mul_ps(load_partial(x, k, inputs), factor));
        const __m512i d = _mm512_xor_si512(_mm512_add_epi32(n, half), half);
        int8_t* out = digits + (size_t)(k / TILE_INPUTS) * stride * TILE_INPUTS + k % TILE_INPUTS;
        _mm_storeu_si128((__m128i*)out, _mm512_cvtepi32_epi8(d));
        _mm_storeu_si128((__m128i*)(out + TILE_INPUTS), _mm512_cvtepi32_epi8(_mm512_srli_epi32(d, 8)));
        _mm_storeu_si128((__m128i*)(out + 2 * TILE_INPUTS), _mm512_cvtepi32_epi8(_mm512_srli_epi32(d, 16)));
        _mm_storeu_si128((__m128i*)(out + 3 * TILE_INPUTS), _mm512_cvtepi32_epi8(_mm512_srli_epi32(d, 24)));
    }
    return std::ldexp(1.0f, exponent - 30) + _mm512_reduce_add_ps(invalid);
}

// sums (16, 64) of 16 rows of digits and a block of weights.
inline void matmul_digits(int32_t* sums, const int8_t* digits, int stride, const int8_t* weights, int steps) {
    zero_tiles();
    for (int s = 0; s < steps; s++, digits += (size_t)stride * TILE_INPUTS, weights += 4 * TILE_BYTES) {
        // clang-format off
        _tile_loadd(4, digits, TILE_INPUTS);
        _tile_loadd(5, weights, 64); _tile_dpbssd(0, 4, 5);
        _tile_loadd(6, weights + TILE_BYTES, 64); _tile_dpbssd(1, 4, 6);
        _tile_loadd(7, weights + 2 * TILE_BYTES, 64); _tile_dpbssd(2, 4, 7);
        _tile_loadd(5, weights + 3 * TILE_BYTES, 64); _tile_dpbssd(3, 4, 5);
        // clang-format on
    }
    store_tiles(sums, BLOCK * 4);
}

// Combines the sums of a row's four digits to a block of its result.
inline void finish_row(const Operands& o, int row, int block, const int32_t* sums, float unit) {
    const Matrix& m = *o.m;
    const __m512 base = _mm512_set1_ps(256.0f);
    for (int i = 0; i < BLOCK; i += 16) {
        __m512 y = _mm512_cvtepi32_ps(_mm512_loadu_si512(sums + 3 * BLOCK + i));
        for (int d = 2; d >= 0; d--)
            y = _mm512_fmadd_ps(y, base, _mm512_cvtepi32_ps(_mm512_loadu_si512(sums + d * BLOCK + i)));
        const int output = block * BLOCK + i;
        float* out = o.y + row * o.ldy + output;
        y = y * unit * _mm512_loadu_ps(m.scales + output);
        if (m.bias) y += _mm512_loadu_ps(m.bias + output);
        _mm512_storeu_ps(out, o.add ? y + _mm512_loadu_ps(out) : y);
    }
}

// Weights in tiles of 64 inputs for 16 outputs: (outputs / 64, inputs / 64, 4, 16, 16, 4), one scale for each output.
// Every worker splits all rows itself, which takes less time than waiting for the others.
inline void matmul_tiles(const Worker& w, const TileScratch& scratch, const Operands& o) {
    const Matrix& m = *o.m;
    const int stride = tile_rows(o.rows), steps = padded_inputs(m.inputs) / TILE_INPUTS;
    for (int row = 0; row < o.rows; row++)
        scratch.units[row] =
            split_row(scratch.digits + (size_t)row * DIGITS * TILE_INPUTS, stride, o.x + row * o.ldx, m.inputs);
    const Range blocks = w.share(round_up(m.outputs, BLOCK) / BLOCK);
    for (int block = blocks.first; block < blocks.end; block++) {
        const int8_t* weights = (const int8_t*)m.weights + (size_t)block * steps * 4 * TILE_BYTES;
        for (int first = 0; first < o.rows; first += TILE_ROWS / DIGITS) {
            alignas(64) int32_t sums[TILE_ROWS * BLOCK];
            matmul_digits(sums, scratch.digits + (size_t)first * DIGITS * TILE_INPUTS, stride, weights, steps);
            for (int row = first; row < std::min(o.rows, first + TILE_ROWS / DIGITS); row++)
                finish_row(o, row, block, sums + (row - first) * DIGITS * BLOCK, scratch.units[row]);
        }
    }
}
