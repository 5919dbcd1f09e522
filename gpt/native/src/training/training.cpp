// The kernels of a training step, with a C interface; the headers say what they compute. Each takes one structure,
// filled in by gpt/native/training/bindings.py, and returns 0, or 1 if there is not enough memory.
#include "../api.h"
#include "attention_backward.h"
#include "feed_forward.h"
#include "matmul_large.h"
#include "norms.h"
#include "weight_gradient.h"

#define GPT_KERNEL(name, Arguments)                      \
    GPT_API int gpt_##name(const Arguments* arguments) { \
        try {                                            \
            name(*arguments);                            \
            return 0;                                    \
        } catch (const std::bad_alloc&) {                \
            return 1;                                    \
        }                                                \
    }

GPT_KERNEL(attention_forward, AttentionArguments)
GPT_KERNEL(attention_backward, AttentionArguments)
GPT_KERNEL(add_norm_forward, AddNormArguments)
GPT_KERNEL(add_norm_backward, AddNormArguments)
GPT_KERNEL(add_forward, AddArguments)
GPT_KERNEL(dropout, AddArguments)
GPT_KERNEL(activation_forward, ActivationArguments)
GPT_KERNEL(activation_backward, ActivationArguments)
#ifdef GPT_BFLOAT16
GPT_KERNEL(weight_gradient, WeightGradientArguments)
#else
GPT_KERNEL(matmul, MatmulArguments)
#endif

GPT_FACTS(GPT_SIZE(AttentionArguments), GPT_SIZE(AddNormArguments), GPT_SIZE(AddArguments),
          GPT_SIZE(ActivationArguments), GPT_SIZE(WeightGradientArguments), GPT_SIZE(MatmulArguments))

// Returns 0, unless the system denies this process the instructions of matmuls.
GPT_API int gpt_request_matmul() { return request_matmul(); }
