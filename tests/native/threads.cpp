// A call of the kernels' threads, for test_threads.py, and a program that makes many of them from two threads at once.
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

#ifdef RACING
static void call() {
    for (int i = 0; i < 400; i++) {
        int parts[4] = {}, sums[4] = {};
        parallel(1 + i % 4, [&](const Worker& w) {
            parts[w.index] = 1;
            w.wait();
            for (int part : parts) sums[w.index] += part;
            w.wait();
            parts[w.index] = i;
        });
        if (sums[0] < 1 || parts[0] != i) __builtin_trap();
    }
}

int main() {
    std::thread other(call);
    call();
    other.join();
}
#endif
