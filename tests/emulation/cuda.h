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
extern "C" const unsigned (*emulated_gather(const unsigned* words, int line))[6];
extern "C" void emulated_copy(void* to, const void* from, int size);
extern "C" void emulated_finish_copies();
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

// The warp's product of a 16 x 16 and a 16 x 8 matrix, each thread holding some elements of each as
// PTX has it for mma.m16n8k16; `c` is this thread's share of the sum.
template <typename Convert>
static void emulated_multiply_add(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                                  Convert convert, int line) {
    const unsigned mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    const unsigned(*warp)[6] = emulated_gather(mine, line);
    const int group = threadIdx.x % 32 / 4, quad = threadIdx.x % 4;
    for (int i = 0; i < 4; ++i) {
        const int row = group + i / 2 * 8, column = quad * 2 + i % 2;
        for (int k = 0; k < 16; ++k) {
            const unsigned left = warp[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2];
            const unsigned right = warp[column * 4 + k % 8 / 2][4 + k / 8];
            c[i] += convert(left >> k % 2 * 16) * convert(right >> k % 2 * 16);
        }
    }
}

// Elements of 16 bits from the rows whose addresses lanes 0 to 15 bring, 8 elements each, as PTX has
// it for ldmatrix.x2.trans: the thread gets two neighbours of a column from each half of the rows.
static void emulated_load_columns(unsigned (&pairs)[2], const void* row, int line) {
    unsigned mine[6] = {};
    __builtin_memcpy(mine, &row, sizeof row);
    const unsigned(*warp)[6] = emulated_gather(mine, line);
    const int group = threadIdx.x % 32 / 4, quad = threadIdx.x % 4;
    for (int half = 0; half < 2; ++half) {
        pairs[half] = 0;
        for (int i = 0; i < 2; ++i) {
            const unsigned short* given;
            __builtin_memcpy(&given, warp[half * 8 + quad * 2 + i], sizeof given);
            if (reinterpret_cast<unsigned long long>(given) % 16) __builtin_trap();
            pairs[half] |= unsigned(given[group]) << i * 16;
        }
    }
}
