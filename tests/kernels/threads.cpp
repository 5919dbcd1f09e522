// A call of the kernels' threads, for test_threads.py.
#include "parallel.h"

// Adds the numbers below n, each worker those of its part; they wait for each other `rounds` times.
extern "C" __attribute__((visibility("default"))) int64_t sum_below(int n, int threads, int rounds) {
    std::atomic<int64_t> sum{0};
    parallel(threads, [&](const Worker& w) {
        for (int i = w.first(n); i < w.end(n); i++) sum += i;
        for (int i = 0; i < rounds; i++) w.wait();
    });
    return sum;
}
