/* watch.c: see watch.h. */
#include "launch/watch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

static const double LAST_CALL = 5; /* seconds from SIGTERM to SIGKILL */
enum { PATIENCE = 2 };             /* interrupts that are passed on; the next one kills */

typedef struct watch {
    const cf_watched *of;
    cf_news failure; /* the first; its code is 0 before */
    bool has_told;   /* of that failure */
    double deadline; /* for those that go on after it */
    bool was_asked;  /* they were, by SIGTERM */
    int interrupts;
    int given_up; /* the exit code after a signal when no rank was left */
    bool has_failed;
} watch;

static double clock_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* ---- signals -------------------------------------------------------------------------------------------------- */

/* Stops the ranks, then the launcher.  That time is nobody's. */
static void suspend(watch *w) {
    const double before = clock_now();
    cf_ranks_signal(w->of->ranks, SIGTSTP);
    raise(SIGSTOP);
    cf_ranks_signal(w->of->ranks, SIGCONT);
    w->deadline += clock_now() - before;
}

static void hear(watch *w, int signal) {
    if (signal == SIGCHLD) return; /* the ranks' news is looked at in any case */
    if (w->of->ranks->alive > 0) {
        if (signal == SIGINT && ++w->interrupts > PATIENCE) signal = SIGKILL;
        if (signal == SIGTSTP) suspend(w);
        else cf_ranks_signal(w->of->ranks, signal);
    } else if (signal != SIGCONT && signal != SIGUSR1 && signal != SIGUSR2 && signal != SIGTSTP) {
        w->given_up = 128 + signal; /* it waits for a reader of its output alone */
    }
}

static void hear_all(watch *w) {
    struct signalfd_siginfo info;
    while (read(w->of->signals, &info, sizeof info) == sizeof info) hear(w, (int)info.ssi_signo);
}

/* ---- ranks ---------------------------------------------------------------------------------------------------- */

static void note_end(watch *w, const cf_news *news, double now) {
    cf_output_end(w->of->output, news->rank, now);
    if (news->rank == 0) cf_input_close(w->of->input);
    if (news->code == 0 || w->has_told) return;
    /* Of several that are found at once, one that a signal ended has not ended because of the others. */
    if (w->failure.code == 0 || (news->signal && !w->failure.signal)) w->failure = *news;
}

static void note_stop(watch *w, const cf_news *news, double now) {
    cf_rank *rank = &w->of->ranks->rank[news->rank];
    const bool stops = news->what == CF_RANK_STOPPED;
    if (stops == rank->is_stopped) return;
    rank->is_stopped = stops;
    cf_output_say(w->of->output, now, "rank %d (pid %d) %s", news->rank, (int)rank->pid,
                  stops ? "is stopped" : "goes on");
}

static void tell_failure(watch *w, double now) {
    const cf_ranks *ranks = w->of->ranks;
    const cf_news *f = &w->failure;
    const int pid = (int)ranks->rank[f->rank].pid;
    if (f->signal) {
        cf_output_say(w->of->output, now, "rank %d of %d (pid %d) ended by signal %d (%s)", f->rank, ranks->n, pid,
                      f->signal, strsignal(f->signal));
    } else {
        cf_output_say(w->of->output, now, "rank %d of %d (pid %d) exited with %d", f->rank, ranks->n, pid, f->code);
    }
    w->has_told = true;
    w->deadline = now + w->of->grace;
}

static void look_at_ranks(watch *w, double now) {
    cf_news news;
    while (cf_ranks_next(w->of->ranks, &news)) {
        if (news.what == CF_RANK_ENDED) note_end(w, &news, now);
        else note_stop(w, &news, now);
    }
    if (w->failure.code != 0 && !w->has_told) tell_failure(w, now);
    if (cf_ranks_are_gone(w->of->ranks)) cf_output_end_all(w->of->output);
}

/* Ends those that have not ended by themselves. */
static void hurry(watch *w, double now) {
    const int alive = w->of->ranks->alive;
    if (alive == 0 || now < w->deadline) return;
    cf_output_say(w->of->output, now, "still running: %d of %d; sending %s", alive, w->of->ranks->n,
                  w->was_asked ? "SIGKILL" : "SIGTERM");
    cf_ranks_signal(w->of->ranks, w->was_asked ? SIGKILL : SIGTERM);
    cf_ranks_signal(w->of->ranks, SIGCONT); /* a stopped one hears nothing else */
    w->deadline = w->was_asked ? HUGE_VAL : now + LAST_CALL;
    w->was_asked = true;
}

/* ---- waiting -------------------------------------------------------------------------------------------------- */

/* Milliseconds until something is due; -1: nothing is. */
static int patience(const watch *w, double now) {
    double due = fmin(cf_output_due(w->of->output), cf_input_due(w->of->input));
    if (w->of->ranks->alive > 0) due = fmin(due, w->deadline);
    if (due == HUGE_VAL) return -1;
    return (int)fmin(fmax(ceil((due - now) * 1000), 0), 60000);
}

static void wait_and_work(watch *w) {
    struct pollfd *fds = w->of->fds;
    double now = clock_now();
    fds[0] = (struct pollfd){.fd = w->of->signals, .events = POLLIN};
    const int inputs = cf_input_poll(w->of->input, now, fds + 1);
    const int n = 1 + inputs + cf_output_poll(w->of->output, fds + 1 + inputs);
    poll(fds, (nfds_t)n, patience(w, now));

    now = clock_now();
    hear_all(w);
    const int error = inputs ? cf_input_work(w->of->input, fds[1].revents, now) : 0;
    if (error) {
        w->has_failed = true;
        cf_output_say(w->of->output, now, "cannot read stdin: %s", strerror(error));
    }
    look_at_ranks(w, now);
    hurry(w, now);
    cf_output_work(w->of->output, now);
}

int cf_watch(const cf_watched *watched) {
    watch w = {.of = watched, .deadline = HUGE_VAL};
    while (!w.given_up && !cf_output_is_done(watched->output)) wait_and_work(&w);
    if (w.given_up) return w.given_up;
    if (w.failure.code) return w.failure.code;
    return w.has_failed || cf_output_has_failed(watched->output) ? EXIT_FAILURE : EXIT_SUCCESS;
}
