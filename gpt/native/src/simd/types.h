// The vector types, by the vector extensions of GCC and Clang. A back end defines LANES, the number of floats in a
// vector.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

typedef uint16_t bf16;  // only in memory: computations are in float32

namespace simd {

typedef float floats __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));  // also masks: 0 or -1 in each lane
typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES)));
typedef int16_t shorts __attribute__((vector_size(2 * LANES)));
typedef int8_t bytes __attribute__((vector_size(LANES)));

template <class Vector> inline Vector read(const void* p) {
    Vector x;
    memcpy(&x, p, sizeof x);
    return x;
}
template <class Vector> inline void write(void* p, Vector x) { memcpy(p, &x, sizeof x); }

// Rounds a float, or each float of a vector, to the nearest bfloat16, and returns the bits of the result. A bfloat16 is
// the upper half of a float. Adding 0x7fff, a little less than half of the last bit that stays, rounds to nearest; if
// that bit is 1, half of it is added, which rounds ties to even. NaN stays NaN, since 0x40 sets a bit of its mantissa.
template <class Words, class Floats> inline Words to_bf16(Floats x) {
    const Words bits = read<Words>(&x);
    return x == x ? (bits + 0x7fff + (bits >> 16 & 1)) >> 16 : bits >> 16 | 0x40;
}

inline floats broadcast(float x) { return x - floats{}; }  // compilers drop x - 0, but not x + 0, since -0 + 0 is 0
inline floats load(const float* p) { return read<floats>(p); }
inline void store(float* p, floats x) { write(p, x); }

}  // namespace simd
