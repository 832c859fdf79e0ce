/* winograd.c: 3x3 convolutions with fewer multiplications, by Winograd's method (Lavin and Gray, "Fast Algorithms for
 * Convolutional Neural Networks", arXiv 1509.09308).
 *
 * A tile of 2x2 pixels of the result comes from 4x4 pixels of the image.  Both these and the 3x3 weights are
 * transformed into 4x4 values each, with which the convolution is a product, value by value, that is summed over the
 * channels: 16 multiplications instead of 36.  So each of the 16 positions is a product of matrices, [tiles, in] times
 * [in, out], and the transforms, which are additions alone, run over channels:
 *
 *     y = A' ((G w G') * (B' x B)) A
 *
 * The gradient by data is such a convolution, too, of dy with the weights turned and their channels exchanged.  The
 * gradient by weights is the adjoint: dw = G' (sum over tiles of (A dy A') * (B' x B)) G.
 *
 * The tile is 2x2, not 4x4, which would want 36 multiplications instead of 64: its transforms multiply by at most a
 * half, so that sums are as accurate as direct ones, where those of 4x4 lose a digit (Barabasz et al., "Error Analysis
 * and Improving the Accuracy of Winograd Convolution for Deep Neural Networks", arXiv 1803.10986; measured over 64
 * channels: 2.5e-7 of the results' size with 2x2, 1.7e-6 with 4x4, 4.3e-7 directly).  And each result takes only those
 * pixels that lie in its window: what is not finite reaches the same results as it does directly, there as a NaN where
 * the direct sum may be infinite.  Numbers above a sixteenth of the largest float may overflow early.
 *
 * A unit of work is a group of tiles and a stretch of the channels that are made (forwards), or a square of channels and
 * a part of the tiles (by weights).  It transforms what it reads, some of it as other units do, into a room in the
 * second-level cache: no thread waits for another, and transformed weights, which are larger than the weights, never
 * go to memory.  The shape alone says which numbers are added, and in which order: any team makes the same bits.
 */
#include "cpu/kernels/winograd.h"

#include <omp.h>

#include "cpu/kernels/block.h"

/* The small kernels keep so many rows by so many vectors in registers: forwards, where rows are tiles, and by weights,
 * where they are channels, of which there often are powers of two. */
#if defined(__AVX512F__)
enum { LANES = 16, ROWS = 7, WIDE = 4, DY_ROWS = 4, X_WIDE = 4 };
#define EVENS 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define ODDS 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif defined(__AVX2__)
enum { LANES = 8, ROWS = 6, WIDE = 2, DY_ROWS = 6, X_WIDE = 2 };
#define EVENS 0, 8, 1, 9, 2, 10, 3, 11
#define ODDS 4, 12, 5, 13, 6, 14, 7, 15
#else
enum { LANES = 4, ROWS = 4, WIDE = 2, DY_ROWS = 4, X_WIDE = 2 };
#define EVENS 0, 4, 1, 5
#define ODDS 2, 6, 3, 7
#endif
typedef float vec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t words __attribute__((vector_size(LANES * 4)));

enum {
    COLUMNS = WIDE * LANES,
    MOST_ROWS = 8,
    MOST_WIDE = 4,
    TAPS = 9,       /* of the window */
    POSITIONS = 16, /* of a transformed tile */
    GAP = 16        /* floats between rows: those of equal addresses modulo 4096 share a cache's set */
};

/* Forwards a thread's room has the weights between IN and OUT channels, as panels [position][panel][in][COLUMNS], the
 * transformed values of BLOCK tiles, and the sums of a group of tiles.  As each group transforms the weights again, it is
 * large; where all of `in` fits, they stay, and it is small. */
enum { IN = 128, OUT = 64, BLOCK = 4 * ROWS, SMALL_GROUP = 2 * BLOCK, LARGE_GROUP = 7 * BLOCK };

#define INLINE static inline __attribute__((always_inline))

/* The first n of a vector's elements; the others are 0. */
static inline vec load(const float *p, int64_t n) {
    vec v = {0};
    if (n >= LANES) return *(const vec *)p;
    memcpy(&v, p, (size_t)n * sizeof(float));
    return v;
}

static inline void store(float *p, int64_t n, vec v) {
    if (n >= LANES) *(vec *)p = v;
    else memcpy(p, &v, (size_t)n * sizeof(float));
}

