// Emulates the AMX tile unit for a process whose processor or system has none: every tile instruction traps, is decoded
// and carried out. LD_PRELOAD it before a program that calls a library compiled for AMX.
#include <cpuid.h>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>

// Grants the tiles, which a system without them denies; passes every other call on.
extern "C" long syscall(long number, ...) noexcept {
    static const auto real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    long a[6];
    va_list arguments;
    va_start(arguments, number);
    for (long& each : a) each = va_arg(arguments, long);
    va_end(arguments);
    return number == SYS_arch_prctl && a[0] == 0x1023 ? 0 : real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

struct Config {
    uint8_t palette, start, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};
static thread_local Config config;
static thread_local uint8_t tiles[8][16][64];

static void fault(const char* what) { fprintf(stderr, "tile fault: %s\n", what), _Exit(99); }

static void configure(const Config& c) {
    for (int i = 0; i < 16; i++) {
        if (i < 14 && c.reserved[i]) fault("reserved");
        if (i >= 8 && (c.row_bytes[i] || c.rows[i])) fault("no such tile");
        if (i < 8 && (c.row_bytes[i] > 64 || c.rows[i] > 16 || !c.row_bytes[i] != !c.rows[i])) fault("shape");
    }
    if (c.palette > 1) fault("palette");
    memcpy(&config, &c, sizeof c), memset(tiles, 0, sizeof tiles);
}

static float number(const uint8_t* p) {
    const uint32_t bits = (uint32_t)(p[0] | p[1] << 8) << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static void multiply(int sum, int a, int b, bool is_float) {
    if (config.rows[sum] != config.rows[a] || config.row_bytes[sum] != config.row_bytes[b] ||
        config.row_bytes[a] != 4 * config.rows[b])
        fault("shapes differ");
    for (int m = 0; m < config.rows[sum]; m++)
        for (int n = 0; n < config.row_bytes[sum]; n += 4) {
            float x;
            int32_t i;
            memcpy(&x, &tiles[sum][m][n], 4), memcpy(&i, &tiles[sum][m][n], 4);
            for (int k = 0; k < config.row_bytes[a]; k++) {
                const uint8_t *left = &tiles[a][m][k], *right = &tiles[b][k / 4][n + k % 4];
                if (!is_float) i += (int8_t)*left * (int8_t)*right;
                else if (k % 2 == 0) x += number(left) * number(right);
            }
            if (is_float) memcpy(&tiles[sum][m][n], &x, 4);
            else memcpy(&tiles[sum][m][n], &i, 4);
        }
}

static const int NAMES[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                              REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

static void on_trap(int, siginfo_t*, void* context) {
    greg_t* registers = ((ucontext_t*)context)->uc_mcontext.gregs;
    const uint8_t* code = (const uint8_t*)registers[REG_RIP];
    const int opcode = code[3], prefix = code[2] & 3, modrm = code[4], mod = modrm >> 6, reg = modrm >> 3 & 7;
    if (code[0] != 0xc4 || (code[1] & 31) != 2 ||
        (opcode != 0x49 && opcode != 0x4b && opcode != 0x5c && opcode != 0x5e)) {
        signal(SIGILL, SIG_DFL);
        return;
    }
    int rm = modrm & 7, length = 5;
    int64_t address = 0, stride = 0;
    if (mod != 3) {
        int base = rm | (code[1] & 32 ? 0 : 8);
        if (rm == 4) {
            const int sib = code[length++], index = (sib >> 3 & 7) | (code[1] & 64 ? 0 : 8);
            base = (sib & 7) | (code[1] & 32 ? 0 : 8);
            if (index != 4) stride = registers[NAMES[index]] << (sib >> 6);
        }
        int32_t wide = 0;
        const bool is_absolute = mod == 0 && (base & 7) == 5;
        if (mod == 1) address = (int8_t)code[length++];
        if (mod == 2 || is_absolute) memcpy(&wide, code + length, 4), length += 4, address = wide;
        if (!is_absolute) address += registers[NAMES[base]];
        else if (rm == 5) address += (int64_t)code + length;
        if (opcode == 0x49) address += stride;
    }
    // a processor with tiles, of a process that did not ask for them, carries out the configuration itself
    unsigned a, b, c, d;
    __cpuid_count(7, 0, a, b, c, d);
    if (d >> 24 & 1) memcpy(&config, (const char*)((ucontext_t*)context)->uc_mcontext.fpregs + 2752, 64);
    if (opcode == 0x49 && mod == 3 && prefix == 3) memset(tiles[reg], 0, 1024);
    else if (opcode == 0x49 && mod == 3) configure(Config());
    else if (opcode == 0x49 && prefix == 1) memcpy((void*)address, &config, 64);
    else if (opcode == 0x49) configure(*(const Config*)address);
    else if (!config.palette) fault("no configuration");
    else if (opcode == 0x5c || opcode == 0x5e) multiply(reg, rm, ~code[2] >> 3 & 7, opcode == 0x5c);
    else
        for (int r = 0; r < config.rows[reg]; r++) {
            uint8_t *memory = (uint8_t*)address + r * stride, *row = tiles[reg][r];
            if (prefix == 2) memcpy(memory, row, config.row_bytes[reg]);
            else memcpy(row, memory, config.row_bytes[reg]);
        }
    registers[REG_RIP] += length;
}

__attribute__((constructor)) static void begin() {
    struct sigaction action = {};
    action.sa_sigaction = on_trap, action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGILL, &action, nullptr);
}
