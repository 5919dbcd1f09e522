// Threads that compute a call together. A call is a sequence of phases, and a phase is a number of tasks that do not
// depend on each other. Every worker goes through the same phases, and in each takes tasks until none is left, so that
// a thread without a core at the moment delays nobody. What a task computes does not depend on who computes it.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>
#include <type_traits>
#ifdef _WIN32
// of <windows.h>, where INT8 and other names of ours are types
extern "C" __declspec(dllimport) int __stdcall GetModuleHandleExA(unsigned long flags, const char* of, void** library);
#else
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#endif

// Inlines all that a function calls, so that the library has no copies of std's templates: those would be visible, and
// another library could call them, on a processor that lacks their instructions.
#ifdef __clang__  // which inlines them anyway
#define INLINES_ALL
#else
#define INLINES_ALL __attribute__((flatten))
#endif

// Tells the processor that this is a spin loop.
inline void pause_spinning() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
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

// The core of the calling thread, or -1 where the system does not tell.
inline int this_core() {
#ifdef __linux__
    return sched_getcpu();
#else
    return -1;
#endif
}

// Moves the calling thread to another core if it is on the core with this number. Where there are two cores, Linux
// wakes a thread on the waker's own core, and leaves both there for some milliseconds, although the other core is idle.
inline void leave_core([[maybe_unused]] int core) {
#ifdef __linux__
    if (core != sched_getcpu()) return;
    cpu_set_t allowed, others;
    if (sched_getaffinity(0, sizeof allowed, &allowed)) return;
    others = allowed;
    CPU_CLR(core, &others);
    // Fails where there is no other core. The thread stays where it is when all cores are allowed again.
    if (!sched_setaffinity(0, sizeof others, &others)) sched_setaffinity(0, sizeof allowed, &allowed);
#endif
}

// Lets `run` be called in each new process that is forked from this one.
inline void after_fork(void (*run)()) {
#ifndef _WIN32  // which cannot fork
    pthread_atfork(nullptr, nullptr, run);
#endif
}

// Where threads wait for something that others change. They spin for about as long as it takes to wake a sleeping
// thread, and then sleep: at worst this takes twice as long as it would if the end of the wait were known beforehand
// (Karlin et al. 1994, 10.1007/BF01189993).
class WaitingRoom {
    std::mutex mutex;
    std::condition_variable changed;
    std::atomic<int> sleepers{0};

  public:
    std::chrono::nanoseconds spin{20000};  // until it is measured

    // Returns whether the thread has slept.
    template <class Condition> INLINES_ALL bool wait_until(Condition is_true) {
        const auto start = std::chrono::steady_clock::now();
        do {
            // Many pauses between two looks at the clock, since reading it takes as long as a few of them.
            for (int i = 0; i < 64; i++) {
                if (is_true()) return false;
                pause_spinning();
            }
        } while (std::chrono::steady_clock::now() - start < spin);
        std::unique_lock<std::mutex> lock(mutex);
        sleepers++;  // see `wake`
        changed.wait(lock, is_true);
        sleepers--;
        return true;
    }

    // To be called after the change. A thread counts itself among the sleepers before it looks a last time, and all of
    // this is sequentially consistent: either it sees the change, or it is seen here.
    void wake() {
        if (sleepers == 0) return;
        std::lock_guard<std::mutex> lock(mutex);
        changed.notify_all();
    }
};

// Items from first up to, not including, end.
struct Range {
    int first, end;
};

// One of `count` parts of equal size, into which the work of a phase can be divided.
struct Share {
    int index, count;

    // This part of n items.
    Range of(int n) const { return {(int)((int64_t)n * index / count), (int)((int64_t)n * (index + 1) / count)}; }
};

