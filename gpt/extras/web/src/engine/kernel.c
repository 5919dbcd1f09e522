// Dot products of x with rows of a matrix, for WebAssembly with SIMD and without a stack; see kernel.js.
typedef float vector __attribute__((vector_size(16), aligned(4)));

// Computes the dot products of x with `count` rows, so that each load of x serves as many sums. The order in which a row is
// summed up does not depend on `count`, so that neither does its result.
static inline __attribute__((always_inline)) void tile(const int count, float *out, const float *weight, const float *x,
                                                       int width, int stride) {
  vector sums[8] = {0};
  int at = 0;
  for (; at + 4 <= width; at += 4) {
#pragma clang loop unroll(full)
    for (int row = 0; row < count; row++)
      sums[row] += *(const vector *)(x + at) * *(const vector *)(weight + row * stride + at);
  }
#pragma clang loop unroll(full)
  for (int row = 0; row < count; row++) {
    float sum = (sums[row][0] + sums[row][1]) + (sums[row][2] + sums[row][3]);
    for (int rest = at; rest < width; rest++) sum += x[rest] * weight[row * stride + rest];
    out[row] = sum;
  }
}

__attribute__((export_name("matmul"))) void matmul(float *out, const float *weight, const float *x, int width, int rows,
                                                   int stride) {
  int row = 0;
  for (; row + 8 <= rows; row += 8) tile(8, out + row, weight + row * stride, x, width, stride);
  for (; row < rows; row++) tile(1, out + row, weight + row * stride, x, width, stride);
}
