// The AMX tile registers. GCC's own functions do not tell it which memory an instruction reads (bug 114098), so that it
// may drop what was stored there.
#pragma once
#include <cstddef>
#include <cstdint>

// What LDTILECFG reads: palette 1 has eight tiles of at most 16 rows of 64 bytes; `start` is the row at which an
// interrupted load or store of a tile goes on.
struct TileConfig {
    uint8_t palette, start, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

#ifdef GPT_EMULATED_TILES
#include GPT_EMULATED_TILES  // tests/native/emulated_tiles.h
#else
#include <sys/syscall.h>
#include <unistd.h>

// Linux grants the tile registers only to processes that ask; returns 0 if they are granted.
inline int request_tiles() {
    // ARCH_REQ_XCOMP_PERM and XFEATURE_XTILEDATA of the kernel, which the headers of older systems do not have.
    const int request_permission = 0x1023, tile_data = 18;
    return (int)syscall(SYS_arch_prctl, request_permission, tile_data);
}
inline void load_config(const TileConfig& c) { __asm__ volatile("ldtilecfg %0" : : "m"(c)); }
inline void store_config(TileConfig& c) { __asm__ volatile("sttilecfg %0" : "=m"(c)); }
// t, sum, a, b: numbers of tiles; p: a tile's first row in memory; stride: bytes from one row to the next.
#define TILE_MEMORY(name, order, p, stride) \
    __asm__ volatile(name order : : "r"((const void*)(p)), "r"((size_t)(stride)) : "memory")
#define LOAD_TILE(t, p, stride) TILE_MEMORY("tileloadd ", "(%0,%1), %%tmm" #t, p, stride)
#define STORE_TILE(t, p, stride) TILE_MEMORY("tilestored %%tmm" #t, ", (%0,%1)", p, stride)
#define ZERO_TILE(t) __asm__ volatile("tilezero %tmm" #t)
#define DOT_TILES(type, sum, a, b) __asm__ volatile("tdp" type " %tmm" #b ", %tmm" #a ", %tmm" #sum)
#endif

// During its lifetime, all eight tiles are 16 rows of 64 bytes; afterward the previous configuration is restored.
class TileScope {
    TileConfig before;

  public:
    TileScope() {
        // The arrays have room for sixteen tiles, of which there are eight.
        static const TileConfig whole = {1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
        store_config(before);
        load_config(whole);
    }
    ~TileScope() { load_config(before); }  // palette 0 releases the tiles
};

// Tiles 0 to 3 hold sums. (Their numbers are part of the instructions, hence no loops.)
// clang-format off
inline void zero_tiles() {
    ZERO_TILE(0); ZERO_TILE(1); ZERO_TILE(2); ZERO_TILE(3);
}
// Side by side: 64 bytes are the width of a tile.
inline void store_tiles(void* p, size_t stride) {
    char* start = (char*)p;
    STORE_TILE(0, start, stride); STORE_TILE(1, start + 64, stride);
    STORE_TILE(2, start + 128, stride); STORE_TILE(3, start + 192, stride);
}
// clang-format on
