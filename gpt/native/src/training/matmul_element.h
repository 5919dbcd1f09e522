// The input type of matmuls: bfloat16 if the processor multiplies that faster, else float.
#pragma once
#include "../simd.h"
#ifdef GPT_BFLOAT16
typedef bf16 element;
#else
typedef float element;
#endif