/* ---- products ----------------------------------------------------------------------------------------------- */

/* y [rows, wide vectors] = a b, or += if `add`; element [i, l] of a [rows, k] lies at i a_row + l a_col. */
INLINE void multiply(const int rows, const int wide, int64_t k, const float *restrict a, int64_t a_row, int64_t a_col,
                     const float *restrict b, int64_t b_row, float *restrict y, int64_t y_row, bool add) {
    vec sum[MOST_ROWS][MOST_WIDE];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < wide; j++) sum[i][j] = (vec){0};
    for (int64_t l = 0; l < k; l++, b += b_row) {
        vec w[MOST_WIDE];
#pragma GCC unroll 4
        for (int j = 0; j < wide; j++) w[j] = *(const vec *)(b + j * LANES);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            const float v = a[i * a_row + l * a_col];
#pragma GCC unroll 4
            for (int j = 0; j < wide; j++) sum[i][j] += v * w[j];
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < wide; j++) {
            vec *at = (vec *)(y + i * y_row + j * LANES);
            if (add) sum[i][j] += *at;
            *at = sum[i][j];
        }
}

/* Of ROWS rows of a and a panel b [k, COLUMNS]. */
static void multiply_rows(int64_t k, const float *a, int64_t a_row, const float *b, float *y, int64_t y_row, bool add) {
    multiply(ROWS, WIDE, k, a, a_row, 1, b, COLUMNS, y, y_row, add);
}

/* Of DY_ROWS columns of a and X_WIDE vectors of b's rows. */
static void multiply_columns(int64_t k, const float *a, int64_t a_col, const float *b, int64_t b_row, float *y,
                             int64_t y_row, bool add) {
    multiply(DY_ROWS, X_WIDE, k, a, 1, a_col, b, b_row, y, y_row, add);
}

/* ---- tiles -------------------------------------------------------------------------------------------------- */

/* Images [n, size[0], size[1], channels], of which tile (i, j) begins at pixel (2i - before[0], 2j - before[1]). */
typedef struct images {
    float *data;
    int64_t size[2], channels, before[2];
} images;

/* The tiles of a result: [n, grid[0], grid[1]]. */
typedef struct tiles {
    int64_t n, grid[2], count;
} tiles;

/* The threads of a convolution. */
static int team_of(cf_worker *worker, const cf_conv *f) {
    return cf_cpu_team(worker, f->n * f->y[0] * f->y[1] * f->in * f->out);
}

static tiles tiles_of(const cf_conv *f, const int64_t *size) {
    tiles t = {.n = f->n, .grid = {(size[0] + 1) / 2, (size[1] + 1) / 2}};
    t.count = t.n * t.grid[0] * t.grid[1];
    return t;
}

/* Where pixels [width, width] of a tile lie; -1: in the pad. */
static void locate(const images *m, const tiles *t, int64_t tile, int width, int64_t *pixels) {
    const int64_t col = 2 * (tile % t->grid[1]) - m->before[1];
    const int64_t row = 2 * (tile / t->grid[1] % t->grid[0]) - m->before[0];
    const int64_t image = tile / (t->grid[0] * t->grid[1]) * m->size[0];
    for (int64_t i = row; i < row + width; i++)
        for (int64_t j = col; j < col + width; j++) {
            const bool is_there = i >= 0 && i < m->size[0] && j >= 0 && j < m->size[1];
            *pixels++ = is_there ? ((image + i) * m->size[1] + j) * m->channels : -1;
        }
}

/* The addresses of such pixels, from channel c on; those in the pad are 0. */
static void look(const images *m, const tiles *t, int64_t tile, int width, int64_t c, const float **pixels) {
    static const float zeros[IN] = {0};
    int64_t at[16] = {0};
    locate(m, t, tile, width, at);
    for (int k = 0; k < width * width; k++) pixels[k] = at[k] < 0 ? zeros : m->data + at[k] + c;
}

