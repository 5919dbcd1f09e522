// Updates of parameters: AdamW as torch.optim.AdamW computes it, and Muon as gpt/training/muon.py does. Every sum has a
// fixed order, whichever worker computes it.
#pragma once
#include "../memory.h"
#include "../team.h"
#include "matmul.h"

// A parameter, and what its optimizer keeps of it, as gpt/native/training/native_update.py fills it in. Muon updates
// matrices, and keeps no second moments.
struct UpdatedTensor {
    float *weight, *gradient, *first_moment, *second_moment;
    int64_t count;
    int32_t rows, columns;      // of Muon
    int32_t is_matrix;          // whether Muon updates this
    int32_t steps;              // of Muon: iterations of Newton-Schulz
    float rate, decay;          // the learning rate; 1 - the product of the learning rate and the weight decay
    float beta_1, beta_2, eps;  // beta_1 of Muon is its momentum
    float correction_1;         // 1 - beta_1^(number of updates)
    float correction_2;         // the root of 1 - beta_2^(number of updates)
};

static const int64_t PIECE = 1 << 14;  // numbers of a task: 64 KB, which is long beside the taking of a task
inline int pieces_of(int64_t count) { return (int)((count + PIECE - 1) / PIECE); }

// Updates a vector of numbers from i on, as torch.optim.AdamW does (_single_tensor_adam of torch/optim/adam.py). With
// the gradient g:
//     m += (g - m) (1 - beta_1)
//     v = v beta_2 + g^2 (1 - beta_2)
//     weight = weight decay - rate / correction_1 * m / (sqrt(v) / correction_2 + eps)
inline void update_adamw_vector(const UpdatedTensor& t, int64_t i) {
    using namespace simd;
    const floats g = load(t.gradient + i), old = load(t.first_moment + i);
    const floats m = old + (g - old) * (1.0f - t.beta_1);
    const floats v = load(t.second_moment + i) * t.beta_2 + g * g * (1.0f - t.beta_2);
    const floats step = m * (t.rate / t.correction_1) / (sqrt(v) / t.correction_2 + t.eps);
    store(t.first_moment + i, m);
    store(t.second_moment + i, v);
    store(t.weight + i, load(t.weight + i) * t.decay - step);
}

// Updates the numbers of a tensor from first up to end. The last ones, which may be less than a vector, are updated in
// copies that are as long as one.
inline void update_adamw(const UpdatedTensor& t, int64_t first, int64_t end) {
    int64_t i = first;
    for (; i + simd::LANES <= end; i += simd::LANES) update_adamw_vector(t, i);
    if (i == end) return;
    float copies[4][simd::LANES] = {};
    float* const numbers[4] = {t.weight, t.gradient, t.first_moment, t.second_moment};
    UpdatedTensor rest = t;
    rest.weight = copies[0];
    rest.gradient = copies[1];
    rest.first_moment = copies[2];
    rest.second_moment = copies[3];
    const size_t bytes = (end - i) * sizeof(float);
    for (int k = 0; k < 4; k++) memcpy(copies[k], numbers[k] + i, bytes);
    update_adamw_vector(rest, 0);
    for (int k = 0; k < 4; k++) memcpy(numbers[k] + i, copies[k], bytes);
}

// Memory for `orthogonalize` of one matrix x (M, K). M is the smaller of its sizes, and K the larger, up to multiples
// of 32; the padding is 0, and remains 0.
struct NewtonSchulz {
    int M, K;
    element *x, *next, *packed;                // (M, K): next: of the next iteration
    element *gram, *packed_gram, *polynomial;  // (M, M)
    float* rows;                               // 16 rows of a product

    NewtonSchulz(Arena& arena, int M, int K) : M(M), K(K) {
        for (element** matrix : {&x, &next, &packed}) *matrix = arena.alloc<element>((size_t)M * K);
        for (element** matrix : {&gram, &packed_gram, &polynomial}) *matrix = arena.alloc<element>((size_t)M * M);
        rows = arena.alloc<float>((size_t)16 * K);
    }

    // The same memory for a matrix of another size, at most as large.
    NewtonSchulz for_matrix(const UpdatedTensor& t) const {
        NewtonSchulz result = *this;
        result.M = round_up(std::min(t.rows, t.columns), 32);
        result.K = round_up(std::max(t.rows, t.columns), 32);
        return result;
    }

    // rows = 16 rows of a b, from row i on. a: (M, depth); b: packed (depth, columns).
    void multiply_rows(const element* a, int i, const element* b, int depth, int columns) const {
        matmul(rows, columns, a + (size_t)i * depth, depth, b, PAIR * columns, depth / 32, columns / 16);
    }

    // An iteration of orthogonalize: x = a x + (b G + c G^2) x with G = x x^T. Each product is computed 16 rows at
    // a time, into `rows`, which has the layout of 16 rows of the result.
    void iterate() {
        using namespace simd;
        const float a = 3.4445f, b = -4.7750f, c = 2.0315f;  // COEFFICIENTS of muon.py
        const element* transposed = pack_transposed(packed, x, M, K);
        for (int i = 0; i < M; i += 16) {
            multiply_rows(x, i, transposed, K, M);
            element* gram_rows = gram + (size_t)i * M;
            for (int j = 0; j < 16 * M; j += LANES) store(gram_rows + j, load(rows + j));
        }
        const element* right_gram = pack(packed_gram, gram, M, M);
        for (int i = 0; i < M; i += 16) {
            multiply_rows(gram, i, right_gram, M, M);
            const element* gram_rows = gram + (size_t)i * M;
            element* polynomial_rows = polynomial + (size_t)i * M;
            for (int j = 0; j < 16 * M; j += LANES)
                store(polynomial_rows + j, b * load(gram_rows + j) + c * load(rows + j));
        }
        const element* right_x = pack(packed, x, M, K);
        for (int i = 0; i < M; i += 16) {
            multiply_rows(polynomial, i, right_x, M, K);
            const element* x_rows = x + (size_t)i * K;
            element* next_rows = next + (size_t)i * K;
            for (int j = 0; j < 16 * K; j += LANES) store(next_rows + j, a * load(x_rows + j) + load(rows + j));
        }
        std::swap(x, next);
    }
};

