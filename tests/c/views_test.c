/* views_test.c: views by random chains, against plain host code: a list that says for each element of the view in which
 * place of a packed array it lies. */
#include <stdarg.h>

#include "test.h"

#include "chance.h"
#include "queues.h"

enum { STEPS = 8, ROOM = 384 /* elements of a view at most */, TEXT = 1024 };

static cfx_context *context;
static cfx_device *cpu;
static void setup(void) {
    context = new_context("cpu");
    cpu = cfx_device_at(context, 0);
}
static void teardown(void) {
    CHECK_EQ(blocks_of(cpu), 0);
    cfx_context_free(context);
}

/* ---- chance ------------------------------------------------------------------------------------------ */

/* 0 to n - 1; 0 for n = 0. */
static int64_t below(int64_t n) { return n ? (int64_t)(bits() % (uint64_t)n) : 0; }

/* ---- a view, and what it should be ------------------------------------------------------------------- */

typedef struct chain {
    cfx_tensor view, whole; /* whole: all of the view's buffer, packed */
    int ndim;
    int64_t shape[CFX_MAX_DIMS], n;
    int64_t at[ROOM];     /* [n]: the place of each element in the buffer */
    float values[ROOM];   /* [room] of the buffer */
    int64_t origin[ROOM]; /* [room]: the element of the first tensor that each place has come from */
    int64_t room;
    char text[TEXT]; /* the steps so far */
} chain;

static void note(chain *c, const char *format, ...) {
    const size_t used = strlen(c->text);
    va_list list;
    va_start(list, format);
    vsnprintf(c->text + used, TEXT - used, format, list);
    va_end(list);
}
static void note_shape(chain *c, const char *name, int ndim, const int64_t *shape) {
    char text[192];
    note(c, "%s%s ", name, cf_shape_text(ndim, shape, text));
}

static int64_t product(int ndim, const int64_t *shape) {
    int64_t n = 1;
    for (int d = 0; d < ndim; d++) n *= shape[d];
    return n;
}

/* The position of element e of a packed array of that shape. */
static void position_of(int64_t e, int ndim, const int64_t *shape, int64_t *position) {
    for (int d = ndim - 1; d >= 0; d--) {
        position[d] = e % shape[d];
        e /= shape[d];
    }
}
static int64_t element_of(const int64_t *position, int ndim, const int64_t *shape) {
    int64_t e = 0;
    for (int d = 0; d < ndim; d++) e = e * shape[d] + position[d];
    return e;
}

/* Gives the chain a new shape, of which the element at `position` is the old one at `from(position)`. */
typedef void (*from)(const int64_t *numbers, const int64_t *position, int64_t *old);
static void become(chain *c, int ndim, const int64_t *shape, from f, const int64_t *numbers) {
    int64_t at[ROOM], position[CFX_MAX_DIMS] = {0}, old[CFX_MAX_DIMS] = {0};
    const int64_t n = product(ndim, shape);
    for (int64_t e = 0; e < n; e++) {
        position_of(e, ndim, shape, position);
        f(numbers, position, old);
        at[e] = c->at[element_of(old, c->ndim, c->shape)];
    }
    memcpy(c->at, at, (size_t)n * sizeof *at);
    memmove(c->shape, shape, (size_t)ndim * sizeof *shape);
    c->ndim = ndim;
    c->n = n;
}

/* The view lies in a buffer of its own now. */
static void become_packed(chain *c) {
    float values[ROOM];
    int64_t origin[ROOM];
    for (int64_t e = 0; e < c->n; e++) {
        values[e] = c->values[c->at[e]];
        origin[e] = c->origin[c->at[e]];
        c->at[e] = e;
    }
    memcpy(c->values, values, sizeof values);
    memcpy(c->origin, origin, sizeof origin);
    c->room = c->n;
}

