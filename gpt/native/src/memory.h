// Memory for the duration of a call, or of a decoder.
#pragma once
#include <cstddef>
#include <cstring>
#include <new>
#include <vector>
#ifdef __linux__
#include <sys/mman.h>
#endif

// A bump allocator over a block of memory; without a block it only measures the size needed.
class Arena {
    char* start;
    size_t used = 0;

  public:
    explicit Arena(void* start) : start((char*)start) {}
    template <class T> T* alloc(size_t count) {
        T* result = start ? (T*)(start + used) : nullptr;
        used += (count * sizeof(T) + 63) / 64 * 64;  // up to a whole cache line
        return result;
    }
    size_t bytes() const { return used; }
};

// The simplest Layout, as `Memory` below takes them: one array of `count` elements.
template <class T> struct Buffer {
    T* data;
    Buffer(Arena& arena, size_t count) : data(arena.alloc<T>(count)) {}
};

// One block of memory for some Layouts, such as one for each worker. A Layout allocates from an arena in its
// constructor, so that the same code measures and allocates. Streaming through LARGE_PAGES needs fewer address
// translations.
template <class Layout, bool LARGE_PAGES = false> class Memory {
    static constexpr size_t PAGE = 1 << 21;  // a large page of x86-64, and of AArch64 with pages of 4 KB
    static constexpr size_t GAP = 4096;  // between layouts, so that no two layouts' buffers map to the same cache sets
    size_t size = 0;
    std::align_val_t alignment{64};
    char* block = nullptr;
    std::vector<Layout> layouts;

  public:
    template <class... Arguments> explicit Memory(int count, const Arguments&... arguments) {
        Arena counter(nullptr);
        Layout(counter, arguments...);
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
