// The kernels of a training step, with a C interface. See the headers for what they compute.
#include "attention.h"
#include "gradient.h"
#include "layers.h"

extern "C" {

// 0, or the system keeps from this process what products are made with.
int gpt_request_products() { return request_products(); }

void gpt_attention_forward(bf16* y, float* log_sums, const bf16* qkv, const float* q_gain, const float* k_gain,
                           const float* cosine, const float* sine, float eps, int batch, int length, int heads, int width, uint32_t seed, float dropout, int threads) {
    AttentionInputs in = {qkv, {q_gain, cosine, sine, eps}, {k_gain, cosine, sine, eps}};
    attention_forward(y, log_sums, in, {batch, length, heads, width, threads}, Dropout(seed, dropout));
}

void gpt_attention_backward(bf16* dqkv, float* dq_gain, float* dk_gain, const bf16* dy, const bf16* y,
                            const float* log_sums, const bf16* qkv, const float* q_gain, const float* k_gain,
                            const float* cosine, const float* sine, float eps, int batch, int length, int heads,
                            int width, uint32_t seed, float dropout, int threads) {
    AttentionInputs in = {qkv, {q_gain, cosine, sine, eps}, {k_gain, cosine, sine, eps}};
    AttentionGradients grad = {dqkv, dq_gain, dk_gain};
    attention_backward(grad, dy, y, log_sums, in, {batch, length, heads, width, threads}, Dropout(seed, dropout));
}

void gpt_add_norm_forward(float* stream, bf16* normed, float* mean, float* inverse, const float* x, const bf16* y,
                          const float* gain, int rows, int width, int centred, float eps, uint32_t seed, float dropout,
                          int threads) {
    add_norm_forward(stream, normed, mean, inverse, x, y, gain, {rows, width, threads, centred != 0, eps}, Dropout(seed, dropout));
}

void gpt_add_norm_backward(float* dx, bf16* dy, float* dgain, const float* dstream, const bf16* dnormed, const float* stream,
                           const float* mean, const float* inverse, const float* gain, int rows, int width, int centred,
                           float eps, uint32_t seed, float dropout, int threads) {
    add_norm_backward(dx, dy, dgain, dstream, dnormed, stream, mean, inverse, gain,
                      {rows, width, threads, centred != 0, eps}, Dropout(seed, dropout));
}

void gpt_add_forward(float* out, const float* x, const bf16* y, int rows, int width, uint32_t seed, float dropout, int threads) {
    add_forward(out, x, y, {rows, width, threads, false, 0.0f}, Dropout(seed, dropout));
}

void gpt_add_backward(bf16* dy, const float* dout, int rows, int width, uint32_t seed, float dropout, int threads) {
    add_backward(dy, dout, {rows, width, threads, false, 0.0f}, Dropout(seed, dropout));
}

void gpt_drop_out(float* out, const float* x, int rows, int width, uint32_t seed, float dropout, int threads) {
    drop_out(out, x, {rows, width, threads, false, 0.0f}, Dropout(seed, dropout));
}

// kind: 0 relu, 1 relu squared, 2 gelu
void gpt_activation_forward(bf16* y, const bf16* x, int64_t count, int kind, int threads) {
    if (kind == 0) activate<Relu>(y, x, count, threads);
    if (kind == 1) activate<SquaredRelu>(y, x, count, threads);
    if (kind == 2) activate<Gelu>(y, x, count, threads);
}

void gpt_activation_backward(bf16* dx, const bf16* dy, const bf16* x, int64_t count, int kind, int threads) {
    if (kind == 0) activate_backward<Relu>(dx, dy, x, count, threads);
    if (kind == 1) activate_backward<SquaredRelu>(dx, dy, x, count, threads);
    if (kind == 2) activate_backward<Gelu>(dx, dy, x, count, threads);
}

void gpt_gate_forward(bf16* y, const bf16* x, int rows, int width, int threads) {
    gate_forward(y, x, {rows, width, threads, false, 0.0f});
}

void gpt_gate_backward(bf16* dx, const bf16* dy, const bf16* x, int rows, int width, int threads) {
    gate_backward(dx, dy, x, {rows, width, threads, false, 0.0f});
}

void gpt_weight_gradient(float* dw, const bf16* dy, const bf16* x, int rows, int outputs, int inputs, int threads) {
    weight_gradient(dw, dy, x, {rows, outputs, inputs, threads});
}

}  // extern "C"
