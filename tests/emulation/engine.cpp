// Runs kernels that were compiled with cuda.h on the CPU.
//
// Threads of a block are fibers on one thread of the host. They run one after the other, each until
// it waits at a barrier or a shuffle, in an order that the caller chooses: first to last, or last
// to first. So a race shows as a wrong result under one of the orders, every time.
//
// Found and told as an error: a barrier that not all threads of a block reach, or that they reach
// at different places; a shuffle that not all threads of a warp take part in; writes past the end
// of shared memory; addresses that are misaligned or not mapped. Shared memory starts as NaN in each block.

#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <ucontext.h>
#include <vector>

struct uint3 {
    unsigned x, y, z;
};

thread_local uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace {

constexpr int WARP = 32, MOST_THREADS = 1024;
constexpr size_t STACK = 128 * 1024, GUARD = 4096;
constexpr unsigned char POISON = 0xff;  // a NaN in every floating-point format

enum State { READY, AT_BARRIER, AT_SHUFFLE, DONE };

struct Copy {
    void* to;
    const void* from;
    int size;
};

struct Fiber {
    State state;
    int line;              // where it waits
    bool started;
    jmp_buf at;
    ucontext_t context;    // of its start alone: switching by it would cost a system call
    std::unique_ptr<char[]> stack;
    unsigned shuffles;     // taken part in so far
    double sent[2];        // to the other lanes, in turn: one may be ahead by one shuffle
    std::vector<Copy> copies;  // under way
};

// What the lanes of a warp have sent to each other, in turn.
struct Warp {
    unsigned words[2][WARP][6];
};

struct Block {
    std::vector<Warp> warps = std::vector<Warp>(MOST_THREADS / WARP);
    std::vector<Fiber> fibers = std::vector<Fiber>(MOST_THREADS);
    std::vector<unsigned char> memory;
    int running = 0;
    jmp_buf scheduler;
    sigjmp_buf failed;     // where an illegal access leads
    bool active = false;
    void (*kernel)(const void*) = nullptr;
    const void* call = nullptr;
    char error[256] = "";
};

Block& block() {
    static thread_local Block one;
    return one;
}

// Leaves the running fiber until the scheduler resumes it.
__attribute__((noinline)) void wait(State state, int line) {
    Block& here = block();
    Fiber& fiber = here.fibers[here.running];
    fiber.state = state;
    fiber.line = line;
    if (_setjmp(fiber.at) == 0) _longjmp(here.scheduler, 1);
}

void fiber_main() {
    Block& here = block();
    here.kernel(here.call);
    here.fibers[here.running].state = DONE;
    _longjmp(here.scheduler, 1);
}

__attribute__((noinline)) void resume(int thread) {
    Block& here = block();
    Fiber& fiber = here.fibers[thread];
    here.running = thread;
    threadIdx.x = thread;
    if (_setjmp(here.scheduler) != 0) return;
    if (fiber.started) _longjmp(fiber.at, 1);
    fiber.started = true;
    setcontext(&fiber.context);
}

// Runs a warp until all of its threads are done or wait for others; false if they never will go on.
bool run_warp(int first, int threads, bool reversed) {
    Block& here = block();
    while (true) {
        for (int i = 0; i < threads; ++i) {
            const int thread = first + (reversed ? threads - 1 - i : i);
            if (here.fibers[thread].state == READY) resume(thread);
        }
        int shuffling = 0, together = 0, line = 0;
        for (int i = 0; i < threads; ++i) {
            const Fiber& fiber = here.fibers[first + i];
            if (fiber.state != AT_SHUFFLE) continue;
            if (shuffling++ == 0) line = fiber.line;
            together += fiber.line == line;
        }
        if (shuffling == 0) return true;
        if (together != WARP) {
            snprintf(here.error, sizeof here.error,
                     "line %d: a shuffle that not all threads of the warp take part in", line);
            return false;
        }
        for (int i = 0; i < threads; ++i) here.fibers[first + i].state = READY;
    }
}

bool pass_barrier(int threads, bool& done) {
    Block& here = block();
    int finished = 0, waiting = 0;
    for (int i = 0; i < threads; ++i) {
        const Fiber& fiber = here.fibers[i];
        finished += fiber.state == DONE;
        waiting += fiber.state == AT_BARRIER && fiber.line == here.fibers[0].line;
    }
    done = finished == threads;
    if (done) return true;
    if (waiting != threads) {
        snprintf(here.error, sizeof here.error,
                 "a barrier that not all threads reach: of %d threads %d have returned, and %d wait "
                 "at line %d",
                 threads, finished, waiting, here.fibers[0].line);
        return false;
    }
    for (int i = 0; i < threads; ++i) here.fibers[i].state = READY;
    return true;
}

bool guards_are_whole(size_t shared_bytes) {
    Block& here = block();
    for (size_t i = 0; i < GUARD; ++i) {
        if (here.memory[i] != POISON || here.memory[GUARD + shared_bytes + i] != POISON) {
            snprintf(here.error, sizeof here.error, "a write outside of shared memory");
            return false;
        }
    }
    return true;
}

bool run_block(int threads, size_t shared_bytes, bool reversed) {
    Block& here = block();
    here.memory.assign(shared_bytes + 2 * GUARD, POISON);
    for (int i = 0; i < threads; ++i) {
        Fiber& fiber = here.fibers[i];
        if (!fiber.stack) fiber.stack.reset(new char[STACK]);
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.get();
        fiber.context.uc_stack.ss_size = STACK;
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, fiber_main, 0);
        fiber.state = READY;
        fiber.started = false;
        fiber.shuffles = 0;
        fiber.copies.clear();
    }
    const int warps = (threads + WARP - 1) / WARP;
    for (bool done = false; !done;) {
        for (int i = 0; i < warps; ++i) {
            const int first = (reversed ? warps - 1 - i : i) * WARP;
            const int size = threads - first < WARP ? threads - first : WARP;
            if (!run_warp(first, size, reversed)) return false;
        }
        if (!pass_barrier(threads, done)) return false;
    }
    return guards_are_whole(shared_bytes);
}

