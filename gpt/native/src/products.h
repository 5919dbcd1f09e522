// Matrix products of bfloat16, by what the processor has for them.
#pragma once
#ifdef GPT_TILES
#include "tiles.h"
#else
#include "dots.h"
#endif
