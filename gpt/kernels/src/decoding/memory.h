// A block of memory for a Layout, which allocates from an arena in its constructor.
#pragma once
#include "../arena.h"
#include <cstring>
#ifdef __linux__
#include <sys/mman.h>
#endif

template <class Layout> class Memory {
    char* block;
    size_t size;
    Layout* layout;

    template <class... Arguments> static size_t count(const Arguments&... arguments) {
        Arena counter(nullptr);
        Layout(counter, arguments...);
        return counter.bytes();
    }
    static const size_t PAGE = 1 << 21;
    static std::align_val_t alignment(size_t size) { return std::align_val_t(size < PAGE ? 64 : PAGE); }
    // In huge pages where the system has them: streaming through memory then needs fewer address translations.
    static char* allocate(size_t size) {
        char* block = (char*)operator new(size, alignment(size));
#ifdef MADV_HUGEPAGE
        if (size >= PAGE) madvise(block, size, MADV_HUGEPAGE);
#endif
        return block;
    }

  public:
    template <class... Arguments> explicit Memory(const Arguments&... arguments) : size(count(arguments...)) {
        block = allocate(size);
        Arena arena(block);
        layout = new Layout(arena, arguments...);
    }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    ~Memory() {
        delete layout;
        operator delete(block, alignment(size));
    }
    void clear() { memset(block, 0, size); }
    size_t bytes() const { return size; }
    Layout* operator->() const { return layout; }
    Layout& operator*() const { return *layout; }
};
