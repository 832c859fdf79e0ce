/* dependents.h: what ends with a device, or with a context, and is a higher room's: buffers, tapes, loaders, groups.
 *
 * Each of them is a struct of that room which begins with a cf_dependent; the list is told how one is ended.
 */
#ifndef CF_DEVICE_DEPENDENTS_H
#define CF_DEVICE_DEPENDENTS_H

typedef struct cf_dependent {
    struct cf_dependent *next, **link; /* newest first; link: what points here */
} cf_dependent;

typedef struct cf_dependents {
    cf_dependent *first;
    void (*end_each)(cf_dependent *which); /* and takes it off the list */
} cf_dependents;

static inline void cf_depend(cf_dependents *on, cf_dependent *which, void (*end_each)(cf_dependent *which)) {
    which->next = on->first;
    which->link = &on->first;
    if (which->next) which->next->link = &which->next;
    on->first = which;
    on->end_each = end_each;
}

static inline void cf_depend_no_more(cf_dependent *which) {
    *which->link = which->next;
    if (which->next) which->next->link = which->link;
}

static inline void cf_dependents_end(cf_dependents *all) {
    while (all->first) all->end_each(all->first);
}

#endif
