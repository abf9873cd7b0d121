// The backward pass: weights are rebuilt from the maximum and the sum that the forward pass kept.
// One kernel has queries as rows, the other keys, so that each gradient is summed by one thread, in
// one order: no atomics, and the same bits every time.
//
// With w a weight, g the gradient of V, and `kept` what dropout multiplied the weight with:
//     dw = kept (g . v + gradient of the returned weight)
//     slope = sum over keys of w dw
//     ds = w (dw - slope)                      of a score; 0 where the key is hidden
//     dq = scale sum ds k,   dk = scale sum ds q,   dv = sum kept w g

static_assert(ROWS == 1, "the backward pass has one row in a thread");

struct Pair {
    Real weight;    // before dropout
    Real kept;      // what dropout multiplied it with
    Real gradient;  // of the weight
    bool shown;
};

// Query l and key s, from the products q . k and g . v. `exists` is false for padding of a tile.
__device__ inline Pair pair_of(const Call& call, const Place& place, int l, int s, Real score,
                               Real value, Real maximum, Real inverse, bool exists) {
    Pair pair = {};
    if (!exists) return pair;
    pair.shown = !is_hidden(call, place, l, s);
    const Real scaled = pair.shown ? score * Real(call.scale) : minus_infinity();
    pair.weight = exponential(scaled, maximum) * inverse;
    pair.kept = kept(call, place.head, l, s);
    const Table& table = call.weights;
    if (EXTRAS && table.data) {
        value += real(static_cast<const Element*>(
            table.data)[place.b * table.b + place.h * table.h + l * table.l + s * table.s]);
    }
    pair.gradient = pair.kept * value;
    return pair;
}

__device__ inline Real gradient_of_score(const Pair& pair, Real slope) {
    return pair.shown ? pair.weight * (pair.gradient - slope) : Real(0);
}

extern "C" __global__ void __launch_bounds__(THREADS) gradient_of_queries(const Call call) {
    SHARED_MEMORY(memory);
    const Shared shared = shared_of(call, memory);
    const Place place = place_of(call);
    share_starts(shared, call, call.k, call.v);

    const int l = place.row, tile = int(call.tile), S = int(call.S);
    const bool is_row = place.exists && l < call.L;
    Real q[1][FEATURES], g[1][FEATURES], dq[1][FEATURES] = {};
    load_row(q[0], call.q, is_row ? start_of(call.q, place) + l * call.q.t : 0, place.lane,
             is_row ? int(call.E) : 0);
    load_row(g[0], call.out, is_row ? start_of(call.out, place) + l * call.out.t : 0, place.lane,
             is_row ? int(call.D) : 0);
    const Real maximum = is_row ? call.maximum[place.head * call.L + l] : Real(0);
    const Real inverse = is_row ? call.inverse[place.head * call.L + l] : Real(0);

    // All of the slope is needed before the first gradient of a score: two passes over the keys.
    Real slope = 0;
    for (int pass = 0; pass < 2; ++pass) {
        for (int first = 0; first < S; first += tile) {
            const int count = S - first < tile ? S - first : tile;
            const int room = (count + STEP - 1) / STEP * STEP;
            if (pass == 0 || S > tile) {
                __syncthreads();
                stage(shared, 0, call, call.k, int(call.E), first, count, room);
                stage(shared, 1, call, call.v, int(call.D), first, count, room);
                __syncthreads();
            }
            for (int key = 0; key < count; key += STEP) {
                Real scores[1][STEP], values[1][STEP];
                const Real* keys = staged(shared, 0, key, place);
                inner_products(scores, q, keys, shared.heads);
                inner_products(values, g, staged(shared, 1, key, place), shared.heads);
#pragma unroll
                for (int i = 0; i < STEP; ++i) {
                    const int s = first + key + i;
                    const Pair pair = pair_of(call, place, l, s, scores[0][i], values[0][i],
                                              maximum, inverse, is_row && s < S);
                    if (pass == 0) slope += pair.weight * pair.gradient;
                    scores[0][i] = gradient_of_score(pair, slope) * Real(call.scale);
                }
                if (pass == 1) add_products(dq, scores, keys, shared.heads);
            }
        }
    }
    if (!is_row) return;
    store_row(call.dq, start_of(call.dq, place) + l * call.dq.t, place.lane, int(call.E), dq[0],
              Real(1));
    if (place.lane == 0) call.slope[place.head * call.L + l] = slope;
}

extern "C" __global__ void __launch_bounds__(THREADS) gradient_of_keys(const Call call) {
    SHARED_MEMORY(memory);
    const Shared shared = shared_of(call, memory);
    const Place place = place_of(call);
    share_starts(shared, call, call.q, call.out);

    const int s = place.row, tile = int(call.tile), L = int(call.L);
    const bool is_row = place.exists && s < call.S;
    Real k[1][FEATURES], v[1][FEATURES], dk[1][FEATURES] = {}, dv[1][FEATURES] = {};
    load_row(k[0], call.k, is_row ? start_of(call.k, place) + s * call.k.t : 0, place.lane,
             is_row ? int(call.E) : 0);
    load_row(v[0], call.v, is_row ? start_of(call.v, place) + s * call.v.t : 0, place.lane,
             is_row ? int(call.D) : 0);

    // Causally, the block's keys are hidden from every query before the first of them.
    const int begin = call.causal ? place.block_row / tile * tile : 0;
    for (int first = begin; first < L; first += tile) {
        const int count = L - first < tile ? L - first : tile;
        const int room = (count + STEP - 1) / STEP * STEP;
        __syncthreads();
        stage(shared, 0, call, call.q, int(call.E), first, count, room);
        stage(shared, 1, call, call.out, int(call.D), first, count, room);
        for (int index = threadIdx.x; index < count * shared.heads; index += blockDim.x) {
            const int slot = index & (shared.heads - 1);
            if (!slot_exists(call, slot)) continue;
            const Index row = (place.head - place.slot + slot) * call.L + first +
                              (index >> call.heads_log2);
            shared.row[0][index] = call.maximum[row];
            shared.row[1][index] = call.inverse[row];
            shared.row[2][index] = call.slope[row];
        }
        __syncthreads();
        for (int query = 0; query < count; query += STEP) {
            Real scores[1][STEP], values[1][STEP];
            const Real* queries = staged(shared, 0, query, place);
            const Real* gradients = staged(shared, 1, query, place);
            inner_products(scores, k, queries, shared.heads);
            inner_products(values, v, gradients, shared.heads);
#pragma unroll
            for (int i = 0; i < STEP; ++i) {
                const int l = first + query + i;
                const int staged_row = (query + i) * shared.heads + place.slot;
                const bool exists = is_row && l < L;
                const Pair pair = pair_of(call, place, l, s, scores[0][i], values[0][i],
                                          exists ? shared.row[0][staged_row] : Real(0),
                                          exists ? shared.row[1][staged_row] : Real(0), exists);
                const Real slope = exists ? shared.row[2][staged_row] : Real(0);
                scores[0][i] = gradient_of_score(pair, slope) * Real(call.scale);
                values[0][i] = pair.kept * pair.weight;
            }
            add_products(dk, scores, queries, shared.heads);
            add_products(dv, values, gradients, shared.heads);
        }
    }
    if (!is_row) return;
    store_row(call.dk, start_of(call.dk, place) + s * call.dk.t, place.lane, int(call.E), dk[0],
              Real(1));
    store_row(call.dv, start_of(call.dv, place) + s * call.dv.t, place.lane, int(call.D), dv[0],
              Real(1));
}
