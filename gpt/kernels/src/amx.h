// The AMX tile registers.
#pragma once
#include <cstdint>
#include <cstring>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

// Linux grants the tile registers only to processes that ask; returns 0 if they are granted.
inline int request_tiles() { return (int)syscall(SYS_arch_prctl, 0x1023, 18); }

// During its lifetime, all eight tiles are 16 rows of 64 bytes; afterward the previous configuration is restored.
class TileScope {
    struct alignas(64) Config {
        uint8_t palette, start, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } before;

  public:
    TileScope() {
        _tile_storeconfig(&before);
        Config mine;
        memset(&mine, 0, sizeof mine);
        mine.palette = 1;
        for (int i = 0; i < 8; i++) mine.row_bytes[i] = 64, mine.rows[i] = 16;
        _tile_loadconfig(&mine);
    }
    ~TileScope() {
        if (before.palette) _tile_loadconfig(&before);
        else _tile_release();
    }
};

// Tiles 0 to 3 hold sums. (Their numbers are part of the instructions, hence no loops.)
// clang-format off
inline void zero_tiles() {
    _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
}
// Side by side.
inline void store_tiles(void* p, size_t stride) {
    char* start = (char*)p;
    _tile_stored(0, start, stride); _tile_stored(1, start + 64, stride);
    _tile_stored(2, start + 128, stride); _tile_stored(3, start + 192, stride);
}
// clang-format on
