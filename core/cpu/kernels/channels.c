/* channels.c: sums and maps over channels.  See channels.h. */
#include "cpu/kernels/channels.h"

/* Wide rows have at least LEAST_WIDTH elements.  CHANNEL_ROWS of them are added at a time, and the sums of MERGE_ROWS
 * are merged as doubles.  A tensor is cut into at most MOST_CHUNKS chunks. */
enum { LEAST_WIDTH = 256, CHANNEL_ROWS = 4, MERGE_ROWS = 32, MOST_CHUNKS = 64 };

#define T float
#define ROW(name) f32_##name
#include "cpu/kernels/channel_math.h"
#define T double
#define ROW(name) f64_##name
#include "cpu/kernels/channel_math.h"

/* Calls a loop of channel_math.h with pointers that are of the compute type. */
#define LOOP(compute, name, ...)                          \
    do {                                                  \
        if ((compute) == CF_F64) f64_##name(__VA_ARGS__); \
        else f32_##name(__VA_ARGS__);                     \
    } while (0)

static int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

cf_channels CF_K(channels)(int dtype, int64_t samples, int64_t rows, int64_t c) {
    cf_channels g = {.compute = cf_compute_of(dtype), .samples = samples, .rows = rows, .c = c};
    g.lanes = cf_most(1, cf_least(rows, divide_up(LEAST_WIDTH, c)));
    g.width = g.lanes * c;
    g.wide = rows / g.lanes;
    g.rest = rows % g.lanes;
    g.strips = divide_up(g.width, CF_BLOCK);
    const int64_t most = cf_most(1, MOST_CHUNKS / cf_most(1, samples));
    g.chunk_rows = MERGE_ROWS * cf_most(1, divide_up(g.wide, MERGE_ROWS * most));
    g.chunks = divide_up(g.wide, g.chunk_rows) + (g.rest > 0);
    return g;
}

void CF_K(channels_read)(const cf_view *v, int64_t n, double *out) {
    cf_view flat = *v;
    cf_view_flatten(&flat);
    const double *numbers = CF_K(read)(&flat, CF_F64, 0, n, out);
    if (numbers != out) memcpy(out, numbers, (size_t)n * sizeof *out);
}

void CF_K(channels_write)(const cf_view *v, int64_t n, const double *numbers) {
    cf_view flat = *v;
    cf_view_flatten(&flat);
    CF_K(write)(&flat, CF_F64, 0, n, numbers);
}

double *CF_K(channels_room)(cf_worker *worker, int64_t n) {
    double *room = cf_worker_scratch(worker, (size_t)n * sizeof *room);
    if (!room) (void)cf_fail(CFX_EMEMORY, "no memory for %lld numbers of channels", (long long)n);
    return room;
}

/* Work is shared out by pieces: a strip of a chunk's wide rows. */
typedef struct piece {
    int64_t sample, chunk, col, n; /* columns [col, col + n) of the wide row */
    int64_t first, rows, element;  /* wide rows; element: the first one's, in the tensor */
} piece;

/* Wide rows [first, first + rows) of the chunk, or the one of `rest`. */
static void chunk_of(const cf_channels *g, int64_t chunk, int64_t *first, int64_t *rows, int64_t *width) {
    const bool is_rest = chunk * g->chunk_rows >= g->wide;
    *first = is_rest ? g->wide : chunk * g->chunk_rows;
    *rows = is_rest ? 1 : cf_least(g->chunk_rows, g->wide - *first);
    *width = is_rest ? g->rest * g->c : g->width;
}

static piece piece_of(const cf_channels *g, int64_t item) {
    piece p = {.sample = item / g->strips / g->chunks, .chunk = item / g->strips % g->chunks};
    int64_t width;
    chunk_of(g, p.chunk, &p.first, &p.rows, &width);
    p.col = item % g->strips * CF_BLOCK;
    p.n = cf_most(0, cf_least(CF_BLOCK, width - p.col));
    p.element = (p.sample * g->rows * g->c) + p.first * g->width + p.col;
    return p;
}

static int64_t pieces(const cf_channels *g) { return g->samples * g->chunks * g->strips; }
static int team_of(cf_worker *worker, const cf_channels *g) { return cf_cpu_team(worker, g->samples * g->rows * g->c); }

