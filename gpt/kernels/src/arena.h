// Scratch memory for the duration of a call.
#pragma once
#include <cstddef>
#include <cstdlib>
#include <new>

// A bump allocator over a block of memory; without a block it only measures the size needed.
class Arena {
    char* start;
    size_t used = 0;

  public:
    explicit Arena(void* start) : start((char*)start) {}
    template <class T> T* alloc(size_t count) {
        T* result = start ? (T*)(start + used) : nullptr;
        used += (count * sizeof(T) + 63) / 64 * 64;
        return result;
    }
    size_t bytes() const { return used; }
};

// One block of memory with a Layout for each worker. A Layout allocates from an arena in its constructor, so that the
// same code measures and allocates.
template <class Layout> class Scratch {
    char* block;
    size_t size;

  public:
    template <class... Arguments> explicit Scratch(int workers, const Arguments&... arguments) {
        Arena counter(nullptr);
        Layout(counter, arguments...);
        size = counter.bytes() + 4096;  // so that no two workers' buffers map to the same cache sets
        block = (char*)operator new(size * workers, std::align_val_t(64));
    }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    ~Scratch() { operator delete(block, std::align_val_t(64)); }

    template <class... Arguments> Layout of(int worker, const Arguments&... arguments) const {
        Arena arena(block + size * worker);
        return Layout(arena, arguments...);
    }
};