/* Takes `next` for the view. */
static void take(chain *c, cfx_tensor *next) {
    if (next->_buffer != c->view._buffer) {
        become_packed(c);
        cfx_release(&c->whole);
        c->whole = *next;
        cf_buffer_retain(next->_buffer);
        cf_cover(&c->whole, CFX_FLOAT32, 1, &c->room);
    }
    cfx_release(&c->view);
    c->view = *next;
}

static void start(chain *c) {
    memset(c, 0, sizeof *c);
    c->ndim = (int)below(6);
    for (int d = 0; d < c->ndim; d++) c->shape[d] = below(20) ? (int64_t[]){1, 1, 2, 3}[below(4)] : 0;
    c->n = c->room = product(c->ndim, c->shape);
    for (int64_t e = 0; e < c->n; e++) c->at[e] = c->origin[e] = e, c->values[e] = (float)(e + 1);
    note_shape(c, "", c->ndim, c->shape);
    CHECK_STATUS(cfx_from_host(cpu, CFX_FLOAT32, c->ndim, c->shape, c->values, &c->view), CFX_OK);
    CHECK_STATUS(cfx_detach(&c->view, &c->whole), CFX_OK);
    cf_cover(&c->whole, CFX_FLOAT32, 1, &c->room);
}
static void finish(chain *c) {
    cfx_release(&c->view);
    cfx_release(&c->whole);
}

/* ---- steps: each is done on both sides; false: it does not apply ------------------------------------- */

static void from_same(const int64_t *numbers, const int64_t *position, int64_t *old) {
    (void)numbers;
    memcpy(old, position, CFX_MAX_DIMS * sizeof *old);
}
static void from_slice(const int64_t *k /* dim, start, step */, const int64_t *position, int64_t *old) {
    from_same(NULL, position, old);
    old[k[0]] = k[1] + position[k[0]] * k[2];
}
static void from_select(const int64_t *k /* dim, i */, const int64_t *position, int64_t *old) {
    for (int d = 0, p = 0; d < CFX_MAX_DIMS; d++) old[d] = d == k[0] ? k[1] : position[p++];
}
static void from_unsqueezed(const int64_t *k /* dim */, const int64_t *position, int64_t *old) {
    for (int d = 0, p = 0; d < CFX_MAX_DIMS; d++)
        if (d != k[0]) old[p++] = position[d];
}
static void from_permuted(const int64_t *k /* dims */, const int64_t *position, int64_t *old) {
    for (int d = 0; d < CFX_MAX_DIMS; d++) old[k[d]] = position[d];
}
static void from_expanded(const int64_t *k /* new dims, then 1 for each dim that is stretched */,
                          const int64_t *position, int64_t *old) {
    for (int64_t d = k[0]; d < CFX_MAX_DIMS; d++) old[d - k[0]] = k[1 + d - k[0]] ? 0 : position[d];
}
static void from_diagonal(const int64_t *k /* ndim */, const int64_t *position, int64_t *old) {
    from_same(NULL, position, old);
    old[k[0] - 1] = position[k[0] - 2];
}
static void from_flipped(const int64_t *k /* bits, sizes */, const int64_t *position, int64_t *old) {
    for (int d = 0; d < CFX_MAX_DIMS; d++) old[d] = k[0] >> d & 1 ? k[1 + d] - 1 - position[d] : position[d];
}

static bool slice(chain *c) {
    if (!c->ndim) return false;
    const int dim = (int)below(c->ndim);
    const int64_t size = c->shape[dim], step = 1 + below(3), first = below(size + 1);
    const int64_t most = first < size ? (size - 1 - first) / step + 1 : 0;
    const int64_t count = below(10) ? (most ? 1 + below(most) : 0) : 0;
    cfx_tensor next = {0};
    note(c, "slice(%d, %lld, %lld, %lld) ", dim, (long long)first, (long long)count, (long long)step);
    CHECK_STATUS(cfx_slice(&c->view, dim, first, count, step, &next), CFX_OK);
    int64_t shape[CFX_MAX_DIMS];
    memcpy(shape, c->shape, sizeof shape);
    shape[dim] = count;
    become(c, c->ndim, shape, from_slice, (int64_t[]){dim, first, step});
    take(c, &next);
    return true;
}