/* At most CHANNEL_ROWS rows of n elements from `element` on: the memory itself, or a copy; *step: from row to row. */
static const void *read_rows(const cf_channels *g, const cf_view *x, int64_t element, int64_t rows, int64_t n,
                             char *temp, int64_t *step) {
    const bool direct = x->dtype == cf_compute_dtype(g->compute);
    *step = direct ? g->width : n;
    if (direct) return cf_at(x, element);
    for (int64_t k = 0; k < rows; k++)
        CF_K(read)(x, g->compute, element + k * g->width, n, temp + k * n * cf_compute_size(g->compute));
    return temp;
}
typedef union row_memory {
    cf_block_memory row[CHANNEL_ROWS];
    char bytes[1];
} row_memory;

/* A channel's numbers in a strip. */
static const void *number_at(const cf_channels *g, const void *numbers, const piece *p) {
    return numbers ? (const char *)numbers + (p->sample * g->width + p->col) * cf_compute_size(g->compute) : NULL;
}

typedef struct job {
    const cf_channels *g;
    cf_gate gate;
    int relu;
    cf_view x, residual, y, dy, dx, dresidual; /* flat; data NULL: there is none */
    cf_channel_numbers numbers;
    double *room, *first, *second; /* first and second [samples, c] */
} job;

static cf_view flat_of(const cf_view *v) {
    if (!v) return (cf_view){0};
    cf_view flat = {.data = v->data, .dtype = v->dtype, .ndim = 1, .shape = {cf_view_numel(v)}, .stride = {1}};
    return flat;
}

/* The two sums of a chunk, [2][width]. */
static double *room_of(const job *j, const piece *p, int sum) {
    return j->room + ((p->sample * j->g->chunks + p->chunk) * 2 + sum) * j->g->width + p->col;
}

/* ---- sums ------------------------------------------------------------------------------------------------ */

static void moments_part(void *context, int64_t from, int64_t to) {
    const job *j = context;
    const cf_channels *g = j->g;
    row_memory temp;
    cf_block_memory shift, sum, square;
    for (int64_t item = from; item < to; item++) {
        const piece p = piece_of(g, item);
        const size_t bytes = (size_t)(p.n * cf_compute_size(g->compute));
        double *mean = room_of(j, &p, 0), *away = room_of(j, &p, 1);
        int64_t step;
        memset(mean, 0, (size_t)p.n * sizeof *mean);
        memset(away, 0, (size_t)p.n * sizeof *away);
        for (int64_t first = 0; first < p.rows; first += MERGE_ROWS) {
            const int64_t end = cf_least(first + MERGE_ROWS, p.rows);
            memcpy(&shift, read_rows(g, &j->x, p.element + first * g->width, 1, p.n, temp.bytes, &step), bytes);
            memset(&sum, 0, bytes);
            memset(&square, 0, bytes);
            for (int64_t r = first; r < end; r += CHANNEL_ROWS) {
                const int64_t rows = cf_least(CHANNEL_ROWS, end - r);
                const void *x = read_rows(g, &j->x, p.element + r * g->width, rows, p.n, temp.bytes, &step);
                LOOP(g->compute, moments, rows, x, step, p.n, (void *)&shift, (void *)&sum, (void *)&square);
            }
            LOOP(g->compute, join_moments, p.n, end - first, first, (void *)&shift, (void *)&sum, (void *)&square, mean,
                 away);
        }
    }
}

static void slopes_part(void *context, int64_t from, int64_t to) {
    const job *j = context;
    const cf_channels *g = j->g;
    row_memory temp[3];
    cf_block_memory sum, sum_x;
    for (int64_t item = from; item < to; item++) {
        const piece p = piece_of(g, item);
        const void *mean = number_at(g, j->numbers.mean, &p), *scale = number_at(g, j->numbers.scale, &p),
                   *shift = number_at(g, j->numbers.shift, &p);
        const size_t bytes = (size_t)(p.n * cf_compute_size(g->compute));
        double *sum_g = room_of(j, &p, 0), *sum_gx = room_of(j, &p, 1);
        memset(sum_g, 0, (size_t)p.n * sizeof *sum_g);
        memset(sum_gx, 0, (size_t)p.n * sizeof *sum_gx);
        for (int64_t first = 0; first < p.rows; first += MERGE_ROWS) {
            const int64_t end = cf_least(first + MERGE_ROWS, p.rows);
            memset(&sum, 0, bytes);
            memset(&sum_x, 0, bytes);
            for (int64_t r = first; r < end; r += CHANNEL_ROWS) {
                const int64_t rows = cf_least(CHANNEL_ROWS, end - r), at = p.element + r * g->width;
                int64_t steps[3] = {0};
                const void *dy = read_rows(g, &j->dy, at, rows, p.n, temp[0].bytes, &steps[0]);
                const void *x = read_rows(g, &j->x, at, rows, p.n, temp[1].bytes, &steps[1]);
                const void *y = j->y.data ? read_rows(g, &j->y, at, rows, p.n, temp[2].bytes, &steps[2]) : NULL;
                LOOP(g->compute, slopes, j->gate, rows, dy, x, y, steps[0], p.n, mean, scale, shift, (void *)&sum,
                     (void *)&sum_x);
            }
            LOOP(g->compute, join_sums, p.n, (void *)&sum, sum_g);
            LOOP(g->compute, join_sums, p.n, (void *)&sum_x, sum_gx);
        }
    }
}

