// Numbers that stand for choices. gpt/native/contract.py has the same; a library tells Python its own when it is
// loaded.
#pragma once
#include <cstdint>

enum Kind : int32_t { FLOAT32, BFLOAT16, INT8, INT4, INT8_TILES };
enum Activation : int32_t { GELU, GELU_TANH, RELU, RELU_SQUARED, GATED_SILU };
