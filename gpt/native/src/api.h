// What a library tells Python about itself, and how it exports functions.
#pragma once
#include "kinds.h"

#ifdef _WIN32
#define GPT_API extern "C" __declspec(dllexport)
#else
#define GPT_API extern "C" __attribute__((visibility("default")))
#endif

// A number that Python must have too: that of a choice, or the size of a structure.
struct Fact {
    const char* name;
    int32_t value;
};

#define GPT_NUMBER(name) {#name, name}
#define GPT_SIZE(type) {"sizeof(" #type ")", sizeof(type)}
#define GPT_NUMBERS                                                                                        \
    GPT_NUMBER(FLOAT32), GPT_NUMBER(BFLOAT16), GPT_NUMBER(INT8), GPT_NUMBER(INT4), GPT_NUMBER(INT8_TILES), \
        GPT_NUMBER(GELU), GPT_NUMBER(GELU_TANH), GPT_NUMBER(RELU), GPT_NUMBER(RELU_SQUARED), GPT_NUMBER(GATED_SILU)
// The function by which a library tells Python its facts: those of kinds.h, and the sizes given.
#define GPT_FACTS(...)                                                        \
    GPT_API const Fact* gpt_facts() {                                         \
        static const Fact facts[] = {GPT_NUMBERS, __VA_ARGS__, {nullptr, 0}}; \
        return facts;                                                         \
    }