/* Goes over the lanes of a sample's chunks, in order: a and b [c] are the two sums over so many rows. */
typedef struct lane {
    int64_t chunk, at, end, rows; /* at, end: of this lane, and of the chunk's last, in the wide row */
    const double *a, *b;
} lane;

static bool next_lane(const job *j, int64_t sample, lane *l) {
    int64_t first;
    l->at += j->g->c;
    if (l->at >= l->end) {
        if (++l->chunk == j->g->chunks) return false;
        chunk_of(j->g, l->chunk, &first, &l->rows, &l->end);
        l->at = 0;
    }
    l->a = j->room + (sample * j->g->chunks + l->chunk) * 2 * j->g->width + l->at;
    l->b = l->a + j->g->width;
    return true;
}
static const lane no_lane = {.chunk = -1};

/* Channels [from, to): chunks and their lanes are joined in order. */
static void join_moments_part(void *context, int64_t from, int64_t to) {
    const job *j = context;
    const int64_t c = j->g->c;
    for (int64_t s = 0; s < j->g->samples; s++) {
        double *restrict mean = j->first + s * c, *restrict away = j->second + s * c;
        for (int64_t i = from; i < to; i++) mean[i] = away[i] = 0;
        for (lane l = no_lane; next_lane(j, s, &l);)
            for (int64_t i = from; i < to; i++) mean[i] += (double)l.rows * l.a[i];
        for (int64_t i = from; i < to; i++) mean[i] /= (double)j->g->rows;
        for (lane l = no_lane; next_lane(j, s, &l);)
            for (int64_t i = from; i < to; i++) {
                const double apart = l.a[i] - mean[i];
                away[i] += l.b[i] + (double)l.rows * apart * apart;
            }
    }
}

static void join_sums_part(void *context, int64_t from, int64_t to) {
    const job *j = context;
    const int64_t c = j->g->c;
    for (int64_t s = 0; s < j->g->samples; s++) {
        double *restrict first = j->first + s * c, *restrict second = j->second + s * c;
        for (int64_t i = from; i < to; i++) first[i] = second[i] = 0;
        for (lane l = no_lane; next_lane(j, s, &l);)
            for (int64_t i = from; i < to; i++) first[i] += l.a[i], second[i] += l.b[i];
    }
}

static void join(cf_worker *worker, job *j, cf_part part) {
    CF_K(parallel)(cf_cpu_team(worker, cf_channels_room(j->g)), j->g->c, CF_UNIT, part, j);
}

void CF_K(channels_moments)(cf_worker *worker, const cf_channels *g, const cf_view *x, double *room, double *mean,
                            double *away) {
    job j = {.g = g, .x = flat_of(x), .room = room, .first = mean, .second = away};
    CF_K(parallel)(team_of(worker, g), pieces(g), 1, moments_part, &j);
    join(worker, &j, join_moments_part);
}

void CF_K(channels_slopes)(cf_worker *worker, const cf_channels *g, cf_gate gate, const cf_view *dy, const cf_view *x,
                           const cf_view *y, const cf_channel_numbers *numbers, double *room, double *sum_g,
                           double *sum_gx) {
    job j = {.g = g, .gate = gate, .dy = flat_of(dy), .x = flat_of(x), .y = flat_of(y), .numbers = *numbers};
    j.room = room;
    j.first = sum_g;
    j.second = sum_gx;
    CF_K(parallel)(team_of(worker, g), pieces(g), 1, slopes_part, &j);
    join(worker, &j, join_sums_part);
}

/* ---- maps ------------------------------------------------------------------------------------------------ */

void CF_K(channels_spread)(const cf_channels *g, const double *number, void *out) {
    for (int64_t s = 0; s < g->samples; s++)
        LOOP(g->compute, spread, g->lanes, g->c, number + s * g->c,
             (void *)((char *)out + s * g->width * cf_compute_size(g->compute)));
}

