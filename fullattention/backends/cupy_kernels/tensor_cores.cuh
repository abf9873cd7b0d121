// The forward pass of long calls in half precision, by tensor cores (sm_80 and later).
//
// A warp has QUERIES queries, a block as many times that as it has warps; they meet tiles of KEYS
// keys. Scores and V are products of 16 x 16 by 16 x 8 matrices, summed in float32, whose elements
// lie in the registers of a warp's threads as the instruction has it: with group = lane / 4 and
// quad = lane % 4, a thread holds
//   of the left factor   rows group and group + 8, columns 2 quad, + 1, and both + 8
//   of the right factor  rows 2 quad, + 1, and both + 8, column group
//   of the product       rows group and group + 8, columns 2 quad and + 1
// so that the scores' exponentials, rounded to the elements' type, are the next left factor as they
// lie. Keys and values are staged as they come; those of the next tile are copied, without passing
// through registers, while the warps are at work on the present one.

constexpr int QUERIES = 16, KEYS = 64, WARP = 32;
constexpr int PAD = 8;  // elements that keep the threads of a warp off each other's banks
constexpr int STRIDE = WIDTH + PAD, TILE = KEYS * STRIDE;

static_assert(sizeof(Element) == 2 && WIDTH % 16 == 0, "products take 16 half-precision features");

#ifndef EMULATED
__device__ inline void multiply_add(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#if ELEMENT == 2
#define PRODUCT "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
#else
#define PRODUCT "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
#endif
    asm volatile(PRODUCT " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ inline unsigned shared_address(const void* place) {
    return unsigned(__cvta_generic_to_shared(place));
}

// Copies a chunk to shared memory: by `finish_copies` of the same thread at the latest.
__device__ inline void copy_later(Chunk* place, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;"
                 :: "r"(shared_address(place)), "l"(from) : "memory");
}

__device__ inline void finish_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// The right factor from 16 staged rows of 8 elements, of which lanes 0 to 15 each give one.
__device__ inline void load_columns(unsigned (&b)[2], const Element* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(b[0]), "=r"(b[1]) : "r"(shared_address(row)) : "memory");
}
#else
__device__ inline void multiply_add(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    emulated_multiply_add(c, a, b, [](unsigned short bits) { return real(Element{bits}); },
                          __LINE__);
}
__device__ inline void copy_later(Chunk* place, const void* from) {
    emulated_copy(place, from, sizeof(Chunk));
}
__device__ inline void finish_copies() { emulated_finish_copies(); }
__device__ inline void load_columns(unsigned (&b)[2], const Element* row) {
    emulated_load_columns(b, row, __LINE__);
}
#endif

static_assert(sizeof(Chunk) == 8, "copies are of 8 bytes");

__device__ inline unsigned pair_of(Element first, Element second) {
    return first.bits | unsigned(second.bits) << 16;
}

__device__ inline unsigned staged_pair(const Element* place) {
    return *reinterpret_cast<const unsigned*>(place);
}

// Two neighbouring features of a query; zeros beyond L and E.
__device__ inline unsigned query_pair(const Call& call, Index start, int l, int column) {
    Element pair[2] = {};
    for (int i = 0; i < 2; ++i) {
        if (l < call.L && column + i < call.E) {
            pair[i] = static_cast<const Element*>(
                call.q.data)[start + l * call.q.t + (column + i) * call.q.e];
        }
    }
    return pair_of(pair[0], pair[1]);
}

// Begins to copy rows [first, first + KEYS) of an array's head to a tile; zeros where there are none.
__device__ inline void stage_later(Element* tile, const Array& array, Index start, int size,
                                   int first, int S) {
    constexpr int ROW_CHUNKS = WIDTH / CHUNK;
    for (int index = threadIdx.x; index < KEYS * ROW_CHUNKS; index += blockDim.x) {
        const int key = index / ROW_CHUNKS, column = index % ROW_CHUNKS * CHUNK;
        const Index row = start + (first + key) * array.t;
        Chunk* place = reinterpret_cast<Chunk*>(tile + key * STRIDE + column);
        if (first + key >= S || column >= size) {
            *place = Chunk{};
        } else if (array.by_chunks) {
            copy_later(place, static_cast<const Element*>(array.data) + row + column);
        } else {
            *place = load_elements(array, row, column, size);
        }
    }
}

// The same of keys and values, which are neighbours.
__device__ inline void stage_pair(Element* pair, const Shared& shared, const Call& call, int first) {
    const int S = int(call.S);
    stage_later(pair, call.k, shared.start[0][0], int(call.E), first, S);
    stage_later(pair + TILE, call.v, shared.start[1][0], int(call.D), first, S);
}

__device__ inline float over_quad(float x, bool sum) {
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, x, distance);
        x = sum ? x + other : larger(x, other);
    }
    return x;
}

