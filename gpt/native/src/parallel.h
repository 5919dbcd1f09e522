// Threads that work on the same call, with a spinning barrier.
#pragma once
#include "pool.h"

// The OpenMP library that torch ships, by its binary interface: a second one would compete with it for the cores, and
// compilers ship different ones, or none. Null where torch ships none, or a different one.
#if defined(__linux__) && !defined(GPT_OWN_THREADS)
#define GPT_OPENMP
extern "C" {
__attribute__((weak)) void GOMP_parallel(void (*work)(void*), void* data, unsigned threads, unsigned flags);
__attribute__((weak)) int omp_get_thread_num();
__attribute__((weak)) int omp_get_num_threads();
}

// Where there are two cores, Linux wakes a thread on that of the thread that wakes it, and leaves both there for some
// milliseconds, in which they wait for each other.
inline void leave_core(int core) {
    if (core != sched_getcpu()) return;
    cpu_set_t allowed, others;
    if (sched_getaffinity(0, sizeof allowed, &allowed)) return;
    others = allowed;
    CPU_CLR(core, &others);
    if (!sched_setaffinity(0, sizeof others, &others)) sched_setaffinity(0, sizeof allowed, &allowed);
}
#endif

// Where workers wait for each other: how many have arrived in this round, and the number of the round. Each is on a
// cache line of its own, since all who wait read the second while others still write the first.
struct Barrier {
    alignas(64) std::atomic<int> arrived{0};
    alignas(64) std::atomic<int> round{0};
};

// Items from first up to, not including, end.
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
            // The count begins anew before the others are let go, who may soon arrive at the next barrier.
            barrier->arrived.store(0, std::memory_order_relaxed);
            barrier->round.store(round + 1, std::memory_order_release);
            return;
        }
        spin_until([&] { return barrier->round.load(std::memory_order_acquire) != round; });
    }
};

// The same function for every kind of threads, so that `work` is compiled once.
template <class Work> struct Call {
    Work* work;
    Barrier barrier;
    int core;  // of the caller

    [[gnu::noinline]] static void enter(void* call, int index, int count) {
        (*((Call*)call)->work)(Worker{index, count, &((Call*)call)->barrier});
    }
};

// Calls `work` with each of at most `threads` workers, at the same time.
template <class Work> void parallel(int threads, Work work) {
    Call<Work> call = {&work, {}, 0};
#ifdef GPT_OPENMP
    if (GOMP_parallel) {
        call.core = sched_getcpu();
        const auto run = [](void* data) {
            const int index = omp_get_thread_num();
            if (index) leave_core(((Call<Work>*)data)->core);
            Call<Work>::enter(data, index, omp_get_num_threads());
        };
        GOMP_parallel(run, &call, (unsigned)threads, 0);
        return;
    }
#endif
    run_workers(Call<Work>::enter, &call, threads);
}
