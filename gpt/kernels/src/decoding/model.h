// What a model is made of, as gpt/native/engine.py fills it in.
#pragma once
#include <stdint.h>

static const int BLOCK = 64;  // outputs of a matrix that lie side by side, and positions of keys

enum Kind : int32_t { FLOAT32, BFLOAT16, INT8, INT4 };

// Weights in blocks of 64 outputs: (outputs / 64, inputs, 64); of int4 a byte holds inputs k and k + 1.
// Scales, where there are any: (outputs / 64, inputs / group, 64). Outputs are filled up with zeros.
struct Matrix {
    const void* weights;
    const float *scales, *bias;
    int32_t kind, outputs, inputs, group;
};

struct Layer {
    Matrix qkv, projection, gate, up, down;
    const float *norm_1, *norm_1_bias, *norm_2, *norm_2_bias, *q_norm, *k_norm;
};

enum Activation : int32_t { GELU, GELU_TANH, RELU, RELU_SQUARED, GATED_SILU };

struct Model {
    int32_t layers, heads, kv_heads, head_width, width, hidden, vocabulary, window;
    int32_t is_centred, activation;
    float eps, softcap;  // softcap 0: none
    const float *tokens, *positions, *cosine, *sine, *norm, *norm_bias;
    Matrix head;
    const Layer* layer;
};

struct Sampling {
    float temperature, top_p, min_p, penalty;
    int32_t top_k;
};
