// The kernels of a training step, with a C interface; the headers say what they compute. Each takes one structure, filled
// in by gpt/kernels/training/bindings.py, and returns 0, or 1 if there is not enough memory.
#include "activations.h"
#include "attention_backward.h"
#include "norms.h"
#include "short_conv.h"
#ifdef GPT_BFLOAT16
#include "weight_gradient.h"
#endif

struct AttentionArguments {
    const element* qkv;
    const float *q_gain, *k_gain, *cosine, *sine;
    element* y;
    float* log_sums;
    const element* dy;
    element* dqkv;
    float *dq_gain, *dk_gain;
    float eps, dropout;
    uint32_t seed;
    int32_t batch, length, heads, head_dim, threads;

    AttentionShape shape() const { return {batch, length, heads, head_dim}; }
    AttentionInputs inputs() const {
        return {qkv, {q_gain, cosine, sine, eps, 1.0f / std::sqrt((float)head_dim)}, {k_gain, cosine, sine, eps, 1.0f}};
    }
};

struct AddNormArguments {
    const float* x;
    const element* y;
    const float* gain;
    float* stream;
    element* normed;
    float *mean, *inverse;
    const float* dstream;
    const element* dnormed;
    float* dx;
    element* dy;
    float* dgain;
    float eps, dropout;
    uint32_t seed;
    int32_t rows, width, centered, threads;

    Rows shape() const { return {rows, width}; }
    Norm norm() const { return {centered != 0, eps}; }
};

struct AddArguments {
    const float* x;
    const element* y;
    float* out;
    element* dy;
    float dropout;
    uint32_t seed;
    int32_t rows, width, threads;
};

struct ActivationArguments {
    const element* x;
    element* y;
    const element* dy;
    element* dx;
    int32_t kind, rows, width, threads;  // width: of y

    int64_t count() const { return (int64_t)rows * width; }
};
enum ActivationKind { RELU, SQUARED_RELU, GELU, SWIGLU };

struct ShortConvArguments {
    const element* h;
    const float* weight;
    element* y;
    const element* dy;
    element* dh;
    float* dw;
    int32_t batch, length, width, taps, threads;

    Sequences shape() const { return {batch, length, width}; }
};

struct WeightGradientArguments {
    const element *x, *dy;
    float* dw;
    int32_t rows, outputs, inputs, threads;
};

template <class Kernel> static int run(Kernel kernel) {
    try {
        kernel();
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}

#ifdef _WIN32
#define GPT_API extern "C" __declspec(dllexport)
#else
#define GPT_API extern "C"
#endif

// Returns 0, unless the system denies this process the instructions of matmuls.
GPT_API int gpt_request_matmul() { return request_matmul(); }

GPT_API int gpt_attention_forward(const AttentionArguments* a) {
    return run([=] { attention_forward(a->y, a->log_sums, a->inputs(), a->shape(), Dropout(a->seed, a->dropout), a->threads); });
}

GPT_API int gpt_attention_backward(const AttentionArguments* a) {
    const AttentionGradients gradients = {a->dqkv, a->dq_gain, a->dk_gain};
    return run([=] {
        attention_backward(gradients, a->dy, a->y, a->log_sums, a->inputs(), a->shape(), Dropout(a->seed, a->dropout), a->threads);
    });
}

GPT_API int gpt_add_norm_forward(const AddNormArguments* a) {
    return run([=] {
        add_norm_forward(a->stream, a->normed, a->mean, a->inverse, a->x, a->y, a->gain, a->shape(), a->norm(), Dropout(a->seed, a->dropout), a->threads);
    });
}

GPT_API int gpt_add_norm_backward(const AddNormArguments* a) {
    return run([=] {
        add_norm_backward(a->dx, a->dy, a->dgain, a->dstream, a->dnormed, a->stream, a->mean, a->inverse, a->gain, a->shape(), a->norm(),
                          Dropout(a->seed, a->dropout), a->threads);
    });
}

// out = x + dropout(y)
GPT_API int gpt_add_forward(const AddArguments* a) {
    return run([=] { add_forward(a->out, a->x, a->y, {a->rows, a->width}, Dropout(a->seed, a->dropout), a->threads); });
}

// dy = dropout(x), x being the gradient of out
GPT_API int gpt_add_backward(const AddArguments* a) {
    return run([=] { dropout_rows(a->dy, a->x, {a->rows, a->width}, Dropout(a->seed, a->dropout), a->threads); });
}

// out = dropout(x); with the same seed also the backward pass.
GPT_API int gpt_dropout(const AddArguments* a) {
    return run([=] { dropout_rows(a->out, a->x, {a->rows, a->width}, Dropout(a->seed, a->dropout), a->threads); });
}

GPT_API int gpt_activation_forward(const ActivationArguments* a) {
    return run([=] {
        switch (a->kind) {
            case RELU: return activate<Relu>(a->y, a->x, a->count(), a->threads);
            case SQUARED_RELU: return activate<SquaredRelu>(a->y, a->x, a->count(), a->threads);
            case GELU: return activate<Gelu>(a->y, a->x, a->count(), a->threads);
            default: return gate_forward(a->y, a->x, a->rows, a->width, a->threads);
        }
    });
}

GPT_API int gpt_activation_backward(const ActivationArguments* a) {
    return run([=] {
        switch (a->kind) {
            case RELU: return activate_backward<Relu>(a->dx, a->dy, a->x, a->count(), a->threads);
            case SQUARED_RELU: return activate_backward<SquaredRelu>(a->dx, a->dy, a->x, a->count(), a->threads);
            case GELU: return activate_backward<Gelu>(a->dx, a->dy, a->x, a->count(), a->threads);
            default: return gate_backward(a->dx, a->dy, a->x, a->rows, a->width, a->threads);
        }
    });
}

GPT_API int gpt_short_conv_forward(const ShortConvArguments* a) {
    return run([=] { with_taps(a->taps, [=](auto taps) { convolve<taps>(a->y, a->h, a->weight, a->shape(), a->threads); }); });
}

GPT_API int gpt_short_conv_backward(const ShortConvArguments* a) {
    return run([=] {
        with_taps(a->taps, [=](auto taps) { convolve_backward<taps>(a->dh, a->dw, a->dy, a->h, a->weight, a->shape(), a->threads); });
    });
}

#ifdef GPT_BFLOAT16
GPT_API int gpt_weight_gradient(const WeightGradientArguments* a) {
    return run([=] { weight_gradient(a->dw, a->dy, a->x, {a->rows, a->outputs, a->inputs}, a->threads); });
}
#endif
