/* park.h: sleeping until a word changes.
 *
 * A parking word is an event count: a thread that wants to sleep reads it, looks once more for a reason not to, and
 * parks on the value that it read; a thread that makes such a reason bumps the word.  On Linux this is the futex.
 *
 * A word may lie in memory that processes share; then all of them say so with every call.
 */
#ifndef CF_BASE_PARK_H
#define CF_BASE_PARK_H

#include <linux/futex.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef _Atomic uint32_t cf_word;

static inline uint32_t cf_word_read(cf_word *word) { return atomic_load_explicit(word, memory_order_seq_cst); }

/* Sleeps while *word == seen, for `most` nanoseconds, or if that is negative, without an end; may also return early (a
 * signal, a chance wake-up): callers look again. */
static inline void cf_park_for(cf_word *word, uint32_t seen, bool shared, int64_t most) {
    const struct timespec time = {most / 1000000000, (long)(most % 1000000000)};
    syscall(SYS_futex, (uint32_t *)word, shared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE, seen, most < 0 ? NULL : &time, NULL,
            0);
}

static inline void cf_park(cf_word *word, uint32_t seen) { cf_park_for(word, seen, false, -1); }

/* Bumps the word and wakes every sleeper.  Async-signal-safe. */
static inline void cf_unpark_all(cf_word *word, bool shared) {
    atomic_fetch_add_explicit(word, 1, memory_order_seq_cst);
    syscall(SYS_futex, (uint32_t *)word, shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static inline void cf_unpark(cf_word *word) { cf_unpark_all(word, false); }

static inline void cf_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

#endif
