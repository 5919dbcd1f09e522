// Updates of parameters: AdamW as torch.optim.AdamW computes it, and Muon as gpt/training/muon.py does. Every sum has a
// fixed order, whichever worker computes it.
#pragma once
#include "../memory.h"
#include "../team.h"
#include "matmul.h"

// A parameter, and what its optimizer keeps of it. Muon has matrices, and no second moments.
struct UpdatedTensor {
    float *weight, *gradient, *first_moment, *second_moment;
    int64_t count;
    int32_t rows, columns, is_matrix, steps;  // of Muon: whether it updates this; iterations of Newton-Schulz
    float rate, decay;                        // learning rate; 1 - its product with the weight decay
    float beta_1, beta_2, eps, correction_1, correction_2;  // corrections: 1 - beta^step, and the root of that
};

static const int64_t PIECE = 1 << 14;  // numbers of a task: 64 KB, which is long beside the taking of a task
inline int pieces_of(int64_t count) { return (int)((count + PIECE - 1) / PIECE); }

// Updates a vector of numbers from i on.
inline void update_adamw(const UpdatedTensor& t, int64_t i) {
    using namespace simd;
    const floats g = load(t.gradient + i), old = load(t.first_moment + i);
    const floats m = old + (g - old) * (1.0f - t.beta_1);
    const floats v = load(t.second_moment + i) * t.beta_2 + g * g * (1.0f - t.beta_2);
    const floats step = m * (t.rate / t.correction_1) / (sqrt(v) / t.correction_2 + t.eps);
    store(t.first_moment + i, m);
    store(t.second_moment + i, v);
    store(t.weight + i, load(t.weight + i) * t.decay - step);
}

// Updates a piece of a tensor. The last numbers, which may be less than a vector, are updated in a copy.
inline void update_adamw(const UpdatedTensor& t, int64_t first, int64_t end) {
    int64_t i = first;
    for (; i + simd::LANES <= end; i += simd::LANES) update_adamw(t, i);
    if (i == end) return;
    float copies[4][simd::LANES] = {};
    float* const numbers[4] = {t.weight, t.gradient, t.first_moment, t.second_moment};
    UpdatedTensor rest = t;
    rest.weight = copies[0], rest.gradient = copies[1], rest.first_moment = copies[2], rest.second_moment = copies[3];
    const size_t bytes = (end - i) * sizeof(float);
    for (int k = 0; k < 4; k++) memcpy(copies[k], numbers[k] + i, bytes);
    update_adamw(rest, 0);
    for (int k = 0; k < 4; k++) memcpy(numbers[k] + i, copies[k], bytes);
}

// Memory for the iterations of one matrix. M is the smaller of its sizes, and K the larger, up to multiples of 32.
struct NewtonSchulz {
    int M, K;
    element *x, *next, *packed, *gram, *packed_gram, *polynomial;
    float* rows;

    NewtonSchulz(Arena& arena, int M, int K) : M(M), K(K) {
        for (element** matrix : {&x, &next, &packed}) *matrix = arena.alloc<element>((size_t)M * K);
        for (element** matrix : {&gram, &packed_gram, &polynomial}) *matrix = arena.alloc<element>((size_t)M * M);
        rows = arena.alloc<float>((size_t)16 * K);
    }

    // Calls use(row, sums) with each row of a b, a: (M, depth), b: packed (depth, columns).
    template <class Use>
    void multiply(const element* a, const element* b, int depth, int columns, const Use& use) const {
        for (int i = 0; i < M; i += 16) {
            matmul(rows, columns, a + (size_t)i * depth, depth, b, PAIR * columns, depth / 32, columns / 16);
            for (int r = 0; r < 16; r++) use(i + r, rows + (size_t)r * columns);
        }
    }

    // x = a x + (b G + c G^2) x with G = x x^T, of orthogonalize.
    void iterate() {
        using namespace simd;
        const float a = 3.4445f, b = -4.7750f, c = 2.0315f;  // COEFFICIENTS of muon.py
        const element* transposed = pack_transposed(packed, x, M, K);
        multiply(x, transposed, K, M, [&](int i, const float* sums) {
            for (int j = 0; j < M; j += LANES) store(gram + (size_t)i * M + j, load(sums + j));
        });
        const element* right = pack(packed_gram, gram, M, M);
        multiply(gram, right, M, M, [&](int i, const float* sums) {
            for (int j = 0; j < M; j += LANES) {
                const size_t at = (size_t)i * M + j;
                store(polynomial + at, b * load(gram + at) + c * load(sums + j));
            }
        });
        const element* factor = pack(packed, x, M, K);
        multiply(polynomial, factor, M, K, [&](int i, const float* sums) {
            for (int j = 0; j < K; j += LANES) {
                const size_t at = (size_t)i * K + j;
                store(next + at, a * load(x + at) + load(sums + j));
            }
        });
        std::swap(x, next);
    }
};

