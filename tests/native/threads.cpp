// A call of the kernels' threads, for test_threads.py, and a program that makes many of them from two threads at once.
#include "team.h"

// Adds the numbers below n, a task for each, in each of `phases` phases; returns the sum of the last one. The tasks of
// a phase read what those of the phase before have written.
extern "C" __attribute__((visibility("default"))) int64_t sum_below(int n, int threads, int phases) {
    static const int MOST = 1000;
    int64_t parts[2][MOST] = {};
    int64_t (*shared)[MOST] = parts;
    run_together(threads, [n, phases, shared](Team& team) {
        for (int phase = 0; phase < phases; phase++)
            team.run(n, [&](int i) {
                const int before = i == 0 ? n - 1 : i - 1;  // a task of the phase before, by any worker
                const int64_t sum = phase == 0 ? i : shared[1 - phase % 2][before] - before + i;
                shared[phase % 2][i] = sum;
            });
    });
    int64_t total = 0;
    for (int i = 0; i < n; i++) total += parts[(phases - 1) % 2][i];
    return total;
}

// Returns how many tasks of a phase were executed.
extern "C" __attribute__((visibility("default"))) int64_t count_executed(int tasks, int threads) {
    std::atomic<int64_t> executed{0};
    std::atomic<int64_t>* const shared = &executed;
    run_together(threads, [tasks, shared](Team& team) { team.run(tasks, [&](int) { ++*shared; }); });
    return executed;
}

#ifdef RACING
static void call() {
    for (int i = 0; i < 400; i++)
        if (sum_below(20, 1 + i % 4, 1 + i % 7) != 190) __builtin_trap();
}

int main() {
    std::thread other(call);
    call();
    other.join();
}
#endif
