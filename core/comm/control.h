/* control.h: what the ranks of a world have in common: one segment of memory, which all of them map.
 *
 * It has no pointers.  Each rank writes its own part alone, and the two counts of a group, which the last of its ranks
 * moves.  It outlives its writers: from it survivors read where a dead rank was.
 */
#ifndef CF_COMM_CONTROL_H
#define CF_COMM_CONTROL_H

#include "device/backends.h"
#include "device/event.h"

enum {
    CF_MAX_RANKS = 64,
    CF_WORLD_SLOTS = 64,    /* parts that a rank may have under way */
    CF_WORLD_RECORDS = 256, /* calls that are remembered */
    CF_WORLD_REASONS = 128, /* that are being written at once */
    CF_SMALL_BYTES = 4096,  /* a part of so many bytes travels in its slot */
    CF_SMALL_REPLICAS = 8   /* where the rank has no more than so many */
};

/* A rank tells this of a part before the others may read it. */
typedef struct cf_notice {
    uint64_t call;    /* of which it is a part */
    uint64_t check;   /* a hash of all that must be equal in all ranks */
    int32_t replicas; /* of this rank */
    double weight[CF_MAX_DEVICES];
    int64_t offset[CF_MAX_DEVICES]; /* of its replicas, in the rank's arena; of a small part, in `small` */
} cf_notice;

/* One call of a collective, as its rank made it. */
typedef struct cf_record {
    _Atomic uint64_t call; /* its number, from 1; written last */
    double at;             /* seconds, of the machine's clock that only goes forward */
    int64_t n;             /* elements of the only part, or the bytes of all */
    int32_t op, root, dtype, nparts, line;
    char source[128];
} cf_record;

/* A rank that is given up is killed before the world breaks. */
typedef enum cf_rank_state { CF_RANK_IN = 1, CF_RANK_LEFT, CF_RANK_SHRINKS, CF_RANK_GIVEN_UP } cf_rank_state;

/* A rank's own part. */
typedef struct cf_peer {
    _Alignas(64) _Atomic uint64_t published; /* parts that it has told of */
    _Alignas(64) _Atomic uint64_t finished;  /* parts whose slices it is through with */
    _Alignas(64) _Atomic int32_t state;      /* cf_rank_state */
    _Atomic uint64_t calls;                  /* that it has made: the last of its records */
    int32_t pid, ndevices;
    _Atomic int32_t nbells;
    _Atomic int32_t writers;      /* its workers that write into other ranks' memory now */
    cf_bell bell[CF_MAX_DEVICES]; /* of its workers */
    cf_notice notice[CF_WORLD_SLOTS];
    cf_record record[CF_WORLD_RECORDS];
    char small[CF_WORLD_SLOTS][CF_SMALL_REPLICAS][CF_SMALL_BYTES];
} cf_peer;

/* Why a world is broken: the first reason that has been written, each in a place of its own.  A rank that dies over its
 * reason keeps nobody from theirs. */
typedef struct cf_breach {
    _Atomic uint32_t chosen; /* 0: the world is whole; else the place of the reason, from 1 */
    _Atomic uint32_t taken;  /* places that someone writes in, or has written in */
    struct {
        int32_t rank; /* the one at fault; -1: more than one are */
        char why[1024];
    } reason[CF_WORLD_REASONS];
} cf_breach;

/* The world that comes after a broken one. */
enum { CF_NEXT_MADE = -1 };
typedef struct cf_next {
    _Atomic int32_t state;            /* 0, or 1 + the rank that makes it, or CF_NEXT_MADE */
    int32_t size, rank[CF_MAX_RANKS]; /* of the old one, the first of which has the control in its arena */
    int64_t offset;
} cf_next;

typedef struct cf_control {
    int32_t size;
    /* How many parts all ranks have told of, and how many all are through with. */
    _Alignas(64) cf_progress ready;
    _Alignas(64) cf_progress done;
    _Alignas(64) cf_breach breach;
    cf_next next;
    cf_peer peer[]; /* [size] */
} cf_control;

static inline size_t cf_control_bytes(int32_t size) {
    const size_t page = 4096;
    return (sizeof(cf_control) + (size_t)size * sizeof(cf_peer) + page - 1) / page * page;
}

/* In a count: the world is broken, and what was counted before that stays. */
#define CF_BROKEN (UINT64_C(1) << 63)
static inline uint64_t cf_counted(cf_progress *count) {
    return atomic_load_explicit(&count->finished, memory_order_seq_cst) & ~CF_BROKEN;
}

void cf_control_init(cf_control *control, int32_t size);

/* The rank has told of its next part, or is through with it: if it is the last to be, all that wait are woken. */
void cf_control_publish(cf_control *control, int32_t rank);
void cf_control_finish(cf_control *control, int32_t rank);

/* Moves the common counts where a rank that was stopped has not, and wakes this rank's own workers where they moved. */
void cf_control_help(cf_control *control, int32_t rank);

/* Breaks the world, if it is whole: whatever waits goes on, and finds that out.  Any thread. */
void cf_control_break(cf_control *control, int32_t rank, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Breaks it, for a reason that is there: once more, where the rank that gave it may have died over it. */
void cf_control_stop(cf_control *control);
/* The reason, or NULL while the world is whole. */
const char *cf_control_breach(cf_control *control);

#endif