static bool select_one(chain *c) {
    if (!c->ndim) return false;
    const int dim = (int)below(c->ndim);
    if (!c->shape[dim]) return false;
    const int64_t i = below(c->shape[dim]);
    cfx_tensor next = {0};
    const bool squeeze = c->shape[dim] == 1 && below(2);
    note(c, squeeze ? "squeeze(%d) " : "select(%d, %lld) ", dim, (long long)i);
    CHECK_STATUS(squeeze ? cfx_squeeze(&c->view, dim, &next) : cfx_select(&c->view, dim, i, &next), CFX_OK);
    int64_t shape[CFX_MAX_DIMS];
    int n = 0;
    for (int d = 0; d < c->ndim; d++)
        if (d != dim) shape[n++] = c->shape[d];
    become(c, n, shape, from_select, (int64_t[]){dim, i});
    take(c, &next);
    return true;
}

static bool unsqueeze(chain *c) {
    if (c->ndim > 5) return false;
    const int dim = (int)below(c->ndim + 1);
    cfx_tensor next = {0};
    note(c, "unsqueeze(%d) ", dim);
    CHECK_STATUS(cfx_unsqueeze(&c->view, dim, &next), CFX_OK);
    int64_t shape[CFX_MAX_DIMS];
    for (int d = 0, k = 0; d <= c->ndim; d++) shape[d] = d == dim ? 1 : c->shape[k++];
    become(c, c->ndim + 1, shape, from_unsqueezed, (int64_t[]){dim});
    take(c, &next);
    return true;
}

static bool permute(chain *c) {
    int32_t dims[CFX_MAX_DIMS];
    int64_t wide[CFX_MAX_DIMS], shape[CFX_MAX_DIMS];
    if (c->ndim < 2) return false;
    for (int d = 0; d < CFX_MAX_DIMS; d++) dims[d] = d;
    for (int d = c->ndim - 1; d > 0; d--) {
        const int other = (int)below(d + 1), kept = dims[d];
        dims[d] = dims[other];
        dims[other] = kept;
    }
    for (int d = 0; d < CFX_MAX_DIMS; d++) wide[d] = dims[d];
    for (int d = 0; d < c->ndim; d++) shape[d] = c->shape[dims[d]];
    cfx_tensor next = {0};
    note_shape(c, "permute", c->ndim, wide);
    CHECK_STATUS(cfx_permute(&c->view, c->ndim, dims, &next), CFX_OK);
    become(c, c->ndim, shape, from_permuted, wide);
    take(c, &next);
    return true;
}

static bool expand(chain *c) {
    int64_t shape[CFX_MAX_DIMS], numbers[CFX_MAX_DIMS + 1] = {0};
    const int lead = c->ndim < 5 ? (int)below(2) : 0;
    for (int d = 0; d < lead; d++) shape[d] = below(4);
    for (int d = 0; d < c->ndim; d++) {
        const bool stretched = c->shape[d] == 1 && below(3);
        shape[lead + d] = stretched ? below(4) : c->shape[d];
        numbers[1 + d] = stretched;
    }
    numbers[0] = lead;
    if (product(c->ndim + lead, shape) > ROOM) return false;
    cfx_tensor next = {0};
    note_shape(c, "expand", c->ndim + lead, shape);
    CHECK_STATUS(cfx_expand(&c->view, c->ndim + lead, shape, &next), CFX_OK);
    become(c, c->ndim + lead, shape, from_expanded, numbers);
    take(c, &next);
    return true;
}