/* out [POSITIONS] <- B' x B of n channels, `step` apart. */
INLINE void image_vector(const float *const pixels[16], int64_t i, int64_t n, float *out, int64_t step) {
    vec t[4][4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) {
        const vec a = load(pixels[4 * r] + i, n), b = load(pixels[4 * r + 1] + i, n);
        const vec c = load(pixels[4 * r + 2] + i, n), d = load(pixels[4 * r + 3] + i, n);
        t[r][0] = a - c, t[r][1] = b + c, t[r][2] = c - b, t[r][3] = b - d;
    }
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        *(vec *)(out + k * step) = t[0][k] - t[2][k];
        *(vec *)(out + (4 + k) * step) = t[1][k] + t[2][k];
        *(vec *)(out + (8 + k) * step) = t[2][k] - t[1][k];
        *(vec *)(out + (12 + k) * step) = t[1][k] - t[3][k];
    }
}

static void take_image(const images *m, const tiles *t, int64_t tile, int64_t c, int64_t n, float *out, int64_t step) {
    const float *pixels[16];
    int64_t i = 0;
    look(m, t, tile, 4, c, pixels);
    for (; i + LANES <= n; i += LANES) image_vector(pixels, i, LANES, out + i, step);
    if (i < n) image_vector(pixels, i, n - i, out + i, step);
}

/* out [POSITIONS] <- A dy A' of n channels, `step` apart. */
INLINE void gradient_vector(const float *const pixels[4], int64_t i, int64_t n, float *out, int64_t step) {
    vec t[2][4];
#pragma GCC unroll 2
    for (int r = 0; r < 2; r++) {
        const vec a = load(pixels[2 * r] + i, n), b = load(pixels[2 * r + 1] + i, n);
        t[r][0] = a, t[r][1] = a + b, t[r][2] = a - b, t[r][3] = -b;
    }
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        *(vec *)(out + k * step) = t[0][k];
        *(vec *)(out + (4 + k) * step) = t[0][k] + t[1][k];
        *(vec *)(out + (8 + k) * step) = t[0][k] - t[1][k];
        *(vec *)(out + (12 + k) * step) = -t[1][k];
    }
}

static void take_gradient(const images *m, const tiles *t, int64_t tile, int64_t c, int64_t n, float *out,
                          int64_t step) {
    const float *pixels[4];
    int64_t i = 0;
    look(m, t, tile, 2, c, pixels);
    for (; i + LANES <= n; i += LANES) gradient_vector(pixels, i, LANES, out + i, step);
    if (i < n) gradient_vector(pixels, i, n - i, out + i, step);
}

/* ---- forwards, and by data ---------------------------------------------------------------------------------- */

/* to [tiles of 2x2] = the convolution of `from`. */
typedef struct pass {
    const cf_winograd *conv;
    images from, to;
    tiles tiles;
    int64_t in, out;
    int64_t group, groups, chunks; /* tiles of a group; groups of tiles and stretches of `out`: the units of work */
    int64_t weights, values, sums; /* floats of a position, in a thread's room */
    float *rooms;
} pass;

enum { VALUES_ROW = IN + GAP, SUMS_ROW = OUT + GAP };

static pass pass_of(int team, const cf_winograd *conv) {
    const cf_conv *f = &conv->form;
    const bool back = f->op == CF_OP_conv_bw_data;
    const images x = {conv->x, {f->x[0], f->x[1]}, f->in, {0}}, y = {conv->y, {f->y[0], f->y[1]}, f->out, {0}};
    pass p = {.conv = conv, .from = back ? y : x, .to = back ? x : y};
    for (int d = 0; d < 2; d++) p.from.before[d] = back ? 2 - f->pad[d] : f->pad[d];
    p.tiles = tiles_of(f, p.to.size);
    p.in = p.from.channels, p.out = p.to.channels;
    p.chunks = (p.out + OUT - 1) / OUT;
    const int64_t most = p.in > IN ? LARGE_GROUP : SMALL_GROUP;
    p.groups = cf_most((p.tiles.count + most - 1) / most, (team + p.chunks - 1) / p.chunks);
    p.group = cf_round_up((p.tiles.count + p.groups - 1) / p.groups, ROWS);
    p.groups = (p.tiles.count + p.group - 1) / p.group;
    p.weights = IN * OUT + GAP;
    p.values = BLOCK * VALUES_ROW + GAP;
    p.sums = p.group * SUMS_ROW + GAP;
    return p;
}

/* Floats of a thread's room, which stays in the second-level cache. */
static int64_t pass_room(const pass *p) { return POSITIONS * (p->weights + p->values + p->sums); }

