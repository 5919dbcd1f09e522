// The parts of a model, as gpt/native/decoding/c_structs.py fills them in.
#pragma once
#include "../kinds.h"

static const int BLOCK = 64;  // outputs of a matrix, or positions of keys, stored side by side

// Weights in blocks of 64 outputs: (outputs / 64, inputs, 64); for int4 a byte holds inputs k and k + 1; for
// INT8_TILES, with AMX, (outputs / 64, inputs / 64, 4, 16, 16, 4): tiles of 64 inputs for 16 outputs, four inputs side
// by side. Scales, if any: (outputs / 64, inputs / group, 64). Outputs are padded with zeros.
struct Matrix {
    const void* weights;
    const float *scales, *bias;
    int32_t kind, outputs, inputs, group;
};

struct Layer {
    Matrix qkv, projection, gate, up, down;
    const float *norm_1, *norm_1_bias, *norm_2, *norm_2_bias, *q_norm, *k_norm;
};

struct Model {
    Matrix head;
    const float *token_embedding, *position_embedding, *cos, *sin, *norm, *norm_bias;
    float eps;
    int32_t layers, heads, kv_heads, head_dim, dim, hidden_dim, vocab_size, block_size;
    int32_t is_layer_norm, activation;
};

// How keys and values are stored: in `blocks` physical blocks (layers, kv heads, those of a head), with a block table
// (blocks for block_size positions) for each sequence, which the caller may change between passes.
struct CacheOptions {
    const int32_t* tables;
    int32_t kind, blocks;
};

// The tokens of a pass, each at a position of a sequence.
struct Batch {
    int32_t *tokens, *sequences, *positions;
    int32_t count;
};

// ids: how many may be sampled, from 0 on.
struct Sampling {
    float temperature, top_p, min_p, penalty;
    int32_t top_k, ids;
};

// How to sample a token. seen: the tokens to penalize (vocab_size), or null; logits: receives the logits it is sampled
// from (vocab_size), or null.
struct Sample {
    Sampling sampling;
    float uniform;
    const uint8_t* seen;
    float* logits;
};
