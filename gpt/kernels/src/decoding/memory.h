// A block of memory for a Layout, which takes its pieces from an arena when it is constructed.
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
    // In large pages where the system has some: what is read from end to end asks for fewer translations of addresses.
    static char* take(size_t size) {
        const size_t page = 1 << 21, unit = size < page ? 64 : page;
        char* block = (char*)std::aligned_alloc(unit, (size + unit) / unit * unit);
        if (!block) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
        if (unit == page) madvise(block, size, MADV_HUGEPAGE);
#endif
        return block;
    }

  public:
    template <class... Arguments> explicit Memory(const Arguments&... arguments) : size(count(arguments...)) {
        block = take(size);
        Arena arena(block);
        layout = new Layout(arena, arguments...);
    }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    ~Memory() {
        delete layout;
        std::free(block);
    }
    void clear() { memset(block, 0, size); }
    size_t bytes() const { return size; }
    Layout* operator->() const { return layout; }
    Layout& operator*() const { return *layout; }
};
