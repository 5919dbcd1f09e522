// Threads that work on the same call, and wait for each other without the system's help.
#pragma once
#include <atomic>
#include <cstdint>
#ifdef _OPENMP
#include <omp.h>
#else
#include <thread>
#include <vector>
#endif
#ifdef _WIN32
#include <thread>
#else
#include <sched.h>
#endif

// Tells the processor that this is a loop that waits.
inline void pause_spinning() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

inline void yield_to_others() {
#ifdef _WIN32
    std::this_thread::yield();
#else
    sched_yield();
#endif
}

struct Barrier {
    alignas(64) std::atomic<int> arrived{0};
    alignas(64) std::atomic<int> round{0};
};

struct Range {
    int first, end;
};

// One of the threads that work on the same call.
struct Worker {
    int index, count;
    Barrier* barrier;

    // The part of n pieces that is this worker's: from first to before end.
    int first(int n) const { return (int)((int64_t)n * index / count); }
    int end(int n) const { return (int)((int64_t)n * (index + 1) / count); }
    Range share(int n) const { return {first(n), end(n)}; }

    void wait() const {
        if (count == 1) return;
        const int round = barrier->round.load(std::memory_order_relaxed);
        if (barrier->arrived.fetch_add(1, std::memory_order_acq_rel) == count - 1) {
            barrier->arrived.store(0, std::memory_order_relaxed);
            barrier->round.store(round + 1, std::memory_order_release);
            return;
        }
        for (int spins = 0; barrier->round.load(std::memory_order_acquire) == round; spins++)
            if (spins > 4000) yield_to_others();  // someone else may need this processor
            else pause_spinning();
    }
};

// Calls `work` with each of `threads` workers, at the same time.
template <class Work> void parallel(int threads, Work work) {
    Barrier barrier;
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
    work(Worker{omp_get_thread_num(), omp_get_num_threads(), &barrier});
#else
    std::vector<std::thread> others;
    for (int i = 1; i < threads; i++) others.emplace_back([&, i] { work(Worker{i, threads, &barrier}); });
    work(Worker{0, threads, &barrier});
    for (std::thread& other : others) other.join();
#endif
}