static bool diagonal(chain *c) {
    if (c->ndim < 2) return false;
    cfx_tensor next = {0};
    note(c, "diagonal ");
    CHECK_STATUS(cfx_diagonal(&c->view, &next), CFX_OK);
    int64_t shape[CFX_MAX_DIMS];
    memcpy(shape, c->shape, sizeof shape);
    if (shape[c->ndim - 1] < shape[c->ndim - 2]) shape[c->ndim - 2] = shape[c->ndim - 1];
    become(c, c->ndim - 1, shape, from_diagonal, (int64_t[]){c->ndim});
    take(c, &next);
    return true;
}

static bool flip(chain *c) {
    int32_t dims[CFX_MAX_DIMS], n = 0;
    int64_t numbers[CFX_MAX_DIMS + 1] = {0};
    for (int d = 0; d < c->ndim; d++) {
        numbers[1 + d] = c->shape[d];
        if (!below(2)) continue;
        dims[n++] = d;
        numbers[0] |= (int64_t)1 << d;
    }
    cfx_tensor next = {0};
    note(c, "flip(%llx) ", (long long)numbers[0]);
    CHECK_STATUS(cfx_flip(&c->view, n, dims, &next), CFX_OK);
    become(c, c->ndim, c->shape, from_flipped, numbers);
    take(c, &next);
    return true;
}

/* A random shape of n elements; returns ndim. */
static int random_shape(int64_t n, int64_t *shape) {
    int ndim = 0;
    if (n == 0) {
        for (ndim = 0; ndim < 3; ndim++) shape[ndim] = below(4);
        shape[below(3)] = 0;
        return ndim;
    }
    while (n > 1 && ndim < 5) {
        int64_t factor = 2 + below(5);
        while (n % factor) factor = factor > 6 ? n : factor + 1;
        shape[ndim++] = factor;
        n /= factor;
        if (!below(3)) shape[ndim++] = 1;
    }
    if (n > 1 || !below(3)) shape[ndim++] = n;
    return ndim;
}

static bool reshape(chain *c) {
    int64_t shape[CFX_MAX_DIMS];
    const int ndim = random_shape(c->n, shape);
    cfx_tensor next = {0};
    note_shape(c, "reshape", ndim, shape);
    CHECK_STATUS(cfx_reshape(&c->view, ndim, shape, &next), CFX_OK);
    memcpy(c->shape, shape, sizeof shape);
    c->ndim = ndim;
    take(c, &next);
    return true;
}

/* Writes through the view, where no two of its elements share a place. */
static bool fill_through(chain *c) {
    bool shared = false;
    for (int64_t e = 0; e < c->n; e++)
        for (int64_t other = 0; other < e; other++) shared = shared || c->at[e] == c->at[other];
    const double value = (double)below(1000);
    note(c, "fill(%g) ", value);
    if (!c->n) return false;
    CHECK_STATUS(cfx_fill(&c->view, value), shared ? CFX_EARG : CFX_OK);
    for (int64_t e = 0; e < c->n && !shared; e++) c->values[c->at[e]] = (float)value;
    return true;
}

typedef bool (*step)(chain *c);
static const step steps[] = {slice,  reshape, permute,  slice, select_one,  unsqueeze,
                             expand, reshape, diagonal, flip,  fill_through};
enum { KINDS = sizeof steps / sizeof *steps };

/* ---- checks -------------------------------------------------------------------------------------------- */

static bool same(const char *what, chain *c, const cfx_tensor *x, int64_t n, const float *expected) {
    float got[ROOM] = {0};
    if (!CHECK_EQ(cf_numel(x), n) || !CHECK_STATUS(cfx_read(x, got, (size_t)n * sizeof *got), CFX_OK)) return false;
    for (int64_t e = 0; e < n; e++) {
        if (got[e] == expected[e]) continue;
        note(c, ": %s: element %lld: expected %g, got %g", what, (long long)e, (double)expected[e], (double)got[e]);
        return false;
    }
    return true;
}

