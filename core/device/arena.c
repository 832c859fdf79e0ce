/* arena.c: see arena.h. */
#include "device/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/locale.h"
#include "base/status.h"

enum { UNIT = 1 << 21 }; /* a huge page: slabs lie on its multiples */

enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

/* Bytes [from, to) that no slab has. */
typedef struct gap {
    struct gap *next; /* by address */
    size_t from, to;
} gap;

struct cf_arena {
    int file;
    char *base;
    size_t bytes;
    gap *gaps;
    gap *spare; /* so that giving back cannot fail: one for each slab */
};

/* ---- files ------------------------------------------------------------------------------------------- */

/* Where the size of files is limited memory to share keeps to it. */
static size_t most_bytes(size_t wanted) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= wanted)
        return wanted;
    return (size_t)limit.rlim_cur;
}

cfx_status cf_arena_file_new(const char *name, size_t bytes, int *out) {
    if (bytes > most_bytes(bytes)) /* beyond it the system would send a signal */
        return cf_fail(CFX_EMEMORY, "cannot make %zu bytes of memory to share: the limit of file sizes is less", bytes);
    const int file = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (file < 0) return cf_fail(CFX_EMEMORY, "cannot make memory to share: %s", cf_strerror(errno));
    if (ftruncate(file, (off_t)bytes) != 0 || fcntl(file, F_ADD_SEALS, SEALS) != 0) {
        const int error = errno;
        close(file);
        return cf_fail(CFX_EMEMORY, "cannot make %zu bytes of memory to share: %s", bytes, cf_strerror(error));
    }
    *out = file;
    return CFX_OK;
}

cfx_status cf_arena_map(int file, size_t bytes, char **out) {
    struct stat state;
    const int seals = fcntl(file, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(file, &state) != 0 || state.st_size < 0 ||
        (size_t)state.st_size != bytes)
        return cf_fail(CFX_EFAULT, "a peer's memory is not a sealed file of %zu bytes", bytes);
    char *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (base == MAP_FAILED)
        return cf_fail(CFX_EMEMORY, "cannot map %zu bytes of shared memory: %s", bytes, cf_strerror(errno));
#ifdef MADV_HUGEPAGE
    madvise(base, bytes, MADV_HUGEPAGE); /* a wish */
#endif
    *out = base;
    return CFX_OK;
}

/* ---- arenas ------------------------------------------------------------------------------------------ */

cfx_status cf_arena_new(size_t bytes, cf_arena **out) {
    void *memory, *all;
    const size_t size = most_bytes(bytes + UNIT - 1) / UNIT * UNIT;
    if (size == 0) return cf_fail(CFX_EMEMORY, "the limit of file sizes (ulimit -f) leaves no memory to share");
    CF_TRY(cf_alloc_zero(1, sizeof(cf_arena), &memory));
    cf_arena *arena = memory;
    arena->file = -1;
    arena->bytes = size;
    cfx_status status = cf_alloc_zero(1, sizeof(gap), &all);
    if (status == CFX_OK) {
        arena->gaps = all;
        arena->gaps->to = size;
        status = cf_arena_file_new("conflux", size, &arena->file);
    }
    if (status == CFX_OK) status = cf_arena_map(arena->file, size, &arena->base);
    if (status != CFX_OK) {
        cf_arena_free(arena);
        return status;
    }
    *out = arena;
    return CFX_OK;
}

static void free_list(gap *first) {
    for (gap *g = first, *next; g; g = next) {
        next = g->next;
        free(g);
    }
}

void cf_arena_free(cf_arena *arena) {
    if (!arena) return;
    if (arena->base) munmap(arena->base, arena->bytes);
    if (arena->file >= 0) close(arena->file);
    free_list(arena->gaps);
    free_list(arena->spare);
    free(arena);
}

int cf_arena_file(const cf_arena *arena) { return arena->file; }
char *cf_arena_base(const cf_arena *arena) { return arena->base; }
size_t cf_arena_bytes(const cf_arena *arena) { return arena->bytes; }

static size_t whole_units(size_t bytes) { return (bytes + UNIT - 1) / UNIT * UNIT; }

/* In pieces: a signal that comes in the middle of one undoes that one alone. */
static int allocate(int file, size_t from, size_t to) {
    enum { PIECE = 8 << 20 };
    while (from < to) {
        const size_t bytes = to - from < PIECE ? to - from : PIECE;
        if (fallocate(file, 0, (off_t)from, (off_t)bytes) == 0) from += bytes;
        else if (errno != EINTR) return errno;
    }
    return 0;
}

cfx_status cf_arena_take(cf_arena *arena, size_t bytes, void **out) {
    const size_t size = whole_units(bytes);
    gap **at = &arena->gaps;
    void *spare;
    while (*at && (*at)->to - (*at)->from < size) at = &(*at)->next;
    if (!*at) return cf_fail(CFX_EMEMORY, "the memory to share has no %zu bytes left of %zu", bytes, arena->bytes);
    gap *g = *at;
    CF_TRY(cf_alloc_zero(1, sizeof(gap), &spare));
    const int error = allocate(arena->file, g->from, g->from + size);
    if (error) {
        free(spare);
        (void)fallocate(arena->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)g->from, (off_t)size);
        return cf_fail(CFX_EMEMORY, "the system has no %zu bytes of memory to share: %s", bytes, cf_strerror(error));
    }
    ((gap *)spare)->next = arena->spare;
    arena->spare = spare;
    *out = arena->base + g->from;
    g->from += size;
    if (g->from == g->to) {
        *at = g->next;
        g->next = arena->spare;
        arena->spare = g;
    }
    return CFX_OK;
}

/* A slab has one of the spares: no more gaps come about than there are slabs, and one. */
static void drop_spare(cf_arena *arena) {
    gap *spare = arena->spare;
    arena->spare = spare->next;
    free(spare);
}

/* A gap of [from, to), joined with its neighbours. */
void cf_arena_give(cf_arena *arena, void *slab, size_t bytes) {
    const size_t from = (size_t)((char *)slab - arena->base), to = from + whole_units(bytes);
    /* The pages go, in every process; if the system cannot do so they stay, and serve the next slab. */
    (void)fallocate(arena->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)from, (off_t)(to - from));
    gap **at = &arena->gaps;
    while (*at && (*at)->to < from) at = &(*at)->next;
    gap *g = *at;
    if (!g || g->from > to) {
        g = arena->spare;
        arena->spare = g->next;
        *g = (gap){*at, from, to};
        *at = g;
    } else if (g->to == from) {
        g->to = to;
        gap *next = g->next;
        if (next && next->from == to) {
            g->to = next->to;
            g->next = next->next;
            next->next = arena->spare;
            arena->spare = next;
        }
    } else {
        g->from = from;
    }
    drop_spare(arena);
}
