// Which thread does what, and what threads of a block share.

#ifndef EMULATED
#define SHARED_MEMORY(name) extern __shared__ __align__(16) unsigned char name[]
#endif

// Where a thread works: ROWS rows of one head, `groups` apart, so that the block's first rows are
// those of its first threads.
struct Place {
    Index head;       // b * H + h
    Index b, h;
    int slot;         // which of the block's heads that is
    int lane;         // which of the row's threads this is
    int row;          // the thread's first row
    int groups;       // threads that differ in their rows alone
    int block_row;    // the block's first row
    bool exists;      // whether there is such a head: the last block may have some to spare
};

__device__ inline Place place_of(const Call& call) {
    Place place;
    const int heads = 1 << call.heads_log2;
    const Index block = blockIdx.x;
    place.lane = threadIdx.x % LANES;
    place.slot = threadIdx.x / LANES % heads;
    place.groups = blockDim.x / (LANES * heads);
    place.block_row = int(block % call.row_blocks) * place.groups * ROWS;
    place.row = place.block_row + threadIdx.x / (LANES * heads);
    place.head = (block / call.row_blocks << call.heads_log2) + place.slot;
    place.exists = place.head < call.B * call.H;
    place.b = place.head / call.H;
    place.h = place.head % call.H;
    return place;
}

__device__ inline Index start_of(const Array& array, const Place& place) {
    return place.b * array.b + place.h * array.h;
}

// Two tiles in shared memory, (tile, heads, WIDTH), and where the block's heads start in global
// memory. The two are keys and values, or queries and the gradient of V.
struct Shared {
    Index* start[2];
    Real* tile[2];
    Real* poison;     // (heads, WIDTH): NaN in columns where a skipped value is not finite
    Real* row[3];     // (tile, heads): maximum, inverse and slope of staged queries
    int heads;
};

__device__ inline Shared shared_of(const Call& call, unsigned char* memory) {
    Shared shared;
    shared.heads = 1 << call.heads_log2;
    shared.start[0] = reinterpret_cast<Index*>(memory);
    shared.start[1] = shared.start[0] + shared.heads;
    const int tile = int(call.tile) * shared.heads * WIDTH;
    // Two starts of 8 bytes per head keep what follows aligned to 16.
    shared.tile[0] = reinterpret_cast<Real*>(shared.start[1] + shared.heads);
    shared.tile[1] = shared.tile[0] + tile;
    shared.poison = shared.tile[1] + tile;
    shared.row[0] = shared.poison + shared.heads * WIDTH;
    shared.row[1] = shared.row[0] + int(call.tile) * shared.heads;
    shared.row[2] = shared.row[1] + int(call.tile) * shared.heads;
    return shared;
}

__device__ inline void share_starts(const Shared& shared, const Call& call, const Array& first,
                                    const Array& second) {
    for (int slot = threadIdx.x; slot < shared.heads; slot += blockDim.x) {
        const Index head = (blockIdx.x / call.row_blocks << call.heads_log2) + slot;
        const Index b = head / call.H, h = head % call.H;
        shared.start[0][slot] = b * first.b + h * first.h;
        shared.start[1][slot] = b * second.b + h * second.h;
    }
}

__device__ inline bool slot_exists(const Call& call, int slot) {
    return (blockIdx.x / call.row_blocks << call.heads_log2) + slot < call.B * call.H;
}

constexpr int BATCH = 4;  // loads under way at once in each thread

// Copies rows [first, first + count) of the block's heads to a tile, and zeros to what is left of
// `room` rows: a weight of 0 must meet no NaN there.
__device__ inline void stage(const Shared& shared, int which, const Call& call, const Array& array,
                             int size, int first, int count, int room) {
    constexpr int ROW_CHUNKS = WIDTH / CHUNK;
    const int total = room * shared.heads * ROW_CHUNKS;
    for (int start = threadIdx.x; start < total; start += BATCH * blockDim.x) {
        RealChunk chunks[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            const int index = start + i * blockDim.x;
            const int row = index / ROW_CHUNKS >> call.heads_log2;
            const int slot = index / ROW_CHUNKS & (shared.heads - 1);
            chunks[i] = {};
            if (index < total && row < count && slot_exists(call, slot)) {
                chunks[i] = load_chunk(array, shared.start[which][slot] + (first + row) * array.t,
                                       index % ROW_CHUNKS * CHUNK, size);
            }
        }
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            const int index = start + i * blockDim.x;
            if (index < total) reinterpret_cast<RealChunk*>(shared.tile[which])[index] = chunks[i];
        }
    }
}

