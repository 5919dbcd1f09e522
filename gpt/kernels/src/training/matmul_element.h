// The type of what enters a matmul: bfloat16 where the processor multiplies that quicker, else float.
#pragma once
#include "../simd.h"
#ifdef GPT_BFLOAT16
typedef bf16 element;
#else
typedef float element;
#endif