// What the workers of a call share. `word` holds two numbers: its lower TASK_BITS bits are the next task of the phase,
// and the bits above them are the number of the phase. Since both are in one word, a worker that comes late cannot take
// a task of another phase. The lower PHASE_BITS bits of a phase's number count the phases of a call, and those above
// them count the calls. A phase of a training step has a task for every 32 positions, of which there are less than
// 2^31, or one for each head of each sequence.
struct Board {
    static const int TASK_BITS = 26, PHASE_BITS = 18;
    // Each on a cache line of its own, which the other's changes do not take away from the processor that reads it.
    alignas(64) std::atomic<uint64_t> word{0};
    alignas(64) std::atomic<int> done{0};  // tasks of this phase
    WaitingRoom room;
};

// One worker's place in a call.
class Team {
    Board* board;  // null: this worker is alone
    uint64_t phase;
    int caller_core;  // -1: this is the caller

    // Waits while the phase has tasks that other workers have taken; returns the word that followed.
    uint64_t word_of_next_phase() const {
        if (board->room.wait_until([this] { return board->word >> Board::TASK_BITS != phase; }))
            leave_core(caller_core);
        return board->word;
    }

  public:
    const int worker;

    Team(Board* board, uint64_t first_phase, int worker, int caller_core = -1)
        : board(board), phase(first_phase), caller_core(caller_core), worker(worker) {}

    // Calls body(task) once for each task, on some worker, and returns when all are done. Code between two calls of
    // `run` is executed by every worker, at any time, and so must write nothing that others read.
    template <class Body> void run(int tasks, const Body& body) {
        if (!board) {
            for (int task = 0; task < tasks; task++) body(task);
            return;
        }
        if (tasks <= 0) return;
        const uint64_t mask = ((uint64_t)1 << Board::TASK_BITS) - 1;
        uint64_t word = board->word;
        while (word >> Board::TASK_BITS == phase) {
            const int task = (int)(word & mask);
            if (task >= tasks) {
                word = word_of_next_phase();  // waits for it
            } else if (board->word.compare_exchange_weak(word, word + 1)) {
                body(task);
                if (board->done.fetch_add(1) + 1 == tasks) {
                    // Reset first: as soon as the word has changed, other workers count tasks of the next phase.
                    board->done = 0;
                    board->word = (phase + 1) << Board::TASK_BITS;  // which opens the next phase
                    board->room.wake();
                }
                word = board->word;
            }
        }
        phase++;
    }
};

namespace {  // which hides what std::thread makes of the class, too

// The threads of this process that wait for calls. It is never destroyed, and its threads are detached, so that a
// process ends without waiting for them.
class Pool {
    static const size_t MAX_PROGRAM = 1024;  // bytes of a program

    Board board;
    std::mutex mutex;  // guards `job`
    std::atomic<bool> busy{false};
    std::atomic<uint32_t> jobs{0};  // so far, by which a thread sees that there is a new one
    std::atomic<int> inside{0};     // threads that execute a program, maybe after its call has ended
    int size = 1;                   // the caller is a worker too

    // What threads find when they are woken.
    struct {
        void (*run)(const void* program, Team& team);  // null between calls
        const void* program;                           // on the stack of the caller
        size_t bytes;                                  // of the program
        int threads;                                   // workers, with the caller
        uint64_t first_phase;
        int core;  // of the caller
    } job = {};

    // What a thread does for ever. It works on a copy of the program, since the caller may return before a late worker
    // has seen that nothing is left to do.
    INLINES_ALL void serve(int index) {
        alignas(64) char program[MAX_PROGRAM];
        uint32_t seen = 0;
        while (true) {
            board.room.wait_until([&] { return jobs != seen; });
            std::unique_lock<std::mutex> lock(mutex);
            seen = jobs;
            // The call may have ended before this thread came, or want fewer threads.
            if (!job.run || index >= job.threads) continue;
            const auto current = job;
            // Copied under the mutex, which the caller takes before it returns.
            memcpy(program, current.program, current.bytes);
            inside++;  // see wait_for_late_workers
            lock.unlock();
            leave_core(current.core);
            Team team(&board, current.first_phase, index, current.core);
            current.run(program, team);
            inside--;
        }
    }

