// Repeats calls that recording.py has written down on another machine, and compares what they leave in memory.
// Usage: replay LIBRARY RECORDING
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>
#ifdef _WIN32
#include <windows.h>
static void* open_library(const char* path) { return (void*)LoadLibraryA(path); }
static void* find(void* library, const char* name) { return (void*)GetProcAddress((HMODULE)library, name); }
#else
#include <dlfcn.h>
static void* open_library(const char* path) { return dlopen(path, RTLD_NOW); }
static void* find(void* library, const char* name) { return dlsym(library, name); }
#endif

// What is in memory, as recording.py numbers it: WORDS may contain pointers, and SCRATCH is not recorded.
enum Kind : int64_t { WORDS, INTEGERS, BFLOAT16, FLOAT32, FLOAT64, SCRATCH };
// Of the norm of a difference, relative to that of what is right.
static const double TOLERANCES[] = {0, 0, 0.02, 1e-4, 1e-4, 0};
static const int64_t NO_RESULT = -1, SMALLEST_ADDRESS = (int64_t)1 << 32;
static const int ARGUMENTS = 9;
using Function = int64_t (*)(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t);

static void fail(const std::string& message) {
    printf("%s\n", message.c_str());
    exit(1);
}

struct Recording {
    FILE* file;
    std::vector<char> read(size_t size) {
        std::vector<char> bytes(size);
        if (fread(bytes.data(), 1, size, file) != size) fail("the recording ends too early");
        return bytes;
    }
    int64_t number() {
        int64_t result;
        memcpy(&result, read(8).data(), 8);
        return result;
    }
};

struct Region {
    int64_t address, kind;
    std::vector<char> before, after;
};

// Memory of this process by its address in the recorded one; what a function returned, such as a decoder, too.
static std::map<int64_t, int64_t> addresses;

static int64_t here(int64_t value) {
    const auto found = value >= SMALLEST_ADDRESS ? addresses.find(value) : addresses.end();
    return found == addresses.end() ? value : found->second;
}

static void relocate(std::vector<char>& words) {
    for (size_t i = 0; i + 8 <= words.size(); i += 8) {
        int64_t value;
        memcpy(&value, &words[i], 8);
        value = here(value);
        memcpy(&words[i], &value, 8);
    }
}

static double value_at(const char* bytes, int64_t kind) {
    if (kind == FLOAT64) {
        double value;
        memcpy(&value, bytes, 8);
        return value;
    }
    uint32_t bits = 0;
    memcpy((char*)&bits + (kind == BFLOAT16 ? 2 : 0), bytes, kind == BFLOAT16 ? 2 : 4);
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

// Returns the norm of the difference, relative to that of what is right.
static double distance(const char* found, const Region& r) {
    if (r.kind == SCRATCH || !memcmp(found, r.after.data(), r.after.size())) return 0;
    if (r.kind == WORDS || r.kind == INTEGERS) return INFINITY;
    double difference = 0, right = 0;
    const size_t size = r.kind == BFLOAT16 ? 2 : r.kind == FLOAT64 ? 8 : 4;
    for (size_t i = 0; i < r.after.size(); i += size) {
        const bool is_right = !memcmp(found + i, &r.after[i], size);
        if (is_right && !memcmp(found + i, &r.before[i], size)) continue;  // perhaps never written
        const double b = value_at(&r.after[i], r.kind), d = is_right ? 0 : value_at(found + i, r.kind) - b;
        difference += d * d;
        right += b * b;
    }
    const double result = std::sqrt(difference / (right + 1e-30));
    return std::isnan(result) ? INFINITY : result;
}

int main(int count, char** arguments) {
    if (count != 3) fail("usage: replay LIBRARY RECORDING");
    void* library = open_library(arguments[1]);
    if (!library) fail(std::string(arguments[1]) + " cannot be loaded");
    const auto request = (int (*)())find(library, "gpt_request_matmul");  // Linux grants tiles to processes that ask
    if (request && request()) fail("the system does not grant what its matmuls need");
    Recording recording{fopen(arguments[2], "rb")};
    if (!recording.file) fail(std::string(arguments[2]) + " cannot be read");
    double largest = 0;
    const int64_t calls = recording.number();
    for (int64_t call = 0; call < calls; call++) {
        const std::string name = recording.read(32).data();
        int64_t values[ARGUMENTS];
        for (int64_t& value : values) value = recording.number();
        const int64_t result = recording.number();
        std::vector<Region> regions(recording.number());
        for (Region& r : regions) {
            r.address = recording.number(), r.kind = recording.number();
            const int64_t size = recording.number();
            if (r.kind != SCRATCH) r.before = recording.read(size), r.after = recording.read(size);
            addresses[r.address] = ((int64_t)malloc(size + 64) + 63) / 64 * 64;  // old ones may be in use: never freed
        }
        for (Region& r : regions) {
            if (r.kind == WORDS) relocate(r.before), relocate(r.after);
            memcpy((void*)here(r.address), r.before.data(), r.before.size());
        }
        const auto function = (Function)find(library, name.c_str());
        if (!function) fail("there is no " + name);
        for (int64_t& value : values) value = here(value);
        const int64_t returned =
            function(values[0], values[1], values[2], values[3], values[4], values[5], values[6], values[7], values[8]);
        if (result >= SMALLEST_ADDRESS) addresses[result] = returned;
        else if (result != NO_RESULT && (int32_t)returned != (int32_t)result) fail(name + " returns something else");
        for (const Region& r : regions) {
            const double error = distance((const char*)here(r.address), r);
            if (error > TOLERANCES[r.kind]) fail(name + " differs by " + std::to_string(error));
            if (error > largest) largest = error;
        }
    }
    printf("%d calls agree to %.1g\n", (int)calls, largest);
}
