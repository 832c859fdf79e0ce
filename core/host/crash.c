/* crash.c: see crash.h. */
#include "host/crash.h"

#include <execinfo.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

/* Sanitizers report crashes by themselves, and better. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HAS_REPORTER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HAS_REPORTER 1
#endif
#endif

#ifdef HAS_REPORTER

void cf_crash_watch(void) {}

#else

enum { FRAMES = 64, STACK = 64 * 1024 };

/* The main thread may crash because its stack is full. */
static char stack[STACK];

static const struct {
    int number;
    const char *name;
} signals[] = {{SIGSEGV, "segmentation fault"},
               {SIGBUS, "bus error"},
               {SIGILL, "illegal instruction"},
               {SIGFPE, "arithmetic error"}};

/* A handler of signals runs these: it may not allocate, nor use a stream. */

static void write_text(const char *text) {
    const ssize_t lost = write(STDERR_FILENO, text, strlen(text));
    (void)lost; /* there is nobody left to tell */
}

static void write_address(const void *address) {
    char text[2 + 2 * sizeof(uintptr_t) + 1] = "0x";
    uintptr_t rest = (uintptr_t)address;
    for (size_t i = sizeof text - 2; i >= 2; i--, rest /= 16) text[i] = "0123456789abcdef"[rest % 16];
    write_text(text);
}

static void report(int number, siginfo_t *info, void *context) {
    (void)context;
    char thread[16] = "";
    prctl(PR_GET_NAME, thread);
    write_text("conflux: crashed: ");
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        if (signals[i].number == number) write_text(signals[i].name);
    write_text(" at ");
    write_address(info->si_addr);
    write_text(" in thread ");
    write_text(thread);
    write_text("; its stack:\n");
    void *frames[FRAMES];
    backtrace_symbols_fd(frames, backtrace(frames, FRAMES), STDERR_FILENO);
    raise(number); /* by default, which SA_RESETHAND brought back */
}

void cf_crash_watch(void) {
    /* The first call loads the unwinder, which a handler must not. */
    void *frame;
    backtrace(&frame, 1);
    const stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction action = {.sa_sigaction = report, .sa_flags = SA_SIGINFO | SA_ONSTACK | (int)SA_RESETHAND};
    if (sigaltstack(&other, NULL) != 0) action.sa_flags &= ~SA_ONSTACK;
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        struct sigaction old;
        /* The program that started this one may have it ignore a signal. */
        if (sigaction(signals[i].number, NULL, &old) == 0 && old.sa_handler == SIG_DFL)
            sigaction(signals[i].number, &action, NULL);
    }
}

#endif
