/* input.h: copies the launcher's stdin to rank 0's, and its end.
 *
 * At a terminal only while the launcher is in the foreground: in the background what is typed is another's, and reading it
 * would stop the launcher.
 */
#ifndef CF_LAUNCH_INPUT_H
#define CF_LAUNCH_INPUT_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>

enum { CF_INPUT_ROOM = 4096 };

typedef struct cf_input {
    int to; /* -1: nothing more is copied */
    char bytes[CF_INPUT_ROOM];
    size_t from, n; /* bytes [from, n) are still to be written */
    double again;   /* not to be looked at before */
} cf_input;

/* Takes the end of rank 0's pipe. */
void cf_input_open(cf_input *input, int to);
void cf_input_close(cf_input *input);
/* Fills in the one descriptor that it waits for; returns how many these are: 0 or 1. */
int cf_input_poll(const cf_input *input, double now, struct pollfd *fds);
/* When to call cf_input_poll again; HUGE_VAL: when something has happened. */
double cf_input_due(const cf_input *input);
/* Reads or writes, if poll has returned these events.  Returns 0, or errno where stdin cannot be read. */
int cf_input_work(cf_input *input, short events, double now);

#endif
