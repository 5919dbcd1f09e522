// Memory for the time of a call.
#pragma once
#include <stddef.h>
#include <stdlib.h>

// Cut into pieces, freed at the end of the scope.
class Scratch {
    char *start, *next;

  public:
    explicit Scratch(size_t bytes) : start((char*)aligned_alloc(64, (bytes + 4095) / 64 * 64)), next(start) {}
    ~Scratch() { free(start); }
    template <class T> T* take(size_t count) {
        T* piece = (T*)next;
        next += (count * sizeof(T) + 63) / 64 * 64;
        return piece;
    }
};