/* Items are strips of wide rows, one behind the other, `rest` being one. */
static piece row_of(const cf_channels *g, int64_t item) {
    const int64_t rows = g->wide + (g->rest > 0), row = item / g->strips;
    piece p = {.sample = row / rows, .first = row % rows, .col = item % g->strips * CF_BLOCK};
    p.n = cf_most(0, cf_least(CF_BLOCK, (p.first < g->wide ? g->width : g->rest * g->c) - p.col));
    p.element = p.sample * g->rows * g->c + p.first * g->width + p.col;
    return p;
}
static void over_rows(cf_worker *worker, job *j, cf_part part) {
    const cf_channels *g = j->g;
    CF_K(parallel)(team_of(worker, g), g->samples * (g->wide + (g->rest > 0)) * g->strips, 1, part, j);
}

static void *target(const cf_channels *g, const cf_view *v, int64_t element, cf_block_memory *temp) {
    return v->data && cf_direct(v, g->compute) ? (void *)cf_at(v, element) : (void *)temp;
}

static void map_part(void *context, int64_t from, int64_t to) {
    const job *j = context;
    const cf_channels *g = j->g;
    cf_block_memory temp[3];
    for (int64_t item = from; item < to; item++) {
        const piece p = row_of(g, item);
        const void *mean = number_at(g, j->numbers.mean, &p), *scale = number_at(g, j->numbers.scale, &p),
                   *shift = number_at(g, j->numbers.shift, &p);
        const void *x = CF_K(read)(&j->x, g->compute, p.element, p.n, &temp[0]);
        const void *residual = j->residual.data ? CF_K(read)(&j->residual, g->compute, p.element, p.n, &temp[1]) : NULL;
        void *y = target(g, &j->y, p.element, &temp[2]);
        LOOP(g->compute, map, j->relu, x, residual, p.n, mean, scale, shift, y);
        CF_K(write)(&j->y, g->compute, p.element, p.n, y);
    }
}

void CF_K(channels_map)(cf_worker *worker, const cf_channels *g, int relu, const cf_view *x, const cf_view *residual,
                        const cf_channel_numbers *numbers, const cf_view *y) {
    job j = {.g = g, .relu = relu, .x = flat_of(x), .residual = flat_of(residual), .y = flat_of(y)};
    j.numbers = *numbers;
    over_rows(worker, &j, map_part);
}

static void gradient_part(void *context, int64_t from, int64_t to) {
    const job *j = context;
    const cf_channels *g = j->g;
    cf_block_memory temp[5];
    for (int64_t item = from; item < to; item++) {
        const piece p = row_of(g, item);
        const cf_channel_numbers *all = &j->numbers;
        const void *mean = number_at(g, all->mean, &p), *scale = number_at(g, all->scale, &p),
                   *shift = number_at(g, all->shift, &p), *flat = number_at(g, all->flat, &p),
                   *slope = number_at(g, all->slope, &p);
        const void *dy = CF_K(read)(&j->dy, g->compute, p.element, p.n, &temp[0]);
        const void *x = CF_K(read)(&j->x, g->compute, p.element, p.n, &temp[1]);
        const void *y = j->gate == CF_GATE_OUTPUT ? CF_K(read)(&j->y, g->compute, p.element, p.n, &temp[2]) : NULL;
        void *dx = target(g, &j->dx, p.element, &temp[3]);
        void *dresidual = j->dresidual.data ? target(g, &j->dresidual, p.element, &temp[4]) : NULL;
        LOOP(g->compute, gradient, j->gate, dy, x, y, p.n, mean, scale, shift, flat, slope, dx, dresidual);
        if (j->dx.data) CF_K(write)(&j->dx, g->compute, p.element, p.n, dx);
        if (dresidual) CF_K(write)(&j->dresidual, g->compute, p.element, p.n, dresidual);
    }
}

void CF_K(channels_gradient)(cf_worker *worker, const cf_channels *g, cf_gate gate, const cf_view *dy, const cf_view *x,
                             const cf_view *y, const cf_channel_numbers *numbers, const cf_view *dx,
                             const cf_view *dresidual) {
    job j = {.g = g, .gate = gate, .dy = flat_of(dy), .x = flat_of(x), .y = flat_of(y), .dx = flat_of(dx)};
    j.dresidual = flat_of(dresidual);
    j.numbers = *numbers;
    over_rows(worker, &j, gradient_part);
}
