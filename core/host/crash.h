/* crash.h: what the program says when a signal ends it.
 *
 * A crash's cause lies where it happened, and a core file is rarely there.  So the `conflux` program writes the signal,
 * the address and the thread's native stack to stderr, as far as it can be unwound, and then ends by that signal as it
 * would have without.  The library installs nothing: signals are the host program's.
 */
#ifndef CF_HOST_CRASH_H
#define CF_HOST_CRASH_H

/* To be called once, before there are other threads. */
void cf_crash_watch(void);

#endif