/* The view's shape and values, as they are read from where they lie and as a kernel reads them. */
static bool holds(chain *c) {
    float expected[ROOM] = {0};
    cfx_tensor packed = {0};
    for (int64_t e = 0; e < c->n; e++) expected[e] = c->values[c->at[e]];
    bool good = c->view._ndim == c->ndim && memcmp(c->view._shape, c->shape, (size_t)c->ndim * sizeof *c->shape) == 0;
    if (!good) note(c, ": the shape differs");
    good = good && same("read", c, &c->view, c->n, expected) && CHECK_STATUS(cfx_clone(&c->view, &packed), CFX_OK) &&
           same("clone", c, &packed, c->n, expected);
    cfx_release(&packed);
    return good;
}

/* Random steps; false, and what they were, where one is wrong. */
static bool walk(chain *c, int kinds) {
    const int count = 1 + (int)below(STEPS);
    for (int k = 0; k < count; k++)
        if (steps[below(kinds)](c) && !holds(c)) return false;
    return true;
}

/* Runs all chains and prints the shortest of those that fail. */
static void try_chains(bool (*try)(chain *c)) {
    static chain c;
    char shortest[TEXT] = "";
    const int chains = fuzz_rounds(SANITIZED ? 4000 : 20000);
    int failures = 0;
    setup();
    for (int seed = 1; seed <= chains; seed++) {
        state = (uint64_t)seed;
        start(&c);
        if (!try(&c)) {
            if (!failures++ || strlen(c.text) < strlen(shortest)) snprintf(shortest, sizeof shortest, "%s", c.text);
        }
        finish(&c);
    }
    if (!CHECK_EQ(failures, 0)) printf("# of %d chains; the shortest: %s\n", chains, shortest);
    teardown();
}

static bool try_writes(chain *c) { return walk(c, KINDS) && same("the buffer", c, &c->whole, c->room, c->values); }

TEST(a_view_of_any_chain_of_views_shows_and_writes_its_own_elements_alone) { try_chains(try_writes); }

/* Each element of the first tensor gets what is given to all the elements that come from it. */
static bool try_gradient(chain *c) {
    float weights[ROOM] = {0}, expected[ROOM] = {0};
    cfx_tensor x = {0}, w = {0}, product = {0}, loss = {0}, gradient = {0};
    cfx_tape *tape = NULL;
    const int64_t n = c->n;
    CHECK_STATUS(cfx_detach(&c->view, &x), CFX_OK);
    cfx_release(&c->view);
    CHECK_STATUS(cfx_tape_begin(context, 1, (cfx_tensor *[]){&x}, &tape), CFX_OK);
    CHECK_STATUS(cfx_retain(&x, &c->view), CFX_OK);
    bool good = walk(c, KINDS - 1);
    for (int64_t e = 0; e < c->n; e++) {
        weights[e] = (float)(1 + below(9));
        expected[c->origin[c->at[e]]] += weights[e];
    }
    CHECK_STATUS(cfx_from_host(cpu, CFX_FLOAT32, c->ndim, c->shape, weights, &w), CFX_OK);
    CHECK_STATUS(cfx_binary(CF_OP_mul, &c->view, &w, &product), CFX_OK);
    CHECK_STATUS(cfx_reduce(CF_OP_sum, &product, 0, NULL, 0, 0, &loss), CFX_OK);
    CHECK_STATUS(cfx_tape_backward(tape, &loss, (cfx_tensor *[]){&gradient}, 0), CFX_OK);
    cfx_tape_end(&tape);
    good = good && same("gradient", c, &gradient, n, expected);
    cfx_release(&x);
    cfx_release(&w);
    cfx_release(&product);
    cfx_release(&loss);
    cfx_release(&gradient);
    return good;
}

TEST(a_gradient_finds_its_way_back_through_any_chain_of_views) { try_chains(try_gradient); }