// Reads and writes single elements.
inline float to_float(float x) { return x; }
inline float to_float(bf16 x) {
    const uint32_t bits = (uint32_t)x << 16;
    float result;
    memcpy(&result, &bits, 4);
    return result;
}
inline element to_element(float x) {
#ifdef GPT_BFLOAT16
    return (element)simd::to_bf16<uint32_t>(x);
#else
    return x;
#endif
}

inline void update_muon(const UpdatedTensor& t, NewtonSchulz& n) {
    // Of the Gram matrices of x and its transpose, the smaller one costs less.
    const bool is_tall = t.rows > t.columns;
    const size_t row_step = is_tall ? 1 : n.K, column_step = is_tall ? n.K : 1;
    memset((void*)n.x, 0, (size_t)n.M * n.K * sizeof(element));
    double squares = 0.0;
    for (int i = 0; i < t.rows; i++)
        for (int j = 0; j < t.columns; j++) {
            const size_t at = (size_t)i * t.columns + j;
            const float g = t.gradient[at], m = t.first_moment[at] + (g - t.first_moment[at]) * (1.0f - t.beta_1);
            t.first_moment[at] = m;
            // Nesterov's momentum looks one step ahead: it averages with the gradient once more.
            const element direction = to_element(g + (m - g) * t.beta_1);
            n.x[i * row_step + j * column_step] = direction;
            squares += (double)to_float(direction) * to_float(direction);
        }
    // The iteration needs singular values of at most 1; the bound keeps a gradient of zeros from becoming NaN.
    const float scale = 1.0f / std::max((float)std::sqrt(squares), 1e-7f);
    for (size_t at = 0; at < (size_t)n.M * n.K; at += simd::LANES) simd::store(n.x + at, simd::load(n.x + at) * scale);
    for (int i = 0; i < t.steps; i++) n.iterate();
    const float rate = t.rate * std::sqrt(std::max(1.0f, (float)t.rows / t.columns));
    for (int i = 0; i < t.rows; i++)
        for (int j = 0; j < t.columns; j++) {
            float& weight = t.weight[(size_t)i * t.columns + j];
            weight = weight * t.decay - rate * to_float(n.x[i * row_step + j * column_step]);
        }
}

// Updates all tensors: a matrix of Muon is a task, and a piece of AdamW's.
struct UpdateProgram {
    const UpdatedTensor* tensors;
    int count, tasks;
    NewtonSchulz* workers;

    static int tasks_of(const UpdatedTensor& t) { return t.is_matrix ? 1 : pieces_of(t.count); }

    UpdateProgram(Arena& arena, const UpdatedTensor* tensors, int count, int threads)
        : tensors(tensors), count(count), tasks(0) {
        int M = 0, K = 0;
        for (int i = 0; i < count; i++) {
            tasks += tasks_of(tensors[i]);
            if (!tensors[i].is_matrix) continue;
            M = std::max(M, round_up(std::min(tensors[i].rows, tensors[i].columns), 32));
            K = std::max(K, round_up(std::max(tensors[i].rows, tensors[i].columns), 32));
        }
        workers = arena.alloc<NewtonSchulz>(threads);
        for (int i = 0; i < threads; i++) {
            const NewtonSchulz worker(arena, M, K);
            if (workers) memcpy((void*)(workers + i), &worker, sizeof worker);
        }
    }

    void operator()(Team& team) const {
        team.run(tasks, [&](int task) {
            [[maybe_unused]] const MatmulScope scope;
            const UpdatedTensor* t = tensors;
            for (; task >= tasks_of(*t); t++) task -= tasks_of(*t);
            if (!t->is_matrix) return update_adamw(*t, task * PIECE, std::min(t->count, (task + 1) * PIECE));
            NewtonSchulz memory = workers[team.worker];
            memory.M = round_up(std::min(t->rows, t->columns), 32);
            memory.K = round_up(std::max(t->rows, t->columns), 32);
            update_muon(*t, memory);
        });
    }
};

// Computes the sum of squares of `count` numbers, by pieces.
struct SquaresProgram {
    const float* numbers;
    int64_t count;
    double* sums;  // of pieces

    void operator()(Team& team) const {
        team.run(pieces_of(count), [&](int piece) {
            const int64_t first = piece * PIECE, end = std::min(count, first + PIECE);
            double sum = 0.0;
            int64_t i = first;
            simd::floats squares = {};
            for (; i + simd::LANES <= end; i += simd::LANES) {
                const simd::floats x = simd::load(numbers + i);
                squares = simd::fma(x, x, squares);
            }
            sum = simd::reduce_add(squares);
            for (; i < end; i++) sum += (double)numbers[i] * numbers[i];
            sums[piece] = sum;
        });
    }
};

struct ScaleProgram {
    float* numbers;
    int64_t count;
    float factor;

    void operator()(Team& team) const {
        team.run(pieces_of(count), [&](int piece) {
            const int64_t first = piece * PIECE, end = std::min(count, first + PIECE);
            for (int64_t i = first; i < end; i++) numbers[i] *= factor;
        });
    }
};
