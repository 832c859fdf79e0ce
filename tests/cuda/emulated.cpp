/* emulated.cpp: the fibers of emulated.h. */
#include <stdio.h>
#include <ucontext.h>

#include "cuda/kernel.cuh"

thread_local cf_dim threadIdx, blockIdx, blockDim, gridDim;
thread_local unsigned char cf_emulate_lanes[2][1024][16], cf_emulate_turns[1024];

/* ---- fibers */

enum { STACK = 64 << 10, MOST = 1024 };
enum fiber_state : unsigned char { RUNS, MEETS_BLOCK, MEETS_WARP, ENDED };

/* A fiber lasts as long as its thread and runs body after body.  It is begun by a ucontext, but switches by the compiler's
 * own setjmp, which keeps three words: swapcontext asks the system for the signal mask, and a sanitizer takes the C
 * library's longjmp for the end of all frames of the stack that it leaves. */
typedef void *place[5];
struct fibers {
    place scheduler, fiber[MOST];
    ucontext_t first;
    fiber_state state[MOST];
    bool lives[MOST];
    unsigned n, current;
    void (*body)(void *);
    void *context;
    char stacks[MOST][STACK];
};
static thread_local fibers *team;

static void fiber_main(void);

/* Goes on with the next thread from t on that can run, or with the scheduler. */
__attribute__((noinline, noreturn, no_sanitize("address"))) static void go_on(fibers *all, unsigned t) {
    while (t < all->n && all->state[t] != RUNS) t++;
    if (t == all->n) __builtin_longjmp(all->scheduler, 1);
    all->current = threadIdx.x = t;
    if (all->lives[t]) __builtin_longjmp(all->fiber[t], 1);
    getcontext(&all->first); /* not of this frame, which is left without a return */
    all->first.uc_stack.ss_sp = all->stacks[t];
    all->first.uc_stack.ss_size = STACK;
    all->first.uc_link = NULL;
    makecontext(&all->first, fiber_main, 0);
    all->lives[t] = true;
    setcontext(&all->first);
    abort();
}

__attribute__((noinline, no_sanitize("address"))) static void meet(fiber_state at) {
    fibers *all = team;
    all->state[all->current] = at;
    if (__builtin_setjmp(all->fiber[all->current]) == 0) go_on(all, all->current + 1);
}

static void fiber_main(void) {
    for (;;) {
        team->body(team->context);
        meet(ENDED);
    }
}

/* Until each thread has ended or meets others. */
__attribute__((noinline, no_sanitize("address"))) static void run_all(fibers *all) {
    if (__builtin_setjmp(all->scheduler) == 0) go_on(all, 0);
}

void cf_emulate_meet_block(void) { meet(MEETS_BLOCK); }
void cf_emulate_meet_warp(void) { meet(MEETS_WARP); }

/* Whether threads [from, to) have all ended or come to `at`; then they run on. */
static bool release(fibers *all, unsigned from, unsigned to, fiber_state at) {
    bool some = false;
    for (unsigned t = from; t < to; t++) {
        if (all->state[t] != at && all->state[t] != ENDED) return false;
        some = some || all->state[t] == at;
    }
    for (unsigned t = from; some && t < to; t++)
        if (all->state[t] == at) all->state[t] = RUNS;
    return some;
}

static bool release_warps(fibers *all) {
    bool some = false;
    for (unsigned from = 0; from < all->n; from += 32)
        some = release(all, from, from + 32 < all->n ? from + 32 : all->n, MEETS_WARP) || some;
    return some;
}

void cf_emulate_team(void (*body)(void *), void *context) {
    static thread_local struct owner {
        ~owner() { free(all); }
        fibers *all = (fibers *)calloc(1, sizeof *all);
    } own;
    fibers *all = team = own.all;
    if (!all) abort();
    all->n = blockDim.x;
    all->body = body;
    all->context = context;
    memset(all->state, RUNS, sizeof all->state);
    memset(cf_emulate_turns, 0, sizeof cf_emulate_turns);
    do { run_all(all); } while (release(all, 0, all->n, MEETS_BLOCK) || release_warps(all));
    unsigned ended = 0;
    for (unsigned t = 0; t < all->n; t++) ended += all->state[t] == ENDED;
    if (ended == all->n) return;
    fprintf(stderr, "emulated CUDA: %u of %u threads of block %u wait for threads that never come\n", all->n - ended,
            all->n, blockIdx.x);
    abort();
}