/* One operation on x; the second result is released. */
static cfx_status operate(int kind, const cfx_tensor *x, const cfx_tensor *other, cfx_tensor *out) {
    cfx_tensor t = {0}, ids = {0};
    const int32_t last = x->_ndim - 1, first[] = {0};
    cfx_status status = CFX_OK;
    switch (kind) {
    case 0:
        if (x->_ndim < 2) return cfx_matmul(x, x, out);
        status = cfx_transpose(other, last - 1, last, &t);
        if (status == CFX_OK) status = cfx_matmul(x, &t, out);
        break;
    case 1: status = cfx_dense(x, x->_ndim == 2 ? x : other, NULL, -1, out); break;
    case 2: status = cfx_reduce(CF_OP_sum, x, 1, first, 0, 0, out); break;
    case 3: status = cfx_reduce(CF_OP_max, x, 1, &last, 0, 0, out); break;
    case 4: status = cfx_binary(CF_OP_add, x, other, out); break;
    case 5: status = cfx_sort(x, 0, 1, out, &ids); break;
    case 6: status = cfx_concat(2, (const cfx_tensor *[]){x, other}, last, out); break;
    case 7: status = cfx_layernorm(x, NULL, NULL, 1e-5, out); break;
    case 8: status = cfx_softmax(CF_OP_softmax, x, 0, out); break;
    case 9: status = cfx_tri(x, 1, 0, out); break;
    default: status = cfx_loss(CF_OP_mse, x, other, 0, CFX_SUM, out);
    }
    cfx_release(&t);
    cfx_release(&ids);
    return status;
}

static bool try_operations(chain *c) {
    const bool walked = walk(c, KINDS - 1);
    bool good = walked;
    cfx_tensor packed = {0}, other = {0}, got = {0}, expected = {0};
    if (!walked || !c->ndim || !c->n) return walked;
    const int kind = (int)below(11);
    note(c, "operation %d ", kind);
    CHECK_STATUS(cfx_clone(&c->view, &packed), CFX_OK);
    CHECK_STATUS(cfx_detach(below(2) ? &c->view : &packed, &other), CFX_OK);
    /* not every operation takes every shape: then it takes neither */
    if (operate(kind, &packed, &packed, &expected) == CFX_OK) {
        static float values[ROOM * ROOM], found[ROOM * ROOM];
        const size_t bytes = (size_t)cf_numel(&expected) * sizeof(float);
        CHECK(bytes <= sizeof values);
        good = CHECK_STATUS(operate(kind, &c->view, &other, &got), CFX_OK) && CHECK(cf_same_shape(&got, &expected)) &&
               CHECK_STATUS(cfx_read(&expected, values, bytes), CFX_OK) &&
               CHECK_STATUS(cfx_read(&got, found, bytes), CFX_OK);
        for (size_t e = 0; e < bytes / sizeof(float) && good; e++) {
            good = fabsf(values[e] - found[e]) <= 1e-5f * fabsf(values[e]);
            if (!good) note(c, ": expected %g, got %g", (double)values[e], (double)found[e]);
        }
    }
    cfx_release(&packed);
    cfx_release(&other);
    cfx_release(&got);
    cfx_release(&expected);
    return good;
}

TEST(operations_see_of_any_chain_of_views_what_they_see_of_a_packed_copy) { try_chains(try_operations); }

/* ---- sizes --------------------------------------------------------------------------------------------- */

TEST(a_slice_never_leaves_its_dimension) {
    static const int64_t numbers[] = {INT64_MIN,     -2,       -1, 0, 1, 2, 3, 4, 5, INT64_MAX / 4, INT64_MAX / 2 + 1,
                                      INT64_MAX - 1, INT64_MAX};
    enum { N = sizeof numbers / sizeof *numbers };
    setup();
    for (int64_t size = 0; size < 5; size++) {
        cfx_tensor x = full(cpu, size, 1), y = {0};
        for (int k = 0; k < N * N * N; k++) {
            const int64_t first = numbers[k / N / N], n = numbers[k / N % N], step = numbers[k % N];
            const __int128 last = first + ((__int128)n - 1) * step;
            const bool fits = step > 0 && first >= 0 && (n == 0 ? first <= size : n > 0 && first < size && last < size);
            if (!CHECK_STATUS(cfx_slice(&x, 0, first, n, step, &y), fits ? CFX_OK : CFX_EARG))
                printf("# %lld elements from %lld by %lld of %lld\n", (long long)n, (long long)first, (long long)step,
                       (long long)size);
            cfx_release(&y);
        }
        cfx_release(&x);
    }
    teardown();
}

