// Which weights dropout drops: a function of the seed and of the weight's place alone, so that the
// backward pass drops the same ones, whichever thread asks.

struct Random4 {
    unsigned at[4];
};

// Philox 4x32: seven rounds are the fewest that pass all of TestU01's batteries.
__device__ inline Random4 philox(unsigned long long key, Random4 x) {
    unsigned key0 = unsigned(key), key1 = unsigned(key >> 32);
#pragma unroll
    for (int round = 0; round < 7; ++round) {
        const unsigned long long a = 0xD2511F53ull * x.at[0], b = 0xCD9E8D57ull * x.at[2];
        x = {{unsigned(b >> 32) ^ x.at[1] ^ key0, unsigned(b), unsigned(a >> 32) ^ x.at[3] ^ key1,
              unsigned(a)}};
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return x;
}

// What the weights of query l and of the four keys from `s`, a multiple of 4, are multiplied with.
struct Kept4 {
    Real at[4];
};

__device__ inline Kept4 kept4(const Call& call, Index head, int l, int s) {
    const Random4 random =
        philox(call.seed, {{unsigned(s) / 4, unsigned(l), unsigned(head), unsigned(head >> 32)}});
    Kept4 kept;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        kept.at[i] = random.at[i] < call.threshold ? Real(0) : Real(call.kept);
    }
    return kept;
}

__device__ inline Real kept(const Call& call, Index head, int l, int s) {
    if (!EXTRAS || call.threshold == 0) return 1;
    return kept4(call, head, l, s & ~3).at[s & 3];
}
