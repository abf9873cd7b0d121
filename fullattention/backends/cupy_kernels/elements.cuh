// FullAttention on NVIDIA GPUs. The files of this folder are one source, joined in this order:
// elements.cuh, blocks.cuh, random.cuh, and then one of forward.cuh,
// tensor_cores.cuh and backward.cuh.
//
// Arrays come as the layer has them: queries (B, L, H, E), keys (B, S, H, E), values (B, S, H, D),
// with any strides. The scores (B, H, L, S) never lie in global memory.
//
// Every kernel has the same shape. A block serves a few consecutive heads n = b * H + h, and some
// rows of each: queries, or keys in the gradient of keys and values. A row's features lie in the
// registers of LANES neighbouring threads, FEATURES in each. The rows that it meets (keys and
// values, or queries and their gradients) are staged in shared memory, a tile at a time.
//
// Two regimes are two settings of this one shape:
// - many tiny heads: few features per thread, several heads per block, all keys in one tile. Bound
//   by memory: each array is read once, and since the heads of one time step are neighbours in
//   memory, a block reads whole lines.
// - long: many features per thread, one head per block, tiles of keys. Bound by arithmetic: the
//   more features a thread holds, the fewer shuffles a score needs.
//
// Long calls in half precision have a kernel of another shape, for tensor cores: tensor_cores.cuh.
// It alone copies the next tile while it works on the present one. Here the blocks of a
// multiprocessor are to hide each other's loads, and two tiles of each would leave room for fewer.
// No GPU has timed either.
//
// Compiled for one setting of these macros:
//   ELEMENT        what the arrays hold: 2 float16, 3 bfloat16, 4 float32, 8 float64
//   WIDTH          a power of two that is at least E and D; what lies beyond them is staged as 0
//   FEATURES       features of a row in one thread; divides WIDTH
//   ROWS           rows of one thread
//   STEP           staged rows that are met at once, a multiple of 4: an online softmax rescales
//                  once in that many keys
//   EXTRAS         1 to serve masks, dropout and returned weights too, at the cost of registers; the
//                  causal mask is always served
//   THREADS        the most threads of a block

#if ELEMENT == 8
typedef double Element;
typedef double Real;  // what sums are kept in
#elif ELEMENT == 4
typedef float Element;
typedef float Real;
#else
struct Element {
    unsigned short bits;
};
typedef float Real;
#endif

typedef long long Index;  // counts elements: arrays may have more than 2^31

constexpr int CHUNK = 16 / sizeof(Real);  // elements that are moved together
constexpr int LANES = WIDTH / FEATURES;
constexpr int CHUNKS = FEATURES / CHUNK;  // of a row in one thread
constexpr Real LOG2_E = Real(1.4426950408889634);

static_assert(LANES * FEATURES == WIDTH && CHUNKS * CHUNK == FEATURES, "FEATURES must divide");
static_assert(STEP % 4 == 0, "dropout draws four numbers at once");
static_assert(LANES <= 32, "the threads of a row exchange sums by shuffles, so they share a warp");

// A few neighbouring elements, loaded and stored at once.
struct alignas(CHUNK * sizeof(Element)) Chunk {
    Element at[CHUNK];
};

struct alignas(16) RealChunk {
    Real at[CHUNK];
};

#if ELEMENT >= 4
__device__ inline Real real(Element x) { return x; }
__device__ inline Element element(Real x) { return x; }
#elif defined(EMULATED)
// The emulation defines half_to_float, float_to_half and the same for bfloat16.
__device__ inline Real real(Element x) {
    return ELEMENT == 2 ? half_to_float(x.bits) : bfloat16_to_float(x.bits);
}
__device__ inline Element element(Real x) {
    return Element{ELEMENT == 2 ? float_to_half(x) : float_to_bfloat16(x)};
}
#elif ELEMENT == 2
__device__ inline Real real(Element x) {
    Real result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x.bits));
    return result;
}
__device__ inline Element element(Real x) {
    Element result;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
    return result;
}
#else
__device__ inline Real real(Element x) { return __uint_as_float(unsigned(x.bits) << 16); }
__device__ inline Element element(Real x) {
    Element result;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));  // sm_80 and later
    return result;
}
#endif

