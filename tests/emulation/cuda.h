// What the kernels use of CUDA, for the host's C++ compiler; goes before their source. engine.cpp
// runs them. Small, since it is compiled with every setting of the kernels.

#include <math.h>

#define EMULATED
#define __device__ static
#define __global__
#define __launch_bounds__(...)
#define SHARED_MEMORY(name) unsigned char* name = emulated_shared()
#define __syncthreads() emulated_barrier(__LINE__)
#define __shfl_xor_sync(mask, value, distance) shuffle_xor(mask, value, distance, __LINE__)

struct uint3 {
    unsigned x, y, z;
};

extern thread_local uint3 threadIdx, blockIdx, blockDim, gridDim;

extern "C" unsigned char* emulated_shared();
extern "C" void emulated_barrier(int line);
extern "C" double emulated_shuffle(unsigned mask, double value, int distance, int line);
extern "C" const char* emulated_launch(void (*kernel)(const void*), const void* call,
                                       long long blocks, int threads, long long shared,
                                       int reversed);

template <typename T>
static T shuffle_xor(unsigned mask, T value, int distance, int line) {
    return T(emulated_shuffle(mask, value, distance, line));
}

static inline float __uint_as_float(unsigned bits) {
    float result;
    __builtin_memcpy(&result, &bits, 4);
    return result;
}

static inline float bfloat16_to_float(unsigned short bits) {
    return __uint_as_float(unsigned(bits) << 16);
}

static inline unsigned short float_to_bfloat16(float x) {
    unsigned bits;
    __builtin_memcpy(&bits, &x, 4);
    if (x != x) return 0x7fff;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;  // to nearest, ties to even
}

static inline float half_to_float(unsigned short bits) {
    _Float16 result;
    __builtin_memcpy(&result, &bits, 2);
    return result;
}

static inline unsigned short float_to_half(float x) {
    const _Float16 rounded = _Float16(x);
    unsigned short bits;
    __builtin_memcpy(&bits, &rounded, 2);
    return bits;
}
