// Memory for the duration of a call, or of a decoder.
#pragma once
#include <cstddef>
#include <cstring>
#include <new>
#include <vector>
#ifdef __linux__
#include <sys/mman.h>
#endif

// Hands out parts of a block of memory, one after another. Without a block it returns null, and only measures how much
// memory is needed.
class Arena {
    char* start;
    size_t used = 0;

  public:
    explicit Arena(void* start) : start((char*)start) {}
    template <class T> T* alloc(size_t count) {
        T* result = start ? (T*)(start + used) : nullptr;
        // Up to whole cache lines of 64 bytes, so that no two arrays share one.
        used += (count * sizeof(T) + 63) / 64 * 64;
        return result;
    }
    size_t bytes() const { return used; }
};

// Copies a structure to its place in an array of an arena; while an arena only measures, there is no array.
template <class T> inline void put(T* array, int i, const T& made) {
    if (array) memcpy((void*)(array + i), &made, sizeof made);
}

// The simplest Layout for `Memory` below: one array of `count` elements.
template <class T> struct Buffer {
    T* data;
    Buffer(Arena& arena, size_t count) : data(arena.alloc<T>(count)) {}
};

// One block of memory for `count` Layouts, such as one for each worker. A Layout is a structure of arrays, which its
// constructor allocates from an arena. The same constructor first measures the size of a Layout, in an arena without a
// block. With LARGE_PAGES, reading through the memory needs fewer address translations.
template <class Layout, bool LARGE_PAGES = false> class Memory {
    static constexpr size_t PAGE = 1 << 21;  // a large page of x86-64, and of AArch64 with pages of 4 KB
    static constexpr size_t GAP = 4096;      // between two Layouts, whose arrays would else compete for cache sets
    size_t size = 0;
    std::align_val_t alignment{64};
    char* block = nullptr;
    std::vector<Layout> layouts;

  public:
    template <class... Arguments> explicit Memory(int count, const Arguments&... arguments) {
        Arena counter(nullptr);
        Layout(counter, arguments...);  // only measures
        layouts.reserve(count);
        const size_t stride = counter.bytes() + (count > 1 ? GAP : 0);
        size = stride * count;
        if (LARGE_PAGES && size >= PAGE) alignment = std::align_val_t(PAGE);
        block = (char*)operator new(size, alignment);
#ifdef MADV_HUGEPAGE
        if (alignment == std::align_val_t(PAGE)) madvise(block, size, MADV_HUGEPAGE);
#endif
        for (int i = 0; i < count; i++) {
            Arena arena(block + stride * i);
            layouts.emplace_back(arena, arguments...);
        }
    }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    ~Memory() { operator delete(block, alignment); }

    void clear() { memset(block, 0, size); }
    const Layout& operator[](int i) const { return layouts[i]; }
    Layout* operator->() { return layouts.data(); }
    const Layout* operator->() const { return layouts.data(); }
};