// The thread's share of the staged rows from `row` on.
__device__ inline const Real* staged(const Shared& shared, int which, int row, const Place& place) {
    return shared.tile[which] + (row * shared.heads + place.slot) * WIDTH + column_of(0, place.lane);
}

__device__ inline RealChunk staged_chunk(const Real* rows, int heads, int row, int chunk) {
    return *reinterpret_cast<const RealChunk*>(rows + row * heads * WIDTH + column_of(chunk, 0));
}

// Inner products of ROWS rows with STEP staged ones, summed over the row's threads.
__device__ inline void inner_products(Real (&products)[ROWS][STEP],
                                      const Real (&x)[ROWS][FEATURES], const Real* rows,
                                      int heads) {
#pragma unroll
    for (int s = 0; s < STEP; ++s) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) products[r][s] = 0;
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            const RealChunk chunk = staged_chunk(rows, heads, s, c);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
#pragma unroll
                for (int i = 0; i < CHUNK; ++i) products[r][s] += x[r][c * CHUNK + i] * chunk.at[i];
            }
        }
    }
#pragma unroll
    for (int distance = LANES / 2; distance > 0; distance /= 2) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
#pragma unroll
            for (int s = 0; s < STEP; ++s) {
                products[r][s] += __shfl_xor_sync(0xffffffffu, products[r][s], distance);
            }
        }
    }
}

// Adds STEP staged rows, each times its factor, to each of ROWS rows.
__device__ inline void add_products(Real (&x)[ROWS][FEATURES], const Real (&factors)[ROWS][STEP],
                                    const Real* rows, int heads) {
#pragma unroll
    for (int s = 0; s < STEP; ++s) {
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            const RealChunk chunk = staged_chunk(rows, heads, s, c);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
#pragma unroll
                for (int i = 0; i < CHUNK; ++i) x[r][c * CHUNK + i] += factors[r][s] * chunk.at[i];
            }
        }
    }
}

// Whether key s is hidden from query l of the thread's head.
__device__ inline bool is_hidden(const Call& call, const Place& place, int l, int s) {
    if (call.causal) return s > l;
    if (!EXTRAS || !call.hidden.data) return false;
    const Table& hidden = call.hidden;
    return static_cast<const unsigned char*>(hidden.data)[place.b * hidden.b + place.h * hidden.h +
                                                          l * hidden.l + s * hidden.s];
}

// exp(score - maximum); of a row without any key, 0.
__device__ inline Real exponential(Real score, Real maximum) {
    const Real shift = maximum == minus_infinity() ? Real(0) : maximum;
    return power_of_two((score - shift) * LOG2_E);
}

// Notes in which columns the values from `first` on are not finite: hidden by the causal mask they
// have a weight of 0, and 0 times such a value is NaN.
__device__ inline void poison_columns(const Shared& shared, const Call& call, int first) {
    constexpr int ROW_CHUNKS = WIDTH / CHUNK;
    const Index total = (call.S - first) * shared.heads * ROW_CHUNKS;
    for (Index index = threadIdx.x; index < total; index += blockDim.x) {
        const int slot = int(index / ROW_CHUNKS) & (shared.heads - 1);
        const int column = int(index % ROW_CHUNKS) * CHUNK;
        if (!slot_exists(call, slot)) continue;
        const Index row = first + (index / ROW_CHUNKS >> call.heads_log2);
        const RealChunk chunk =
            load_chunk(call.v, shared.start[1][slot] + row * call.v.t, column, int(call.D));
#pragma unroll
        for (int i = 0; i < CHUNK; ++i) {
            const Real product = Real(0) * chunk.at[i];
            if (product != 0) shared.poison[slot * WIDTH + column + i] = product;
        }
    }
}