/* G w G' of a vector of weights. */
INLINE void weights_vector(const vec w[TAPS], float *out, int64_t step) {
    vec t[4][3];
#pragma GCC unroll 3
    for (int k = 0; k < 3; k++) {
        const vec sum = (w[k] + w[6 + k]) * 0.5f, half = w[3 + k] * 0.5f;
        t[0][k] = w[k], t[1][k] = sum + half, t[2][k] = sum - half, t[3][k] = w[6 + k];
    }
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) {
        const vec sum = (t[r][0] + t[r][2]) * 0.5f, half = t[r][1] * 0.5f;
        *(vec *)(out + 4 * r * step) = t[r][0];
        *(vec *)(out + (4 * r + 1) * step) = sum + half;
        *(vec *)(out + (4 * r + 2) * step) = sum - half;
        *(vec *)(out + (4 * r + 3) * step) = t[r][2];
    }
}

/* Vectors become columns, by interleaving halves as often as a riffle shuffle sorts the cards. */
INLINE void transpose(vec v[LANES]) {
    vec other[LANES];
    for (int round = 1; round < LANES; round *= 2) {
#pragma GCC unroll 16
        for (int i = 0; i < LANES / 2; i++) {
            other[2 * i] = __builtin_shufflevector(v[i], v[i + LANES / 2], EVENS);
            other[2 * i + 1] = __builtin_shufflevector(v[i], v[i + LANES / 2], ODDS);
        }
        memcpy(v, other, sizeof other);
    }
}

/* Forwards: up to LANES channels of x and of y; in memory those of x follow each other, in a panel those of y. */
static void weights_forwards(const pass *p, int64_t in, int64_t ins, int64_t out, int64_t outs, float *to) {
    const float *w = p->conv->weight + out * TAPS * p->in + in;
    vec taps[TAPS][LANES], one[TAPS];
    for (int tap = 0; tap < TAPS; tap++) {
        for (int64_t i = 0; i < LANES; i++)
            taps[tap][i] = i < outs ? load(w + (i * TAPS + tap) * p->in, ins) : (vec){0};
        transpose(taps[tap]);
    }
    for (int64_t i = 0; i < ins; i++) {
        for (int tap = 0; tap < TAPS; tap++) one[tap] = taps[tap][i];
        weights_vector(one, to + i * COLUMNS, p->weights);
    }
}

/* By data: the same channels, of which those of x are made, and the window turned. */
static void weights_turned(const pass *p, int64_t in, int64_t ins, int64_t out, int64_t outs, float *to) {
    for (int64_t i = 0; i < ins; i++) {
        const float *w = p->conv->weight + (in + i) * TAPS * p->out + out;
        vec one[TAPS];
        for (int tap = 0; tap < TAPS; tap++) one[tap] = load(w + (TAPS - 1 - tap) * p->out, outs);
        weights_vector(one, to + i * COLUMNS, p->weights);
    }
}

/* The weights between channels from `in` and from `out` on. */
static void take_weights(const pass *p, int64_t in, int64_t out, float *weights) {
    const int64_t ins = cf_least(IN, p->in - in), outs = cf_least(OUT, p->out - out);
    for (int64_t o = 0; o < outs; o += LANES)
        for (int64_t i = 0; i < ins; i += LANES) {
            float *to = weights + (o / COLUMNS * IN + i) * COLUMNS + o % COLUMNS;
            const int64_t n = cf_least(LANES, ins - i), m = cf_least(LANES, outs - o);
            if (p->conv->form.op == CF_OP_conv) weights_forwards(p, in + i, n, out + o, m, to);
            else weights_turned(p, in + i, n, out + o, m, to);
        }
}

/* Channels of a tile's pixels <- A' sums A, and what follows. */
INLINE void give_vector(const cf_winograd *conv, const float *sums, int64_t step, float *y, const int64_t pixels[4],
                        int64_t c, int64_t n) {
    vec t[2][4];
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        const vec a = *(const vec *)(sums + k * step), b = *(const vec *)(sums + (4 + k) * step);
        const vec e = *(const vec *)(sums + (8 + k) * step), d = *(const vec *)(sums + (12 + k) * step);
        t[0][k] = a + b + e, t[1][k] = b - e - d;
    }
    const vec bias = conv->bias ? load(conv->bias + c, n) : (vec){0};
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        const vec *s = t[k / 2];
        vec v = (k % 2 ? s[1] - s[2] - s[3] : s[0] + s[1] + s[2]) + bias;
        if (pixels[k] < 0) continue;
        if (conv->residual) v += load(conv->residual + pixels[k] + c, n);
        if (conv->relu) v = (vec)((words)v & ~(words)(v <= 0)); /* a NaN stays one */
        store(y + pixels[k] + c, n, v);
    }
}