extern "C" __global__ void __launch_bounds__(THREADS) attend_by_tensor_cores(const Call call) {
    SHARED_MEMORY(memory);
    Shared shared = {};
    shared.heads = 1;
    shared.start[0] = reinterpret_cast<Index*>(memory);
    shared.start[1] = shared.start[0] + 1;
    shared.poison = reinterpret_cast<Real*>(shared.start[1] + 1);
    // Keys and values of the present tile and of the next one.
    Element* pairs = reinterpret_cast<Element*>(shared.poison + WIDTH);
    share_starts(shared, call, call.k, call.v);
    for (int i = threadIdx.x; i < WIDTH; i += blockDim.x) shared.poison[i] = 0;

    const int group = threadIdx.x % WARP / 4, quad = threadIdx.x % 4, S = int(call.S);
    const int block_queries = blockDim.x / WARP * QUERIES;
    const int block_query = int(blockIdx.x % call.row_blocks) * block_queries;
    const int query = block_query + threadIdx.x / WARP * QUERIES + group;  // and query + 8
    const Index head = blockIdx.x / call.row_blocks;
    const Index b = head / call.H, h = head % call.H;

    unsigned q[WIDTH / 16][4];
#pragma unroll
    for (int k = 0; k < WIDTH / 16; ++k) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            q[k][i] = query_pair(call, b * call.q.b + h * call.q.h, query + i % 2 * 8,
                                 k * 16 + quad * 2 + i / 2 * 8);
        }
    }
    float sum[WIDTH / 8][4] = {}, maximum[2], total[2] = {};
    maximum[0] = maximum[1] = minus_infinity();

    // Causally, later keys are hidden from every query of the block.
    const int end = call.causal && block_query + block_queries < S ? block_query + block_queries : S;
    __syncthreads();  // the starts are shared
    stage_pair(pairs, shared, call, 0);
    int first = 0;
    for (int buffer = 0; first < end; first += KEYS, buffer ^= 1) {
        const Element *keys = pairs + buffer * 2 * TILE, *values = keys + TILE;
        finish_copies();
        __syncthreads();  // the tile is staged, and the one before is no longer read
        if (first + KEYS < end) {
            stage_pair(pairs + (buffer ^ 1) * 2 * TILE, shared, call, first + KEYS);
        }

        float scores[KEYS / 8][4] = {}, highest[2] = {maximum[0], maximum[1]};
#pragma unroll
        for (int n = 0; n < KEYS / 8; ++n) {
            const Element* key = keys + (n * 8 + group) * STRIDE + quad * 2;
#pragma unroll
            for (int k = 0; k < WIDTH / 16; ++k) {
                const unsigned features[2] = {staged_pair(key + k * 16),
                                              staged_pair(key + k * 16 + 8)};
                multiply_add(scores[n], q[k], features);
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int s = first + n * 8 + quad * 2 + i % 2, l = query + i / 2 * 8;
                const bool shown = s < S && !(call.causal && s > l);
                scores[n][i] = shown ? scores[n][i] * float(call.scale) : minus_infinity();
                highest[i / 2] = larger(highest[i / 2], scores[n][i]);
            }
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            highest[r] = over_quad(highest[r], false);
            const float shrink = exponential(maximum[r], highest[r]);
            maximum[r] = highest[r];
            total[r] *= shrink;
#pragma unroll
            for (int d = 0; d < WIDTH / 8; ++d) {
                sum[d][2 * r] *= shrink;
                sum[d][2 * r + 1] *= shrink;
            }
        }
#pragma unroll
        for (int n = 0; n < KEYS / 8; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                scores[n][i] = exponential(scores[n][i], maximum[i / 2]);
                total[i / 2] += scores[n][i];  // of this thread's keys; the others' join at the end
            }
        }
#pragma unroll
        for (int k = 0; k < KEYS / 16; ++k) {
            unsigned weights[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float* pair = &scores[2 * k + i / 2][i % 2 * 2];
                weights[i] = pair_of(element(pair[0]), element(pair[1]));
            }
#pragma unroll
            for (int d = 0; d < WIDTH / 8; ++d) {
                unsigned columns[2];
                load_columns(columns, values + (k * 16 + threadIdx.x % 16) * STRIDE + d * 8);
                multiply_add(sum[d], weights, columns);
            }
        }
    }
    if (first < S) poison_columns(shared, call, first);
    __syncthreads();

#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int l = query + r * 8;
        const float inverse = 1.0f / over_quad(total[r], true);
        if (l >= call.L) continue;
        Element* out = static_cast<Element*>(call.out.data) + b * call.out.b + h * call.out.h +
                       l * call.out.t;
#pragma unroll
        for (int d = 0; d < WIDTH / 8; ++d) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int column = d * 8 + quad * 2 + i;
                const float value = (sum[d][2 * r + i] + shared.poison[column]) * inverse;
                if (column < call.D) out[column * call.out.e] = element(value);
            }
        }
        if (call.maximum && quad == 0) {
            call.maximum[head * call.L + l] = maximum[r];
            call.inverse[head * call.L + l] = inverse;
        }
    }
}
