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