static void give(const pass *p, int64_t tile, int64_t c, int64_t n, const float *sums) {
    int64_t pixels[4], i = 0;
    locate(&p->to, &p->tiles, tile, 2, pixels);
    for (; i + LANES <= n; i += LANES) give_vector(p->conv, sums + i, p->sums, p->to.data, pixels, c + i, LANES);
    if (i < n) give_vector(p->conv, sums + i, p->sums, p->to.data, pixels, c + i, n - i);
}

/* A group of tiles, and a stretch of the channels that they make.  *kept: the stretch whose weights the room has, where
 * there is but one of channels that are read.  Rows that fill up the last block's are multiplied, too, and not looked
 * at. */
static void pass_unit(const pass *p, int64_t group, int64_t chunk, float *room, int64_t *kept) {
    const int64_t first = group * p->group, n = cf_least(p->group, p->tiles.count - first);
    const int64_t out = chunk * OUT, outs = cf_least(OUT, p->out - out);
    float *const weights = room, *const values = weights + POSITIONS * p->weights;
    float *const sums = values + POSITIONS * p->values;
    for (int64_t in = 0; in < p->in; in += IN) {
        const int64_t ins = cf_least(IN, p->in - in);
        if (*kept != chunk || p->in > IN) take_weights(p, in, out, weights);
        for (int64_t block = 0; block < n; block += BLOCK) {
            const int64_t rows = cf_least(BLOCK, n - block);
            for (int64_t k = 0; k < rows; k++)
                take_image(&p->from, &p->tiles, first + block + k, in, ins, values + k * VALUES_ROW, p->values);
            for (int position = 0; position < POSITIONS; position++)
                for (int64_t j = 0; j < outs; j += COLUMNS)
                    for (int64_t i = 0; i < rows; i += ROWS)
                        multiply_rows(ins, values + position * p->values + i * VALUES_ROW, VALUES_ROW,
                                      weights + position * p->weights + j * IN,
                                      sums + position * p->sums + (block + i) * SUMS_ROW + j, SUMS_ROW, in > 0);
        }
    }
    *kept = chunk;
    for (int64_t k = 0; k < n; k++) give(p, first + k, out, outs, sums + k * SUMS_ROW);
}

static void pass_part(void *context, int64_t from, int64_t to) {
    const pass *p = context;
    float *room = p->rooms + omp_get_thread_num() * pass_room(p);
    int64_t kept = -1;
    for (int64_t k = from; k < to; k++) pass_unit(p, k % p->groups, k / p->groups, room, &kept);
}

static void run_pass(cf_worker *worker, const cf_winograd *conv, float *room) {
    const int team = team_of(worker, &conv->form);
    pass p = pass_of(team, conv);
    p.rooms = room;
    CF_K(parallel)(team, p.groups * p.chunks, 1, pass_part, &p);
}

/* ---- by weights --------------------------------------------------------------------------------------------- */

/* Squares of channels of y and x, over parts of the tiles: the units of work.  The parts of a square are summed in the
 * end. */
typedef struct slopes {
    const cf_winograd *conv;
    images x, dy;
    tiles tiles;
    int64_t outs, ins, parts; /* squares along y's channels and x's; parts of the tiles */
    float *rooms, *sums;      /* sums: [parts][out, TAPS, in], the result itself where there is but one */
} slopes;

enum {
    TILES = 64,  /* of a block */
    SQUARE = 64, /* channels of y, and of x */
    X_ROW = SQUARE + GAP,
    DY_ROW = SQUARE + GAP,
    SLOPES_ROW = SQUARE + GAP,
    X_STEP = TILES * X_ROW + GAP, /* floats of a position */
    DY_STEP = TILES * DY_ROW + GAP,
    SLOPES_STEP = (SQUARE + DY_ROWS) * SLOPES_ROW + GAP,
    SLOPES_ROOM = POSITIONS * (X_STEP + DY_STEP + SLOPES_STEP), /* a thread's, which stays in the second-level cache */
    UNITS = 32,             /* enough for many threads, or for few whose speeds differ */
    LEAST_TILES = 2 * TILES /* of a part */
};

