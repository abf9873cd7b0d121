// The forward pass: an online softmax. Per row a running maximum and sum of exponentials; a step of
// STEP keys rescales what was summed before if the maximum grows.

// The scores of the thread's rows and STEP keys from `key`; minus infinity where a key is hidden or
// there is none, so that its weight is exactly 0.
__device__ inline void masked_scores(Real (&scores)[ROWS][STEP], const Real (&q)[ROWS][FEATURES],
                                     const Real* keys, const Shared& shared, const Call& call,
                                     const Place& place, int key) {
    inner_products(scores, q, keys, shared.heads);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int l = place.row + r * place.groups;
        const bool is_row = place.exists && l < call.L;
#pragma unroll
        for (int s = 0; s < STEP; ++s) {
            const bool shown = key + s < call.S && is_row && !is_hidden(call, place, l, key + s);
            // The scale multiplies what is shown alone: times a negative one, a hidden key's minus
            // infinity would win.
            scores[r][s] = shown ? scores[r][s] * Real(call.scale) : minus_infinity();
        }
    }
}

// Multiplies weights by what dropout makes of them.
__device__ inline void drop(Real (&weights)[STEP], const Call& call, const Place& place, int l,
                            int key) {
    if (!EXTRAS || call.threshold == 0) return;
#pragma unroll
    for (int s = 0; s < STEP; s += 4) {
        const Kept4 kept = kept4(call, place.head, l, key + s);
#pragma unroll
        for (int i = 0; i < 4; ++i) weights[s + i] *= kept.at[i];
    }
}

// Writes the weights of the thread's rows, in a second pass over the keys. They may still be staged
// where all of them fit one tile.
__device__ inline void write_weights(const Real (&q)[ROWS][FEATURES], const Real (&maximum)[ROWS],
                                     const Real (&inverse)[ROWS], const Shared& shared,
                                     const Call& call, const Place& place) {
    const int tile = int(call.tile), S = int(call.S);
    for (int first = 0; first < S; first += tile) {
        const int count = S - first < tile ? S - first : tile;
        const int room = (count + STEP - 1) / STEP * STEP;
        if (S > tile) {
            __syncthreads();
            stage(shared, 0, call, call.k, int(call.E), first, count, room);
            __syncthreads();
        }
        for (int key = 0; key < count; key += STEP) {
            Real scores[ROWS][STEP];
            masked_scores(scores, q, staged(shared, 0, key, place), shared, call, place,
                          first + key);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                const int l = place.row + r * place.groups;
#pragma unroll
                for (int s = 0; s < STEP; ++s) {
                    scores[r][s] = exponential(scores[r][s], maximum[r]) * inverse[r];
                }
                drop(scores[r], call, place, l, first + key);
                const Table& table = call.weights;
                const Index row = place.b * table.b + place.h * table.h + l * table.l;
#pragma unroll
                for (int s = 0; s < STEP; ++s) {
                    const bool mine = s % LANES == place.lane && place.exists && l < call.L;
                    if (mine && first + key + s < S) {
                        static_cast<Element*>(table.data)[row + (first + key + s) * table.s] =
                            element(scores[r][s]);
                    }
                }
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) attend(const Call call) {
    SHARED_MEMORY(memory);
    const Shared shared = shared_of(call, memory);
    const Place place = place_of(call);
    share_starts(shared, call, call.k, call.v);
    for (int i = threadIdx.x; i < shared.heads * WIDTH; i += blockDim.x) shared.poison[i] = 0;

    Real q[ROWS][FEATURES], sum[ROWS][FEATURES], maximum[ROWS], total[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int l = place.row + r * place.groups;
        const bool is_row = place.exists && l < call.L;
        load_row(q[r], call.q, is_row ? start_of(call.q, place) + l * call.q.t : 0, place.lane,
                 is_row ? int(call.E) : 0);
        maximum[r] = minus_infinity();
        total[r] = 0;
#pragma unroll
        for (int f = 0; f < FEATURES; ++f) sum[r][f] = 0;
    }

    const int tile = int(call.tile), S = int(call.S);
    const int last_row = place.block_row + place.groups * ROWS - 1;
    int first = 0;
    for (; first < S && !(call.causal && first > last_row); first += tile) {
        const int count = S - first < tile ? S - first : tile;
        const int room = (count + STEP - 1) / STEP * STEP;
        __syncthreads();  // the starts are shared; the tile before is no longer read
        stage(shared, 0, call, call.k, int(call.E), first, count, room);
        stage(shared, 1, call, call.v, int(call.D), first, count, room);
        __syncthreads();
        for (int key = 0; key < count; key += STEP) {
            Real scores[ROWS][STEP];
            masked_scores(scores, q, staged(shared, 0, key, place), shared, call, place,
                          first + key);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                Real highest = maximum[r];
#pragma unroll
                for (int s = 0; s < STEP; ++s) highest = larger(highest, scores[r][s]);
                const Real shrink = exponential(maximum[r], highest);
                maximum[r] = highest;
                total[r] *= shrink;
#pragma unroll
                for (int f = 0; f < FEATURES; ++f) sum[r][f] *= shrink;
#pragma unroll
                for (int s = 0; s < STEP; ++s) {
                    scores[r][s] = exponential(scores[r][s], highest);
                    total[r] += scores[r][s];
                }
                drop(scores[r], call, place, place.row + r * place.groups, first + key);
            }
            add_products(sum, scores, staged(shared, 1, key, place), shared.heads);
        }
    }
    if (first < S) {
        poison_columns(shared, call, first);
        __syncthreads();
    }

    Real inverse[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int l = place.row + r * place.groups;
        inverse[r] = Real(1) / total[r];
        if (!place.exists || l >= call.L) continue;
        if (first < S) {
#pragma unroll
            for (int f = 0; f < FEATURES; ++f) {
                sum[r][f] += shared.poison[place.slot * WIDTH + f % CHUNK +
                                           column_of(f / CHUNK, place.lane)];
            }
        }
        store_row(call.out, start_of(call.out, place) + l * call.out.t, place.lane, int(call.D),
                  sum[r], inverse[r]);
        if (call.maximum && place.lane == 0) {
            call.maximum[place.head * call.L + l] = maximum[r];
            call.inverse[place.head * call.L + l] = inverse[r];
        }
    }
    if (EXTRAS && call.weights.data) write_weights(q, maximum, inverse, shared, call, place);
}
