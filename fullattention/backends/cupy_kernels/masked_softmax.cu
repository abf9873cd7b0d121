// Softmax over keys of scaled, masked scores, and dropout. Each row (b, h, l) belongs to LANES
// threads, which read it once, combine their maxima and sums, and write it once.
//
// Defined by whoever compiles it:
//   Score   float or double: of the scores, and of all arithmetic
//   WEIGHT  what the weights hold: 2 float16, 3 bfloat16, 4 float32, 8 float64
//   LANES   threads of a row: a power of two up to 32, or a whole block
//   KEPT    values of a row that a thread keeps in registers; 0: the scores' own memory keeps them

#if WEIGHT == 8
typedef double Weight;
#elif WEIGHT == 4
typedef float Weight;
#else
struct Weight {
    unsigned short bits;
};
#endif

#if WEIGHT >= 4
__device__ __forceinline__ Weight weight(Score x) { return Weight(x); }
#elif defined(EMULATED)
__device__ __forceinline__ Weight weight(float x)
{
    return Weight{WEIGHT == 2 ? float_to_half(x) : float_to_bfloat16(x)};
}
#elif WEIGHT == 2
__device__ __forceinline__ Weight weight(float x)
{
    Weight result;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
    return result;
}
#else
__device__ __forceinline__ Weight weight(float x)
{
    Weight result;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));  // sm_80 and later
    return result;
}
#endif

#define ALL_LANES 0xffffffffu

__device__ __forceinline__ float exponential(float x) { return expf(x); }
__device__ __forceinline__ double exponential(double x) { return exp(x); }

struct Larger {
    static __device__ __forceinline__ Score of(Score x, Score y) { return x > y ? x : y; }
};

struct Sum {
    static __device__ __forceinline__ Score of(Score x, Score y) { return x + y; }
};

// What all threads of a row have, combined; every thread of the block must call it.
template <typename Operation>
__device__ __forceinline__ Score combined(Score x)
{
    for (int step = (LANES < 32 ? LANES : 32) / 2; step > 0; step /= 2)
        x = Operation::of(x, __shfl_xor_sync(ALL_LANES, x, step));
#if LANES > 32
    __shared__ Score of_warp[LANES / 32];
    __syncthreads();  // whoever still reads what the last call left
    if (threadIdx.x % 32 == 0)
        of_warp[threadIdx.x / 32] = x;
    __syncthreads();
    x = of_warp[0];
    for (int warp = 1; warp < LANES / 32; ++warp)
        x = Operation::of(x, of_warp[warp]);
#endif
    return x;
}

#if KEPT > 0
#define EACH_KEY(i, s)                              \
    _Pragma("unroll") for (int i = 0; i < KEPT; ++i) \
        if (const long long s = lane + (long long)i * LANES; inside && s < S)
#define VALUE(i, s) kept[i]
#else
#define EACH_KEY(i, s) \
    if (inside)        \
        for (long long s = lane; s < S; s += LANES)
#define VALUE(i, s) row_scores[s]
#endif

extern "C" __global__ void masked_softmax(
    Score* scores, Weight* weights, long long rows, long long H, long long L, long long S,
    Score scale, bool causal,
    const bool* hidden, long long hidden_b, long long hidden_h, long long hidden_l,
    long long hidden_s,
    const float* uniform, Score dropout)
{
    const Score infinity = Score(1) / Score(0);
    const int lane = threadIdx.x % LANES;
    const long long row = (long long)blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;
    const bool inside = row < rows;  // threads without a row still take part in shuffles
    const long long l = row % L, h = row / L % H, b = row / L / H;
    Score* const row_scores = scores + row * S;
    const bool* const row_hidden = hidden + b * hidden_b + h * hidden_h + l * hidden_l;
#if KEPT > 0
    Score kept[KEPT];
#endif

    Score largest = -infinity;
    EACH_KEY(i, s) {
        Score x = scale * row_scores[s];
        if ((causal && s > l) || (hidden && row_hidden[s * hidden_s]))
            x = -infinity;
        VALUE(i, s) = x;
        largest = Larger::of(x, largest);  // NaN is not larger: it shows in the sum
    }
    largest = combined<Larger>(largest);

    Score total = 0;
    EACH_KEY(i, s) {
        // Of -infinity less itself, in a row that is hidden from end to end, comes the row's NaN.
        const Score e = exponential(VALUE(i, s) - largest);
        VALUE(i, s) = e;
        total += e;
    }
    total = combined<Sum>(total);

    EACH_KEY(i, s) {
        Score a = VALUE(i, s) / total;
        if (uniform)
            a = uniform[row * S + s] < dropout ? Score(0) : a / (1 - dropout);
        weights[row * S + s] = weight(a);
    }
}