void on_fault(int number) {
    if (!block().active) {  // not ours
        signal(number, SIG_DFL);
        return;
    }
    siglongjmp(block().failed, 1);
}

}  // namespace

extern "C" unsigned char* emulated_shared() { return block().memory.data() + GUARD; }

extern "C" void emulated_barrier(int line) { wait(AT_BARRIER, line); }

extern "C" double emulated_shuffle(unsigned mask, double value, int distance, int line) {
    if (mask != 0xffffffffu) abort();  // none of the kernels has part of a warp shuffle
    Block& here = block();
    const int thread = here.running;
    Fiber& fiber = here.fibers[thread];
    const unsigned turn = fiber.shuffles++ % 2;
    fiber.sent[turn] = value;
    wait(AT_SHUFFLE, line);
    return here.fibers[thread / WARP * WARP + (thread % WARP ^ distance)].sent[turn];
}

// The words that all lanes of the warp brought; they stay until the next but one exchange.
extern "C" const unsigned (*emulated_gather(const unsigned* words, int line))[6] {
    Block& here = block();
    const int thread = here.running;
    const unsigned turn = here.fibers[thread].shuffles++ % 2;
    Warp& warp = here.warps[thread / WARP];
    memcpy(warp.words[turn][thread % WARP], words, sizeof warp.words[0][0]);
    wait(AT_SHUFFLE, line);
    return warp.words[turn];
}

// A copy to shared memory that the kernel does not wait for yet: it is made as late as it may be.
extern "C" void emulated_copy(void* to, const void* from, int size) {
    if ((reinterpret_cast<size_t>(to) | reinterpret_cast<size_t>(from)) % size) raise(SIGBUS);
    block().fibers[block().running].copies.push_back({to, from, size});
}

extern "C" void emulated_finish_copies() {
    std::vector<Copy>& copies = block().fibers[block().running].copies;
    for (const Copy& copy : copies) memcpy(copy.to, copy.from, copy.size);
    copies.clear();
}

// Runs all blocks; the error, or an empty text.
extern "C" const char* emulated_launch(void (*kernel)(const void*), const void* call,
                                       long long blocks, int threads, long long shared,
                                       int reversed) {
    Block& here = block();
    here.error[0] = 0;
    here.kernel = kernel;
    here.call = call;
    blockDim.x = threads;
    gridDim.x = unsigned(blocks);
    struct sigaction act = {};
    act.sa_handler = on_fault;
    act.sa_flags = SA_NODEFER;
    for (int number : {SIGSEGV, SIGBUS, SIGILL}) sigaction(number, &act, nullptr);
    here.active = true;
    if (sigsetjmp(here.failed, 1) == 0) {
        for (long long i = 0; i < blocks; ++i) {
            blockIdx.x = unsigned(reversed ? blocks - 1 - i : i);
            if (!run_block(threads, size_t(shared), reversed != 0)) break;
        }
    } else {
        snprintf(here.error, sizeof here.error, "an address that is misaligned or not mapped");
    }
    here.active = false;
    return here.error;
}
