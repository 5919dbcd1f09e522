// Vectors of GPT_LANES floats for any processor: the compiler chooses among the instructions that there are. The other
// back ends replace the operations that are slow this way. Each is tested against this one with as many lanes.
#pragma once
#include "types.h"

namespace simd {

inline floats fma(floats a, floats b, floats c) { return a * b + c; }
inline floats max(floats a, floats b) { return a > b ? a : b; }
inline floats min(floats a, floats b) { return a < b ? a : b; }
inline floats reciprocal(floats x) { return 1.0f / x; }
inline floats sqrt(floats x) {
    floats result;
    for (int i = 0; i < LANES; i++) result[i] = std::sqrt(x[i]);
    return result;
}

// Adds the upper half of the lanes to the lower half, until one lane is left.
inline float reduce_add(floats x) {
    float lane[LANES];
    store(lane, x);
    for (int n = LANES / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++) lane[i] += lane[i + n];
    return lane[0];
}

inline ints round(floats x) {
    ints result;
    for (int i = 0; i < LANES; i++) result[i] = (int32_t)std::nearbyint(x[i]);
    return result;
}

inline floats load(const bf16* p) { return (floats)(__builtin_convertvector(read<halves>(p), words) << 16); }
inline void store(bf16* p, floats x) { write(p, __builtin_convertvector(to_bf16<words>(x), halves)); }
// Two steps, since compilers convert to four times the width one element at a time.
inline ints widen(bytes x) { return __builtin_convertvector(__builtin_convertvector(x, shorts), ints); }

}  // namespace simd
