// A training step, with a C interface: gpt/native/training/bindings.py has its structures.
#include "../api.h"
#include "optimizer.h"
#include "step.h"

GPT_FACTS(GPT_SIZE(BlockTensors), GPT_SIZE(ModelTensors), GPT_SIZE(TrainedModel), GPT_SIZE(MicroBatch),
          GPT_SIZE(LossSums), GPT_SIZE(UpdatedTensor))

// Returns 0, unless the system denies this process the instructions of matmuls.
GPT_API int gpt_request_matmul() { return request_matmul(); }

// Returns the bytes of memory that a batch takes.
GPT_API int64_t gpt_gradients_bytes(const TrainedModel* model, const MicroBatch* batch, int threads) {
    // The plan counts positions, up to whole strips, as int. More of them take terabytes, so that the answer is more
    // memory than any machine has.
    const int64_t positions = (int64_t)batch->batch * batch->length;
    if (positions > INT32_MAX - STRIP) return INT64_MAX;
    Arena counter(nullptr);
    Plan(counter, *model, *batch, threads);
    return (int64_t)counter.bytes();
}

// Computes the losses of a batch and the gradients of the model's parameters, or only the logits.
GPT_API void gpt_gradients(const TrainedModel* model, const MicroBatch* batch, int threads, void* memory,
                           LossSums* losses) {
    Arena arena(memory);
    const GradientProgram program = {*model, *batch, Plan(arena, *model, *batch, threads)};
    run_together(threads, program);
    *losses = {};
    // Strips are summed in their order, whichever workers computed them.
    if (batch->logits) return;
    for (int strip = 0; strip < program.plan.strips; strip++) {
        losses->cross_entropy += program.plan.losses[strip].cross_entropy;
        losses->z_loss += program.plan.losses[strip].z_loss;
    }
}

// Returns the root of the sum of squares. sums: one for each of gpt_pieces(count).
GPT_API double gpt_norm(const float* numbers, int64_t count, int threads, double* sums) {
    run_together(threads, SquaresProgram{numbers, count, sums});
    double total = 0.0;
    for (int piece = 0; piece < pieces_of(count); piece++) total += sums[piece];
    return std::sqrt(total);
}
// Returns how many pieces a vector has.
GPT_API int gpt_pieces(int64_t count) { return pieces_of(count); }

// Multiplies numbers by a factor, whose address is given: packaging/replay.cpp passes numbers and addresses only.
GPT_API void gpt_scale(float* numbers, int64_t count, int threads, const float* factor) {
    run_together(threads, ScaleProgram{numbers, count, *factor});
}

// Returns the bytes of memory that an update takes.
GPT_API int64_t gpt_update_bytes(const UpdatedTensor* tensors, int count, int threads) {
    Arena counter(nullptr);
    UpdateProgram(counter, tensors, count, threads);
    return (int64_t)counter.bytes();
}

// Updates all tensors.
GPT_API void gpt_update(const UpdatedTensor* tensors, int count, int threads, void* memory) {
    Arena arena(memory);
    run_together(threads, UpdateProgram(arena, tensors, count, threads));
}