static slopes slopes_of(const cf_winograd *conv) {
    const cf_conv *f = &conv->form;
    slopes s = {.conv = conv,
                .x = {conv->x, {f->x[0], f->x[1]}, f->in, {f->pad[0], f->pad[1]}},
                .dy = {conv->y, {f->y[0], f->y[1]}, f->out, {0}},
                .tiles = tiles_of(f, f->y),
                .outs = (f->out + SQUARE - 1) / SQUARE,
                .ins = (f->in + SQUARE - 1) / SQUARE};
    s.parts =
        cf_least((UNITS + s.outs * s.ins - 1) / (s.outs * s.ins), (s.tiles.count + LEAST_TILES - 1) / LEAST_TILES);
    return s;
}

static int64_t parts_room(const slopes *s) {
    const cf_conv *f = &s->conv->form;
    return s->parts > 1 ? s->parts * cf_round_up(f->out * TAPS * f->in, GAP) : 0;
}

/* dweight [TAPS] <- G' sums G of a vector. */
INLINE void give_slope(const float *sums, float *w, int64_t in, int64_t n) {
    vec t[3][4];
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        const vec a = *(const vec *)(sums + k * SLOPES_STEP), b = *(const vec *)(sums + (4 + k) * SLOPES_STEP);
        const vec c = *(const vec *)(sums + (8 + k) * SLOPES_STEP), d = *(const vec *)(sums + (12 + k) * SLOPES_STEP);
        const vec sum = (b + c) * 0.5f;
        t[0][k] = a + sum, t[1][k] = (b - c) * 0.5f, t[2][k] = sum + d;
    }
#pragma GCC unroll 3
    for (int r = 0; r < 3; r++) {
        const vec sum = (t[r][1] + t[r][2]) * 0.5f;
        store(w + 3 * r * in, n, t[r][0] + sum);
        store(w + (3 * r + 1) * in, n, (t[r][1] - t[r][2]) * 0.5f);
        store(w + (3 * r + 2) * in, n, sum + t[r][3]);
    }
}

static void slopes_unit(const slopes *s, int64_t out, int64_t in, int64_t part, float *room) {
    const cf_conv *f = &s->conv->form;
    const int64_t outs = cf_least(SQUARE, f->out - out), ins = cf_least(SQUARE, f->in - in);
    float *const x = room, *const dy = x + POSITIONS * X_STEP, *const sums = dy + POSITIONS * DY_STEP;
    int64_t begin, end, from, to;
    cf_cpu_share(s->tiles.count, 1, (int)s->parts, (int)part, &begin, &end);
    const int blocks = (int)((end - begin + TILES - 1) / TILES);
    for (int block = 0; block < blocks; block++) {
        cf_cpu_share(end - begin, 1, blocks, block, &from, &to);
        for (int64_t k = from; k < to; k++) {
            take_image(&s->x, &s->tiles, begin + k, in, ins, x + (k - from) * X_ROW, X_STEP);
            take_gradient(&s->dy, &s->tiles, begin + k, out, outs, dy + (k - from) * DY_ROW, DY_STEP);
        }
        for (int position = 0; position < POSITIONS; position++)
            for (int64_t j = 0; j < ins; j += X_WIDE * LANES)
                for (int64_t i = 0; i < outs; i += DY_ROWS)
                    multiply_columns(to - from, dy + position * DY_STEP + i, DY_ROW, x + position * X_STEP + j, X_ROW,
                                     sums + position * SLOPES_STEP + i * SLOPES_ROW + j, SLOPES_ROW, block > 0);
    }
    float *w = s->sums + part * cf_round_up(f->out * TAPS * f->in, GAP) + out * TAPS * f->in + in;
    for (int64_t i = 0; i < outs; i++)
        for (int64_t j = 0; j < ins; j += LANES)
            give_slope(sums + i * SLOPES_ROW + j, w + i * TAPS * f->in + j, f->in, ins - j);
}