// Single elements, which vectors of them are not made for: to float and back, by the type of an element.
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

// Where the numbers of a tensor (rows, columns) are in x: a tall matrix is transposed, since the Gram matrix of its
// transpose is smaller.
struct Orientation {
    size_t row_step, column_step;

    Orientation(const UpdatedTensor& t, int K) {
        const bool is_tall = t.rows > t.columns;
        row_step = is_tall ? 1 : K;
        column_step = is_tall ? K : 1;
    }
    size_t at(int i, int j) const { return i * row_step + j * column_step; }
};

// Updates the momentum, and writes the direction of the update to x: lerp_(momenta, gradients, 1 - momentum) and
// lerp(gradients, momenta, momentum), of Muon._update. Nesterov's momentum looks one step ahead, by the second one.
// Returns the sum of the squares of x.
inline double load_direction(NewtonSchulz& memory, const UpdatedTensor& t, const Orientation& orientation) {
    memset((void*)memory.x, 0, (size_t)memory.M * memory.K * sizeof(element));
    double squares = 0.0;
    for (int i = 0; i < t.rows; i++)
        for (int j = 0; j < t.columns; j++) {
            const size_t at = (size_t)i * t.columns + j;
            const float g = t.gradient[at], old = t.first_moment[at];
            const float m = old + (g - old) * (1.0f - t.beta_1);
            t.first_moment[at] = m;
            const element direction = to_element(g + (m - g) * t.beta_1);
            memory.x[orientation.at(i, j)] = direction;
            squares += (double)to_float(direction) * to_float(direction);
        }
    return squares;
}

// Updates a matrix as Muon._update does:
//     weight = weight decay - rate sqrt(max(1, rows / columns)) orthogonalize(direction)
inline void update_muon(const UpdatedTensor& t, NewtonSchulz& memory) {
    const Orientation orientation(t, memory.K);
    const double squares = load_direction(memory, t, orientation);
    // x / x.norm().clamp(min=1e-7), of orthogonalize: the iteration needs singular values of at most 1, and the bound
    // keeps a gradient of zeros from becoming NaN.
    const float scale = 1.0f / std::max((float)std::sqrt(squares), 1e-7f);
    const size_t numbers = (size_t)memory.M * memory.K;
    for (size_t at = 0; at < numbers; at += simd::LANES) simd::store(memory.x + at, simd::load(memory.x + at) * scale);
    for (int i = 0; i < t.steps; i++) memory.iterate();
    const float rate = t.rate * std::sqrt(std::max(1.0f, (float)t.rows / t.columns));
    for (int i = 0; i < t.rows; i++)
        for (int j = 0; j < t.columns; j++) {
            float& weight = t.weight[(size_t)i * t.columns + j];
            weight = weight * t.decay - rate * to_float(memory.x[orientation.at(i, j)]);
        }
}

// Updates all tensors: a matrix of Muon is a task, and a piece of AdamW's.
struct UpdateProgram {
    const UpdatedTensor* tensors;
    int count, tasks;
    NewtonSchulz* workers;  // each has memory for the largest matrix

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
        for (int i = 0; i < threads; i++) put(workers, i, NewtonSchulz(arena, M, K));
    }

    // Task number `task` of all tensors, whose tasks are numbered one tensor after another.
    void update(int task, int worker) const {
        const UpdatedTensor* t = tensors;
        for (; task >= tasks_of(*t); t++) task -= tasks_of(*t);
        if (t->is_matrix) {
            NewtonSchulz scratch = workers[worker].for_matrix(*t);
            update_muon(*t, scratch);
            return;
        }
        const int64_t first = task * PIECE;
        update_adamw(*t, first, std::min(t->count, first + PIECE));
    }

    void operator()(Team& team) const {
        team.run(tasks, [&](int task) {
            [[maybe_unused]] const MatmulScope scope;
            update(task, team.worker);
        });
    }
};

// Returns the sum of the squares of numbers from first up to end.
inline double sum_squares(const float* numbers, int64_t first, int64_t end) {
    int64_t i = first;
    simd::floats squares = {};
    for (; i + simd::LANES <= end; i += simd::LANES) {
        const simd::floats x = simd::load(numbers + i);
        squares = simd::fma(x, x, squares);
    }
    double sum = simd::reduce_add(squares);
    for (; i < end; i++) sum += (double)numbers[i] * numbers[i];
    return sum;
}

// The sums of squares of pieces, from which torch.nn.utils.clip_grad_norm_'s norm is computed: they are added in their
// order afterward.
struct SquaresProgram {
    const float* numbers;
    int64_t count;
    double* sums;  // by pieces

    void operator()(Team& team) const {
        team.run(pieces_of(count), [&](int piece) {
            const int64_t first = piece * PIECE;
            sums[piece] = sum_squares(numbers, first, std::min(count, first + PIECE));
        });
    }
};

// Multiplies numbers by a factor, in place.
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
