/* outlet.h: the launcher's stdout or stderr, written without ever waiting for its reader.
 *
 * The flag O_NONBLOCK belongs to all processes that share a terminal or pipe, the user's shell among them.  So a stream
 * is opened anew for the launcher alone, where the system lets it; elsewhere it is given so little at a time as a pipe
 * has room for whenever it is ready.  Files never wait.
 */
#ifndef CF_LAUNCH_OUTLET_H
#define CF_LAUNCH_OUTLET_H

#include <stdbool.h>

#include "launch/lines.h"

typedef struct cf_outlet {
    int fd;
    bool is_own; /* opened here */
    size_t most; /* bytes to write at a time */
    int error;   /* errno of the write that failed; nothing is written after it */
} cf_outlet;

void cf_outlet_open(cf_outlet *outlet, int fd);
void cf_outlet_close(cf_outlet *outlet);
/* Writes what the screen has and the stream takes now.  False at the first failure; from then on
 * what the screen has is dropped. */
bool cf_outlet_write(cf_outlet *outlet, cf_screen *screen);

/* Whether two descriptors are one file, terminal or pipe. */
bool cf_outlet_is_same(int a, int b);

#endif
