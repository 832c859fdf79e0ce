/* emulated.cpp: the fibers of emulated.h. */
#undef _FORTIFY_SOURCE /* which takes a jump to another stack for a mistake */
#include <setjmp.h>
#include <stdio.h>
#include <ucontext.h>

#include "cuda/kernel.cuh"

thread_local cf_dim threadIdx, blockIdx, blockDim, gridDim;
thread_local unsigned char cf_emulate_lanes[1024][16];

/* ---- fibers */

enum { STACK = 64 << 10, MOST = 1024 };
typedef enum fiber_state { RUNS, MEETS_BLOCK, MEETS_WARP, ENDED } fiber_state;

/* A fiber lasts as long as its thread and runs body after body.  It is begun by a ucontext, but switches by _longjmp:
 * swapcontext asks the system for the signal mask each time, which takes ten times as long. */
static thread_local struct fibers {
    ~fibers() { free(stacks); }
    jmp_buf scheduler, fiber[MOST];
    ucontext_t first;
    fiber_state state[MOST];
    bool lives[MOST];
    char *stacks;
    unsigned current;
    void (*body)(void *);
    void *context;
} team;

static void meet(fiber_state at) {
    const unsigned me = team.current;
    team.state[me] = at;
    if (_setjmp(team.fiber[me]) == 0) _longjmp(team.scheduler, 1);
}

static void fiber_main(void) {
    for (;;) {
        team.body(team.context);
        meet(ENDED);
    }
}

static void begin(unsigned t) {
    getcontext(&team.first); /* not of this frame, which is left without a return */
    team.first.uc_stack.ss_sp = team.stacks + (size_t)t * STACK;
    team.first.uc_stack.ss_size = STACK;
    team.first.uc_link = NULL;
    makecontext(&team.first, fiber_main, 0);
    team.lives[t] = true;
    setcontext(&team.first);
}

static void enter(unsigned t) {
    team.current = threadIdx.x = t;
    if (_setjmp(team.scheduler) != 0) return;
    if (team.lives[t]) _longjmp(team.fiber[t], 1);
    else begin(t);
}

void cf_emulate_meet_block(void) { meet(MEETS_BLOCK); }
void cf_emulate_meet_warp(void) { meet(MEETS_WARP); }

/* Whether threads [from, to) have all ended or come to `at`; then they run on. */
static bool release(unsigned from, unsigned to, fiber_state at) {
    bool some = false;
    for (unsigned t = from; t < to; t++) {
        if (team.state[t] != at && team.state[t] != ENDED) return false;
        some = some || team.state[t] == at;
    }
    for (unsigned t = from; some && t < to; t++)
        if (team.state[t] == at) team.state[t] = RUNS;
    return some;
}

void cf_emulate_team(void (*body)(void *), void *context) {
    const unsigned n = blockDim.x;
    if (!team.stacks) team.stacks = (char *)malloc((size_t)MOST * STACK);
    if (!team.stacks) abort();
    team.body = body;
    team.context = context;
    for (unsigned t = 0; t < n; t++) team.state[t] = RUNS;
    for (;;) {
        bool ran = false;
        for (unsigned t = 0; t < n; t++) {
            if (team.state[t] != RUNS) continue;
            ran = true;
            enter(t);
        }
        bool freed = release(0, n, MEETS_BLOCK);
        for (unsigned from = 0; !freed && from < n; from += 32)
            freed = release(from, from + 32 < n ? from + 32 : n, MEETS_WARP) || freed;
        for (unsigned from = 32; freed && from < n; from += 32)
            release(from, from + 32 < n ? from + 32 : n, MEETS_WARP);
        if (ran || freed) continue;
        unsigned ended = 0;
        for (unsigned t = 0; t < n; t++) ended += team.state[t] == ENDED;
        if (ended == n) return;
        fprintf(stderr, "emulated CUDA: %u of %u threads of block %u wait for threads that never come\n", n - ended, n,
                blockIdx.x);
        abort();
    }
}
