/* winograd_test.c: Winograd's method on any shape, also on those for which the row takes another way. */
#include "test.h"

#include "cpu/kernels/winograd.h"
#include "forms.h"

/* ---- calls -------------------------------------------------------------------------------------------------- */

typedef struct method {
    const char *isa;
    bool (*takes)(const cf_conv *form);
    size_t (*room)(cf_worker *worker, const cf_conv *form);
    void (*run)(cf_worker *worker, const cf_winograd *conv, void *room);
} method;

#define DECLARE(isa)                                                      \
    bool cf_k_winograd_takes_##isa(const cf_conv *form);                  \
    size_t cf_k_winograd_room_##isa(cf_worker *worker, const cf_conv *f); \
    void cf_k_winograd_##isa(cf_worker *worker, const cf_winograd *conv, void *room);
#define METHOD(isa) \
    { #isa, cf_k_winograd_takes_##isa, cf_k_winograd_room_##isa, cf_k_winograd_##isa }
DECLARE(base)
#if defined(__x86_64__) && !SANITIZED
DECLARE(avx2)
DECLARE(avx512)
static const method methods[] = {METHOD(base), METHOD(avx2), METHOD(avx512)};
#else
static const method methods[] = {METHOD(base)};
#endif

static const method *method_of(const machine *m) {
    const method *found = methods;
    while (strcmp(found->isa, m->isa) != 0) found++;
    return found;
}

static cf_conv conv_of(const form *f, int op) {
    cf_conv conv = {.n = f->n, .in = f->in, .out = f->out, .groups = 1, .op = op, .dtype = CFX_FLOAT32, .act = -1};
    for (int d = 0; d < 2; d++) {
        conv.x[d] = f->size[d], conv.y[d] = result_size(f, d);
        conv.kernel[d] = 3, conv.stride[d] = conv.dilation[d] = 1, conv.pad[d] = f->pad[2 * d];
    }
    return conv;
}

/* Room that begins with what is no number, and has a margin behind it that nothing may touch. */
static void run_in_room(machine *m, const cf_winograd *conv) {
    enum { MARGIN = 4096 };
    const size_t bytes = (method_of(m)->room(&m->worker, &conv->form) + 63) / 64 * 64;
    unsigned char *room = aligned_alloc(64, bytes + MARGIN);
    memset(room, 0xFF, bytes + MARGIN);
    method_of(m)->run(&m->worker, conv, room);
    int touched = 0;
    for (size_t k = bytes; k < bytes + MARGIN; k++) touched += room[k] != 0xFF;
    CHECK_EQ(touched, 0);
    free(room);
}

static void run_op(machine *m, const form *f, const tensors *t, int op) {
    cf_winograd conv = {.form = conv_of(f, op), .x = t->x.data, .weight = t->w.data, .y = t->y.data};
    if (op != CF_OP_conv) conv.y = t->dy.data;
    if (op == CF_OP_conv_bw_data) conv.x = t->dx.data;
    if (op == CF_OP_conv_bw_weights) conv.weight = t->dw.data;
    run_in_room(m, &conv);
}

static const int ops[] = {CF_OP_conv, CF_OP_conv_bw_data, CF_OP_conv_bw_weights};
enum { OPS = 3 };

/* ---- forms -------------------------------------------------------------------------------------------------- */

static form square(int64_t n, int64_t size, int64_t in, int64_t out) {
    return (form){.n = n,
                  .size = {size, size},
                  .in = in,
                  .out = out,
                  .groups = 1,
                  .kernel = {3, 3},
                  .stride = {1, 1},
                  .pad = {1, 1, 1, 1},
                  .dilation = {1, 1}};
}

/* Channels on both sides of a vector, of a panel and of a stretch; pads that show a pixel to all of a window or to
 * none. */
static form random_form(void) {
    static const int64_t channels[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 70, 127, 129, 140};
    for (;;) {
        form f = square(one_of(1, 3), 1, channels[one_of(0, 17)], channels[one_of(0, 17)]);
        if (f.in * f.out > 5000) f.n = 1;
        for (int d = 0; d < 2; d++) f.size[d] = one_of(1, f.in * f.out > 5000 ? 7 : 20);
        for (int side = 0; side < 4; side++) f.pad[side] = one_of(0, 4);
        if (result_size(&f, 0) > 0 && result_size(&f, 1) > 0) return f;
    }
}

static void say(const machine *m, const form *f) {
    printf("# %s, team %d: [%lld, %lld, %lld, %lld] to %lld, pad %lld %lld %lld %lld\n", m->isa, m->team,
           (long long)f->n, (long long)f->size[0], (long long)f->size[1], (long long)f->in, (long long)f->out,
           (long long)f->pad[0], (long long)f->pad[1], (long long)f->pad[2], (long long)f->pad[3]);
}

static double largest(const double *x, int64_t n) {
    double most = 0;
    for (int64_t k = 0; k < n; k++) most = fmax(most, x[k]);
    return most;
}

TEST(any_shape_is_right_in_all_directions) {
    EACH_MACHINE(m) {
        for (int k = 0; k < (SANITIZED ? 20 : 16); k++) {
            const form f = random_form();
            tensors t = tensors_of(&f, CFX_FLOAT32);
            exact e = exact_of(&f, &t.x, &t.w, &t.dy);
            const cf_view *const got[] = {&t.y, &t.dx, &t.dw};
            for (int op = 0; op < OPS; op++) {
                run_op(m, &f, &t, ops[op]);
                const int64_t n = cf_view_numel(got[op]);
                /* A pixel's neighbours in its tile go into it, too, and out again. */
                const double tolerance = rounding(CFX_FLOAT32, largest(e.magnitude[op], n));
                int right = CHECK(edges_are_kept());
                for (int64_t at = 0; at < n && right; at++) right = near_at(m, got[op], at, e.value[op][at], tolerance);
                if (!right) say(m, &f);
            }
            exact_free(&e);
            free_views();
        }
    }
}

TEST(any_team_makes_the_same_bits) {
    static uint64_t kept[OPS];
    EACH_MACHINE(m) {
        const form f = square(2, SANITIZED ? 12 : 27, 70, 130);
        tensors t = tensors_of(&f, CFX_FLOAT32);
        for (int64_t at = 0; at < cf_view_numel(&t.dy); at++) set(&t.dy, at, get(&t.dy, at) / 3);
        for (int64_t at = 0; at < cf_view_numel(&t.x); at++) set(&t.x, at, get(&t.x, at) / 3);
        const cf_view *const got[] = {&t.y, &t.dx, &t.dw};
        for (int op = 0; op < OPS; op++) {
            run_op(m, &f, &t, ops[op]);
            same_as_alone(m, bits_of(got[op]), &kept[op]);
        }
        free_views();
    }
}

/* ---- bias, residual, relu ----------------------------------------------------------------------------------- */

TEST(bias_residual_and_relu_come_in_this_order_and_a_NaN_stays_one) {
    EACH_MACHINE(m) {
        if (m->team > 2) continue;
        for (int k = 0; k < 8; k++) {
            const form f = square(2, 7, 5, 35);
            tensors t = tensors_of(&f, CFX_FLOAT32);
            cf_view bias = VECTOR(CFX_FLOAT32, f.out), residual = view(CFX_FLOAT32, PACKED, 4, t.y.shape);
            fill_random(&bias, -1, 1);
            fill_random(&residual, -1, 1);
            set(&residual, 40, NAN);
            exact e = exact_of(&f, &t.x, &t.w, &t.dy);
            const cf_winograd conv = {.form = conv_of(&f, CF_OP_conv),
                                      .x = t.x.data,
                                      .weight = t.w.data,
                                      .y = t.y.data,
                                      .bias = k & 1 ? bias.data : NULL,
                                      .residual = k & 2 ? residual.data : NULL,
                                      .relu = k & 4};
            run_in_room(m, &conv);
            for (int64_t at = 0; at < cf_view_numel(&t.y); at++) {
                const double sum =
                    e.value[0][at] + (k & 1 ? get(&bias, at % f.out) : 0) + (k & 2 ? get(&residual, at) : 0);
                const double expected = k & 4 && sum <= 0 ? 0 : sum;
                if (!near_at(m, &t.y, at, expected, rounding(CFX_FLOAT32, 45))) break;
            }
            exact_free(&e);
            free_views();
        }
    }
}

/* ---- what is not finite --------------------------------------------------------------------------------------- */

/* Pixel k of an image as wide as `size`: whether it lies in the window of a result's pixel. */
static bool sees(const form *f, int64_t of, int64_t pixel) {
    const int64_t width = result_size(f, 1), row = pixel / f->size[1] - of / width + f->pad[0];
    const int64_t col = pixel % f->size[1] - of % width + f->pad[2];
    return row >= 0 && row < 3 && col >= 0 && col < 3;
}

TEST(what_is_not_finite_reaches_those_whose_window_has_it) {
    static const double bad[] = {NAN, INFINITY, -INFINITY};
    EACH_MACHINE(m) {
        if (m->team > 2) continue;
        for (int k = 0; k < 30; k++) {
            form f = square(1, 8, 3, 5);
            f.size[1] = 5;
            f.pad[0] = k % 3;
            tensors t = tensors_of(&f, CFX_FLOAT32);
            const int64_t xs = f.size[0] * f.size[1], ys = result_size(&f, 0) * result_size(&f, 1);
            const int64_t x = one_of(0, xs - 1), y = one_of(0, ys - 1);
            int64_t wrong = 0;
            set(&t.x, x * f.in + 1, bad[k % 3]);
            run_op(m, &f, &t, CF_OP_conv);
            run_op(m, &f, &t, CF_OP_conv_bw_weights);
            for (int64_t at = 0; at < ys * f.out; at++) wrong += isfinite(get(&t.y, at)) == sees(&f, at / f.out, x);
            /* Of the gradient by weights other taps of the channel may be lost, but none is saved. */
            for (int64_t tap = 0; tap < 9; tap++) {
                const int64_t row = x / f.size[1] - tap / 3 + f.pad[0], col = x % f.size[1] - tap % 3 + f.pad[2];
                const bool meets = row >= 0 && row < result_size(&f, 0) && col >= 0 && col < result_size(&f, 1);
                wrong += meets && isfinite(get(&t.dw, tap * f.in + 1));
                wrong += !isfinite(get(&t.dw, tap * f.in));
            }
            set(&t.dy, y * f.out + 2, bad[k % 3]);
            run_op(m, &f, &t, CF_OP_conv_bw_data);
            for (int64_t at = 0; at < xs * f.in; at++) wrong += isfinite(get(&t.dx, at)) == sees(&f, y, at / f.in);
            if (!CHECK_EQ(wrong, 0)) say(m, &f);
            free_views();
        }
    }
}

/* ---- how near ----------------------------------------------------------------------------------------------- */

/* The root of the mean square of got's distance, relative to that of what is right. */
static double distance(const cf_view *got, const double *right) {
    double far = 0, size = 0;
    for (int64_t at = 0; at < cf_view_numel(got); at++) {
        const double d = get(got, at) - right[at];
        far += d * d;
        size += right[at] * right[at];
    }
    return sqrt(far / size);
}

static void run_directly(machine *m, const form *f, const tensors *t, int op) {
    const cf_conv conv = conv_of(f, op);
    cf_dnnl_conv found;
    if (!CHECK_STATUS(cf_dnnl_conv_find(&m->worker, &conv, &found), CFX_OK)) return;
    void *room = aligned_alloc(64, (found.room + 63) / 64 * 64);
    CHECK_STATUS(cf_dnnl_conv_run(&m->worker, &conv, &found, op == CF_OP_conv_bw_data ? t->dx.data : t->x.data,
                                  op == CF_OP_conv_bw_weights ? t->dw.data : t->w.data, NULL,
                                  op == CF_OP_conv ? t->y.data : t->dy.data, room),
                 CFX_OK);
    free(room);
}

static void fill_around(const cf_view *v, double mean) {
    for (int64_t at = 0; at < cf_view_numel(v); at++) set(v, at, mean + random_bits() * 0x1p-30 - 1);
}

/* Beside oneDNN's direct sums, of data around 0 and of data whose mean is 30 times what they vary by. */
TEST(sums_are_as_near_as_direct_ones) {
    static const double means[] = {0, 30};
    EACH_MACHINE(m) {
        if (m->team != 1 || SANITIZED) continue;
        for (int k = 0; k < 2; k++) {
            const form f = square(1, 13, 64, 64);
            tensors t = tensors_of(&f, CFX_FLOAT32);
            fill_around(&t.x, means[k]);
            fill_around(&t.dy, means[k]);
            fill_around(&t.w, 0);
            exact e = exact_of(&f, &t.x, &t.w, &t.dy);
            const cf_view *const got[] = {&t.y, &t.dx, &t.dw};
            for (int op = 0; op < OPS; op++) {
                run_op(m, &f, &t, ops[op]);
                const double ours = distance(got[op], e.value[op]);
                run_directly(m, &f, &t, ops[op]);
                const double direct = distance(got[op], e.value[op]);
                printf("# %s, mean %g, direction %d: %.2g, directly %.2g\n", m->isa, means[k], op, ours, direct);
                CHECK(ours <= 3 * direct + 0x1p-24);
            }
            exact_free(&e);
            free_views();
        }
    }
}

/* ---- where it is used --------------------------------------------------------------------------------------- */

TEST(it_takes_large_windows_of_3_by_3_and_no_others) {
    EACH_MACHINE(m) {
        const method *of = method_of(m);
        for (int op = 0; op < OPS; op++) {
            const form f = square(8, 28, 128, 128), none = square(0, 28, 128, 128);
            const form narrow = square(8, 28, 128, 1), tiny = square(1, 1, 64, 64);
            const cf_conv conv = conv_of(&f, ops[op]);
            cf_conv other[] = {conv,
                               conv,
                               conv,
                               conv,
                               conv,
                               conv_of(&none, ops[op]),
                               conv_of(&narrow, ops[op]),
                               conv_of(&tiny, ops[op])};
            CHECK(of->takes(&conv));
            other[0].kernel[1] = 1;
            other[1].stride[0] = 2;
            other[2].dilation[1] = 2;
            other[3].groups = 2;
            other[4].dtype = CFX_BFLOAT16;
            for (size_t k = 0; k < sizeof other / sizeof *other; k++) CHECK(!of->takes(&other[k]));
        }
    }
}
