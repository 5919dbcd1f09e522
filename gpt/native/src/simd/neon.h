// NEON of AArch64: 4 lanes, 32 registers.
#pragma once
#include <arm_neon.h>

namespace simd {
static const int LANES = 4, SUMS = 24, TILE_ROWS = 4, TILE_VECTORS = 4;
}
#include "types.h"

namespace simd {

inline floats fma(floats a, floats b, floats c) {
    return (floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
inline floats max(floats a, floats b) { return (floats)vmaxq_f32((float32x4_t)a, (float32x4_t)b); }
inline floats min(floats a, floats b) { return (floats)vminq_f32((float32x4_t)a, (float32x4_t)b); }
inline floats reciprocal(floats x) { return 1.0f / x; }
inline floats sqrt(floats x) { return (floats)vsqrtq_f32((float32x4_t)x); }
inline float reduce_add(floats x) { return vaddvq_f32((float32x4_t)x); }

inline floats load(const bf16* p) { return (floats)vshll_n_u16(vld1_u16(p), 16); }
inline void store(bf16* p, floats x) { vst1_u16(p, vmovn_u32((uint32x4_t)to_bf16<words>(x))); }
inline ints widen(bytes x) {
    return (ints)vmovl_s16(vget_low_s16(vmovl_s8((int8x8_t)vdup_n_u32((uint32_t)(int32_t)x))));
}

}  // namespace simd
