// Threads that work on the same call, with a spinning barrier.
#pragma once
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>
#ifndef _WIN32
#include <sched.h>
#endif

// The OpenMP library that torch ships, by its binary interface: a second one would compete with it for the cores, and
// compilers ship different ones, or none. Null where torch ships none, or a different one.
#ifdef __linux__
extern "C" {
__attribute__((weak)) void GOMP_parallel(void (*work)(void*), void* data, unsigned threads, unsigned flags);
__attribute__((weak)) int omp_get_thread_num();
__attribute__((weak)) int omp_get_num_threads();
}
#endif

// Tells the processor that this is a spin loop.
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

    // This worker's part of n items: from first up to, not including, end.
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
            if (spins > 100) yield_to_others();  // another process may need this core
            else pause_spinning();
    }
};

// The same function for every way to start threads, so that `work` is compiled once.
template <class Work> struct Call {
    Work* work;
    Barrier barrier;

    [[gnu::noinline]] void run(int index, int count) { (*work)(Worker{index, count, &barrier}); }
};

// Calls `work` with each of at most `threads` workers, at the same time.
template <class Work> void parallel(int threads, Work work) {
    Call<Work> call = {&work, {}};
#ifdef __linux__
    if (GOMP_parallel) {
        const auto run = [](void* data) { ((Call<Work>*)data)->run(omp_get_thread_num(), omp_get_num_threads()); };
        GOMP_parallel(run, &call, (unsigned)threads, 0);
        return;
    }
#endif
    std::vector<std::thread> others;
    for (int i = 1; i < threads; i++) others.emplace_back([&call, i, threads] { call.run(i, threads); });
    call.run(0, threads);
    for (std::thread& other : others) other.join();
}
