/* terminal.h: terminals behind pipes.
 *
 * The launcher reads its ranks' output from pipes and writes it to its own streams.  So that rank 0 shows its bars and
 * colours where these are a terminal, it finds in the environment which of its pipes lead to one, each with the
 * number by which the system knows the pipe, and how wide it is:
 *
 *     CONFLUX_TERMINAL=stdin=81902,stdout=81903,stderr=81904,columns=120
 *
 * The numbers are those of `ls -l /proc/self/fd`.  A program started by rank 0 with its output elsewhere, in a file or
 * another pipe, sees that it has no terminal.  cfx_is_terminal, in conflux.h, is for those that draw.
 */
#ifndef CF_BASE_TERMINAL_H
#define CF_BASE_TERMINAL_H

#include <stdbool.h>

#define CF_TERMINAL "CONFLUX_TERMINAL"

/* Sets the variable for this process, whose standard streams are such pipes where `behind` says so; `columns` 0: the
 * width is not known.  Where no stream leads to a terminal, the variable is removed.  False: there is no memory. */
bool cf_terminal_set(const bool behind[3], int columns);

/* The width of the terminal that is one of this process's standard streams; 0: there is none. */
int cf_terminal_columns(void);

#endif
