/* cores.h: the processor cores that this process may use, and how much of them others use.
 *
 * A process may run on the cores of its affinity mask, and where its cgroup has a quota, for so much time of them.
 * Both may change while it runs, so both are read anew each time.
 */
#ifndef CF_BASE_CORES_H
#define CF_BASE_CORES_H

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>

/* How many cores this process may keep busy: those of its mask, or of its quota if that is less; at least 1. */
int cf_cores_usable(void);

/* The machine at one moment; times in seconds of processor time. */
typedef struct cf_cores {
    double at;     /* the moment, on a clock that only goes forward */
    int cores;     /* those this process may run on */
    double busy;   /* CPU time that they spent working, for anybody */
    double own;    /* CPU time that this process spent */
    double waited; /* time that its threads with work waited for a core; below 0: the system does not tell */
    double quota;  /* cores that its cgroup may keep busy; 0: as many as there are */
    double group;  /* CPU time that its cgroup spent, if there is a quota */
} cf_cores;

/* False where the system does not tell. */
bool cf_cores_look(cf_cores *out);

/* How many of `threads` threads of this process had no core to run on between two looks, because others had it;
 * negative where cores were idle.  Two things must hold.  Others worked on more cores than are left beside the threads:
 * threads that wait for a core may wait for others of their own process.  And threads waited: a program that takes turns
 * with this one works as much and is in nobody's way. */
double cf_cores_lacking(const cf_cores *before, const cf_cores *now, int threads);

/* Reads /proc/stat: what the cores of `mine` have spent working, in clock ticks.  Time that a hypervisor gave to others is
 * no work.  Where the file counts its cores otherwise than the mask (in some containers), all that it lists are taken. */
bool cf_cores_parse(FILE *stat, const cpu_set_t *mine, double *ticks, int *cores);

#endif
