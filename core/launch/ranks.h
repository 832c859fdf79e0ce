/* ranks.h: the processes of a run.
 *
 * All are in one process group, which is not the terminal's: Ctrl-C comes to the launcher alone.  Each is killed by the
 * system when the launcher ends, however that comes.  Processes that ranks leave behind in the group are the launcher's
 * to reap, and are killed when the last rank has ended.
 */
#ifndef CF_LAUNCH_RANKS_H
#define CF_LAUNCH_RANKS_H

#include <stdbool.h>
#include <sys/types.h>

#include "launch/inherited.h"

typedef struct cf_rank {
    pid_t pid;
    int out, err; /* its stdout and stderr are read here; the caller takes them */
    bool has_ended, is_stopped;
} cf_rank;

typedef struct cf_ranks {
    int n, alive;
    pid_t group; /* 0 before the first has been started */
    int input;   /* rank 0 reads what is written here; the caller takes it */
    cf_rank *rank;
    int (*sockets)[2]; /* [n], while ranks are started: of each but 0, rank 0's end and its own */
} cf_ranks;

/* How they are started. */
typedef struct cf_start {
    char **words;        /* of the program: its name, arguments, NULL */
    const char *devices; /* for each, or NULL */
    bool behind[3];      /* the launcher's streams that are terminals */
    int columns;         /* of the terminal */
    cf_inherited *inherited;
} cf_start;

enum { CF_START_FAILED = 1, CF_START_REFUSED = 126, CF_START_MISSING = 127 };

/* Starts n ranks; the first runs before the second is made.  Returns 0, or the exit code that a shell would have, with
 * the reason in `why`, of CF_WHY bytes; then none is left. */
int cf_ranks_start(cf_ranks *ranks, int n, const cf_start *how, char *why);
/* Frees what the struct holds. */
void cf_ranks_free(cf_ranks *ranks);

/* Sends a signal to all, with the processes that they have started. */
void cf_ranks_signal(const cf_ranks *ranks, int signal);

/* News of a rank. */
typedef struct cf_news {
    int rank;
    enum { CF_RANK_ENDED, CF_RANK_STOPPED, CF_RANK_CONTINUED } what;
    int code;   /* its exit code: 128 and the signal where one ended it */
    int signal; /* that signal, or 0 */
} cf_news;

/* Takes the next news; false where there is none. */
bool cf_ranks_next(cf_ranks *ranks, cf_news *out);
/* Whether all have ended, and nothing that they left behind in their group is still there. */
bool cf_ranks_are_gone(const cf_ranks *ranks);

#endif
