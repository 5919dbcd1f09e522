// Threads that work on the same pass, and wait for each other without the system's help.
#pragma once
#include <atomic>
#include <sched.h>
#include <stdint.h>

// Tells the processor that this is a loop that waits.
static inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

struct Barrier {
    alignas(64) std::atomic<int> arrived{0};
    alignas(64) std::atomic<int> round{0};
};

// One of the threads that work on the same pass.
struct Worker {
    int index, count;
    Barrier* barrier;

    // The part of n pieces that is this worker's: from first to before end.
    int first(int n) const { return (int)((int64_t)n * index / count); }
    int end(int n) const { return (int)((int64_t)n * (index + 1) / count); }

    void wait() const {
        if (count == 1) return;
        const int round = barrier->round.load(std::memory_order_relaxed);
        if (barrier->arrived.fetch_add(1, std::memory_order_acq_rel) == count - 1) {
            barrier->arrived.store(0, std::memory_order_relaxed);
            barrier->round.store(round + 1, std::memory_order_release);
            return;
        }
        for (int spins = 0; barrier->round.load(std::memory_order_acquire) == round; spins++)
            if (spins > 4000) sched_yield();  // someone else may need this processor
            else relax();
    }
};