    // Measures how long it takes to wake a thread: the least of some tries, since other processes may take the cores
    // meanwhile.
    INLINES_ALL void measure_wake_up() {
        using Clock = std::chrono::steady_clock;
        std::atomic<int> asked{0}, answered{0};
        const int tries = 5;
        std::mutex own;
        std::condition_variable called;
        std::thread sleeper([&] {
            for (int i = 1; i <= tries; i++) {
                std::unique_lock<std::mutex> lock(own);
                called.wait(lock, [&] { return asked >= i; });
                answered = i;
            }
        });
        auto least = std::chrono::nanoseconds(100000);  // also where no try was so quick
        for (int i = 1; i <= tries; i++) {
            std::this_thread::sleep_for(std::chrono::microseconds(50));  // in which the other falls asleep
            const auto start = Clock::now();
            {
                std::lock_guard<std::mutex> lock(own);
                asked = i;
            }
            called.notify_one();
            while (answered < i) std::this_thread::yield();
            least = std::min(least, std::chrono::nanoseconds(Clock::now() - start));
        }
        sleeper.join();
        board.room.spin = std::max(least, std::chrono::nanoseconds(2000));  // about one round of the spin loop
    }

    // Starts threads until there are so many workers; returns how many can be used, fewer if the system denies threads.
    INLINES_ALL int grow(int threads) {
        try {
            if (size == 1) measure_wake_up();
            for (; size < threads; size++) std::thread(&Pool::serve, this, size).detach();
        } catch (const std::system_error&) {
            return size;
        }
        return threads;
    }

  public:
    Pool() { stay_loaded(); }

    void wait_for_late_workers() const {
        while (inside > 0) std::this_thread::yield();
    }

    // Runs a program on at most `threads` workers, fewer if the system denies threads; returns whether it did: not if
    // another call is running.
    template <class Program> bool try_run(int threads, const Program& program) {
        static_assert(std::is_trivially_copyable<Program>::value, "late workers have a copy of the program");
        static_assert(sizeof(Program) <= MAX_PROGRAM, "late workers have a copy of the program");
        if (busy.exchange(true)) return false;
        threads = grow(threads);
        // Phases have the bits that tasks leave. The number of the call begins anew when it has filled its own.
        const int bits = 64 - Board::TASK_BITS;
        const uint64_t call = (uint64_t)jobs + 1;
        const uint64_t first_phase = (call << Board::PHASE_BITS) & (((uint64_t)1 << bits) - 1);
        board.done = 0;
        board.word = first_phase << Board::TASK_BITS;
        {
            std::lock_guard<std::mutex> lock(mutex);
            const auto run = [](const void* program, Team& team) { (*(const Program*)program)(team); };
            job = {run, &program, sizeof program, threads, first_phase, this_core()};
            jobs++;
        }
        board.room.wake();
        Team team(&board, first_phase, 0);
        program(team);
        {
            // From here on no thread begins with the program, which the caller may now destroy.
            std::lock_guard<std::mutex> lock(mutex);
            job.run = nullptr;
        }
        busy = false;
        return true;
    }
};

}  // namespace

// The pool of this process, once there was a call.
static std::atomic<Pool*> kept{nullptr};

// Calls program(team) on at most `threads` workers. If another thread of this process has the pool, the caller computes
// alone.
template <class Program> void run_together(int threads, const Program& program) {
    if (threads > 1) {
        Pool* pool = kept;
        if (!pool) {
            after_fork([] { kept = nullptr; });  // none of its threads is in the new process
            Pool* made = new Pool;
            // Fails if another thread made a pool first; `pool` is then that one.
            if (kept.compare_exchange_strong(pool, made)) pool = made;
            else delete made;
        }
        if (pool->try_run(threads, program)) return;
    }
    Team alone(nullptr, 0, 0);
    program(alone);
}

// Waits until no worker executes a program whose call has ended. To be called before memory is freed that programs read
// outside of tasks.
[[maybe_unused]] static void wait_for_late_workers() {
    if (const Pool* pool = kept) pool->wait_for_late_workers();
}
