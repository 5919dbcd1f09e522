// Any processor: vectors of GPT_LANES elements, which the compiler maps to the instructions available. The other back ends
// replace what is slow this way; each is tested against this one at its own width.
#pragma once
#include "types.h"

namespace simd {

inline floats fma(floats a, floats b, floats c) { return a * b + c; }
inline floats max(floats a, floats b) { return a > b ? a : b; }
inline floats min(floats a, floats b) { return a < b ? a : b; }
inline floats reciprocal(floats x) { return 1.0f / x; }

template <class Combine> inline float reduce(floats x, Combine combine) {
    float lane[LANES];
    store(lane, x);
    for (int n = LANES / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++) lane[i] = combine(lane[i], lane[i + n]);
    return lane[0];
}
inline float reduce_add(floats x) {
    return reduce(x, [](float a, float b) { return a + b; });
}

inline floats load(const bf16* p) { return (floats)(__builtin_convertvector(read<halves>(p), words) << 16); }
// Rounds to nearest, ties to even; NaN stays NaN.
inline void store(bf16* p, floats x) {
    const words bits = (words)x, rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    write(p, __builtin_convertvector(x == x ? rounded : bits >> 16 | 0x40, halves));
}
// Compilers convert to four times the width element by element, so convert in two steps.
inline ints widen(bytes x) { return __builtin_convertvector(__builtin_convertvector(x, shorts), ints); }

}  // namespace simd
