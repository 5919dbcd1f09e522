// Threads that wait for calls, for want of an OpenMP library to share with torch: starting them for each call takes
// longer than a small kernel.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>
#ifdef _WIN32
// of <windows.h>, where INT8 and other names of ours are types
extern "C" __declspec(dllimport) int __stdcall GetModuleHandleExA(unsigned long flags, const char* of, void** library);
#else
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
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

// Spins at first, since most waits are short, and then lets others use the core.
template <class Condition> void spin_until(Condition is_true) {
    for (int spins = 0; !is_true(); spins++)
        if (spins > 1000) yield_to_others();  // which may give the core to another process for milliseconds
        else pause_spinning();
}

// Keeps this library in memory if it is closed, since its threads wait in its code.
inline void stay_loaded() {
#ifdef _WIN32
    // GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS and _PIN: the library that has this address stays.
    const unsigned long from_address = 4, forever = 1;
    void* library;
    GetModuleHandleExA(from_address | forever, (const char*)&pause_spinning, &library);
#else
    Dl_info library;
    if (dladdr((void*)&pause_spinning, &library)) dlopen(library.dli_fname, RTLD_NOW | RTLD_NODELETE);
#endif
}

inline void after_fork(void (*run)()) {
#ifndef _WIN32  // which cannot fork
    pthread_atfork(nullptr, nullptr, run);
#endif
}

// What one of the `count` workers of a call does.
using RunWorker = void (*)(void* data, int index, int count);

namespace {  // which hides what std::thread makes of the class, too

// Is never destroyed, and its threads are detached, so that a process ends without waiting for them.
class Pool {
    std::mutex mutex;  // guards `call` and `calls`
    std::condition_variable called;
    std::atomic<uint32_t> calls{0};            // so far, by which a thread sees that there is a new one
    std::atomic<int> working{0};               // threads that have not ended their part of the call
    std::atomic_flag busy = ATOMIC_FLAG_INIT;  // a call is running
    int size = 1;                              // the caller is a worker too

    struct {
        RunWorker run;
        void* data;
        int count;
    } call;

    // What a thread does for ever: the worker of this index in each call after the first `seen`.
    void serve(int index, uint32_t seen) {
        while (true) {
            std::unique_lock<std::mutex> lock(mutex);
            called.wait(lock, [&] { return calls != seen; });
            seen = calls;
            const auto current = call;
            lock.unlock();
            if (index >= current.count) continue;
            current.run(current.data, index, current.count);
            working--;
        }
    }

  public:
    Pool() { stay_loaded(); }

    // Runs all workers of a call at the same time, fewer if the system denies threads; returns whether it did: not if
    // another call is running.
    bool try_run(RunWorker run, void* data, int count) {
        if (busy.test_and_set()) return false;
        try {
            for (; size < count; size++) std::thread(&Pool::serve, this, size, calls.load()).detach();
        } catch (const std::system_error&) {
            count = size;
        }
        {
            std::lock_guard<std::mutex> lock(mutex);
            call = {run, data, count};
            working = count - 1;
            calls++;
        }
        called.notify_all();
        run(data, 0, count);
        spin_until([&] { return working == 0; });
        busy.clear();
        return true;
    }
};

}  // namespace

// The pool of this process, once there was a call.
static std::atomic<Pool*> kept{nullptr};

// Runs all workers of a call at the same time: `count`, or fewer where there are no more threads.
static void run_workers(RunWorker run, void* data, int count) {
    if (count == 1) return run(data, 0, 1);
    Pool* pool = kept;
    if (!pool) {
        after_fork([] { kept = nullptr; });  // none of its threads is in the new process
        Pool* made = new Pool;
        if (kept.compare_exchange_strong(pool, made)) pool = made;
        else delete made;  // another thread made one first, which `pool` is now
    }
    if (!pool->try_run(run, data, count)) run(data, 0, 1);  // another call has the cores
}