__device__ inline float power_of_two(float x) { return exp2f(x); }
__device__ inline double power_of_two(double x) { return exp2(x); }

__device__ inline float larger(float a, float b) { return fmaxf(a, b); }  // a number before a NaN
__device__ inline double larger(double a, double b) { return fmax(a, b); }

__device__ inline Real minus_infinity() { return Real(-1.0) / Real(0.0); }

// One array of the call. Strides count elements, and may be zero or negative.
struct Array {
    void* data;
    Index b, t, h, e;
    Index by_chunks;  // whether every chunk of a row is contiguous, aligned, and whole
};

// An array (B, H, L, S): a mask, weights or their gradient. `data` may be null.
struct Table {
    void* data;
    Index b, h, l, s;
};

struct Call {
    Array q, k, v;      // of the call
    Array out;          // V, or in the backward pass its gradient
    Array dq, dk, dv;   // gradients to be written
    Table hidden;       // bytes: 1 where a key is hidden from a query
    Table weights;      // to be written, or in the backward pass their gradient
    Real* maximum;      // (B, H, L): the largest score of a row
    Real* inverse;      // (B, H, L): one over the sum of exp(score - maximum)
    Real* slope;        // (B, H, L): sum over keys of weight times its gradient
    Index B, L, S, H, E, D;
    Index causal;
    Index heads_log2;   // heads of a block
    Index tile;         // staged rows of a tile, a multiple of STEP
    Index row_blocks;   // blocks that share the rows of one group of heads
    unsigned long long seed;
    unsigned long long threshold;  // a weight is dropped if 32 random bits are below it
    double scale;
    double kept;        // what a kept weight is multiplied with: 1 / (1 - p), 0 for p = 1
};

// A row's features: the thread's chunks are LANES chunks apart, so that neighbours read neighbours.
__device__ inline int column_of(int chunk, int lane) { return (chunk * LANES + lane) * CHUNK; }

// The chunk of a row that starts at a column; zeros beyond the row's `size` elements.
__device__ inline Chunk load_elements(const Array& array, Index row, int column, int size) {
    Chunk chunk = {};
    const Element* data = static_cast<const Element*>(array.data) + row;
    if (array.by_chunks) {
        if (column < size) chunk = *reinterpret_cast<const Chunk*>(data + column);
    } else {
#pragma unroll
        for (int i = 0; i < CHUNK; ++i) {
            if (column + i < size) chunk.at[i] = data[(column + i) * array.e];
        }
    }
    return chunk;
}

__device__ inline RealChunk load_chunk(const Array& array, Index row, int column, int size) {
    const Chunk chunk = load_elements(array, row, column, size);
    RealChunk result;
#pragma unroll
    for (int i = 0; i < CHUNK; ++i) result.at[i] = real(chunk.at[i]);
    return result;
}

__device__ inline void store_chunk(const Array& array, Index row, int column, int size,
                                   const RealChunk& values) {
    Element* data = static_cast<Element*>(array.data) + row;
    if (array.by_chunks) {
        Chunk chunk;
#pragma unroll
        for (int i = 0; i < CHUNK; ++i) chunk.at[i] = element(values.at[i]);
        if (column < size) *reinterpret_cast<Chunk*>(data + column) = chunk;
    } else {
#pragma unroll
        for (int i = 0; i < CHUNK; ++i) {
            if (column + i < size) data[(column + i) * array.e] = element(values.at[i]);
        }
    }
}

// The thread's share of a row.
__device__ inline void load_row(Real (&x)[FEATURES], const Array& array, Index row, int lane,
                                int size) {
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        const RealChunk chunk = load_chunk(array, row, column_of(c, lane), size);
#pragma unroll
        for (int i = 0; i < CHUNK; ++i) x[c * CHUNK + i] = chunk.at[i];
    }
}

__device__ inline void store_row(const Array& array, Index row, int lane, int size,
                                 const Real (&x)[FEATURES], Real factor) {
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        RealChunk chunk;
#pragma unroll
        for (int i = 0; i < CHUNK; ++i) chunk.at[i] = x[c * CHUNK + i] * factor;
        store_chunk(array, row, column_of(c, lane), size, chunk);
    }
}
