/* output.h: the way of what ranks write, from their pipes to the launcher's stdout and stderr, or to files.
 *
 * Where stdout and stderr are one terminal, file or pipe, they are one screen.  With a directory, each rank's streams go
 * to files in it, as they are, and rank 0's to the screen, too.
 *
 * Where a stream cannot be written any more, that is said once, and is a failure.  If its reader is gone, the ranks'
 * pipes are closed, so that they learn of it as they would without a launcher; otherwise (a full disk) they go on, and
 * what they write is dropped.
 */
#ifndef CF_LAUNCH_OUTPUT_H
#define CF_LAUNCH_OUTPUT_H

#include <poll.h>
#include <stdbool.h>

typedef struct cf_output cf_output;

/* `directory` is made if it is missing; NULL: there is none.  Returns NULL with the reason in `why`, of CF_WHY bytes. */
cf_output *cf_output_open(int ranks, const char *directory, char *why);
/* Closes everything. */
void cf_output_close(cf_output *output);

/* Takes a rank's pipes. */
void cf_output_take(cf_output *output, int rank, int out, int err);
/* A rank has ended: shows all that it has written. */
void cf_output_end(cf_output *output, int rank, double now);
/* Nothing writes any more: what is in the pipes is the last. */
void cf_output_end_all(cf_output *output);
/* Says something on stderr, on a line of its own. */
__attribute__((format(printf, 3, 4))) void cf_output_say(cf_output *output, double now, const char *format, ...);

/* How many descriptors it waits for at most; fills them in, and returns how many they are. */
int cf_output_most(const cf_output *output);
int cf_output_poll(cf_output *output, struct pollfd *fds);
/* When it has to be called even if none of them is ready. */
double cf_output_due(const cf_output *output);
/* Reads and writes what it can. */
void cf_output_work(cf_output *output, double now);

/* Whether all has been shown, after cf_output_end_all. */
bool cf_output_is_done(const cf_output *output);
/* Whether something could not be written. */
bool cf_output_has_failed(const cf_output *output);

#endif
