// Any processor: vectors of GPT_LANES elements, which the compiler maps to the instructions available. The other back
// ends replace what is slow this way; each is tested against this one at its own width.
#pragma once
#include "types.h"

namespace simd {

inline floats fma(floats a, floats b, floats c) { return a * b + c; }
inline floats max(floats a, floats b) { return a > b ? a : b; }
inline floats min(floats a, floats b) { return a < b ? a : b; }
inline floats reciprocal(floats x) { return 1.0f / x; }

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
// Compilers convert to four times the width element by element, so convert in two steps.
inline ints widen(bytes x) { return __builtin_convertvector(__builtin_convertvector(x, shorts), ints); }

}  // namespace simd