static void slopes_part(void *context, int64_t from, int64_t to) {
    const slopes *s = context;
    float *room = s->rooms + omp_get_thread_num() * (int64_t)SLOPES_ROOM;
    for (int64_t k = from; k < to; k++)
        slopes_unit(s, k / s->parts / s->ins * SQUARE, k / s->parts % s->ins * SQUARE, k % s->parts, room);
}

/* The parts' sums, in order. */
static void join_part(void *context, int64_t from, int64_t to) {
    const slopes *s = context;
    const int64_t step = cf_round_up(s->conv->form.out * TAPS * s->conv->form.in, GAP);
    float *restrict w = s->conv->weight;
    memcpy(w + from, s->sums + from, (size_t)(to - from) * sizeof(float));
    for (int64_t part = 1; part < s->parts; part++) {
        const float *restrict sums = s->sums + part * step;
        for (int64_t i = from; i < to; i++) w[i] += sums[i];
    }
}

static void run_slopes(cf_worker *worker, const cf_winograd *conv, float *room) {
    slopes s = slopes_of(conv);
    const int64_t numel = conv->form.out * TAPS * conv->form.in;
    s.sums = s.parts > 1 ? room : conv->weight;
    s.rooms = room + parts_room(&s);
    const int team = team_of(worker, &conv->form);
    CF_K(parallel)(team, s.outs * s.ins * s.parts, 1, slopes_part, &s);
    if (s.parts > 1) CF_K(parallel)(cf_cpu_team(worker, numel * s.parts), numel, CF_UNIT, join_part, &s);
}

/* ---- convolutions ------------------------------------------------------------------------------------------- */

/* The time of it, in multiplications: those of the small kernels, whose tiles are filled up, and as many as a channel's
 * transform takes, that of a weight, and the search for a tile's pixels (measured with AVX2 and AVX-512). */
static double cost_of(const cf_conv *f) {
    enum { CHANNEL = 50, WEIGHT = 160, SEARCH = 2000 };
    const bool back = f->op == CF_OP_conv_bw_data, slopes = f->op == CF_OP_conv_bw_weights;
    const int64_t in = back ? f->out : f->in, out = back ? f->in : f->out;
    const int64_t count = tiles_of(f, back ? f->x : f->y).count, rows = slopes ? count : cf_round_up(count, ROWS);
    const int64_t ins = slopes ? cf_round_up(in, X_WIDE * LANES) : in;
    const int64_t outs = cf_round_up(out, slopes ? DY_ROWS : COLUMNS);
    const int64_t takes = cf_round_up(in, LANES) * ((out + OUT - 1) / OUT);
    const int64_t gives = cf_round_up(out, LANES) * (slopes ? (in + SQUARE - 1) / SQUARE : 1);
    const double tile = (double)POSITIONS * (double)ins * (double)outs + (double)(CHANNEL * (takes + gives) + SEARCH);
    return (double)rows * tile + WEIGHT * (double)in * (double)out;
}

bool CF_K(winograd_takes)(const cf_conv *f) {
    const double margin =
        1.2; /* for direct sums come nearer to the machine's peak than the products of small matrices */
    for (int d = 0; d < 2; d++)
        if (f->kernel[d] != 3 || f->stride[d] != 1 || f->dilation[d] != 1) return false;
    const double direct = TAPS * (double)f->n * (double)(f->y[0] * f->y[1]) * (double)f->in * (double)f->out;
    return f->dtype == CFX_FLOAT32 && f->groups == 1 && direct > margin * cost_of(f);
}

size_t CF_K(winograd_room)(cf_worker *worker, const cf_conv *f) {
    const cf_winograd conv = {.form = *f};
    const int team = team_of(worker, f);
    int64_t floats;
    if (f->op == CF_OP_conv_bw_weights) {
        const slopes s = slopes_of(&conv);
        floats = parts_room(&s) + team * (int64_t)SLOPES_ROOM;
    } else {
        const pass p = pass_of(team, &conv);
        floats = team * pass_room(&p);
    }
    return (size_t)floats * sizeof(float);
}

void CF_K(winograd)(cf_worker *worker, const cf_winograd *conv, void *room) {
    if (conv->form.op == CF_OP_conv_bw_weights) run_slopes(worker, conv, room);
    else run_pass(worker, conv, room);
}