TEST(no_tensor_has_more_than_2_to_the_63_bytes_even_one_that_is_empty_or_a_view) {
    setup();
    const int64_t one[2] = {1, 1}, half = (int64_t)1 << 32, most = (int64_t)1 << 60;
    cfx_tensor x = {0}, none = full(cpu, 0, 1), y = {0}, wide = {0}, tall = {0}, big = {0};
    CHECK_STATUS(cfx_full(cpu, CFX_FLOAT32, 2, one, 1, &x), CFX_OK);
    CHECK_STATUS(cfx_expand(&x, 2, (int64_t[]){half, half}, &y), CFX_EARG);
    CHECK(says("expand: a float32 of [4294967296, 4294967296] would have more than 2^63 bytes"));
    CHECK_STATUS(cfx_expand(&x, 3, (int64_t[]){half, half, 1}, &y), CFX_EARG);
    CHECK_STATUS(cfx_expand(&none, 3, (int64_t[]){half, half, 0}, &y), CFX_EARG);
    CHECK_STATUS(cfx_expand(&x, 3, (int64_t[]){half, 0, half}, &y), CFX_EARG);
    CHECK_STATUS(cfx_reshape(&none, 3, (int64_t[]){0, half, half}, &y), CFX_EARG);
    CHECK_STATUS(cfx_reshape(&none, 3, (int64_t[]){half, half, 0}, &y), CFX_EARG);
    CHECK_STATUS(cfx_empty(cpu, CFX_FLOAT32, 3, (int64_t[]){half, 0, half}, &y), CFX_EARG);
    CHECK_STATUS(cfx_arange(cpu, CFX_INT64, most, 0, 1, &y), CFX_EARG);
    CHECK_STATUS(cfx_tile(&x, (int64_t[]){half, half}, &y), CFX_EARG);
    CHECK_STATUS(cfx_pad(&x, (int64_t[]){half, 0}, (int64_t[]){0, half}, 0, &y), CFX_EARG);
    /* functions that broadcast, stack or multiply large views to larger ones */
    CHECK_STATUS(cfx_expand(&x, 2, (int64_t[]){1, half}, &wide), CFX_OK);
    CHECK_STATUS(cfx_expand(&x, 2, (int64_t[]){half, 1}, &tall), CFX_OK);
    CHECK_STATUS(cfx_expand(&x, 2, (int64_t[]){1, most}, &big), CFX_OK);
    CHECK_STATUS(cfx_binary(CF_OP_add, &wide, &tall, &y), CFX_EARG);
    CHECK_STATUS(cfx_where(&wide, &tall, &x, &y), CFX_EARG);
    CHECK_STATUS(cfx_matmul(&tall, &wide, &y), CFX_EARG);
    CHECK_STATUS(cfx_to(&big, NULL, CFX_FLOAT64, &y), CFX_EARG);
    CHECK_STATUS(cfx_concat(3, (const cfx_tensor *[]){&big, &big, &big}, 1, &y), CFX_EARG);
    CHECK_STATUS(cfx_stack(2, (const cfx_tensor *[]){&big, &big}, 0, &y), CFX_EARG);
    CHECK_STATUS(cfx_tile(&wide, (int64_t[]){1, half}, &y), CFX_EARG);
    CHECK_STATUS(cfx_tile(&big, (int64_t[]){1, 8}, &y), CFX_EARG);
    CHECK_STATUS(cfx_onehot(&none, most, &y), CFX_EARG);
    cfx_release(&x);
    cfx_release(&none);
    cfx_release(&wide);
    cfx_release(&tall);
    cfx_release(&big);
    teardown();
}
