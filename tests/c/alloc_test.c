/* Every public call without memory: each allocation of it fails once, and then it is made again.
 *
 * A call that fails has changed nothing: values, random positions, reference counts and what the pools hold are as
 * before, and the second call gives what the first would have given.  The host's allocations fail by the linker's
 * --wrap, those of devices by their pools' limits.
 */
#include "test.h"

#include "files.h"
#include "ops/tape.h"
#include "queues.h"

/* ---- allocations that fail --------------------------------------------------------------------------- */

cfx_status __real_cf_alloc(size_t bytes, void **out);
cfx_status __real_cf_alloc_zero(size_t count, size_t size, void **out);
cfx_status __real_cf_realloc(void **block, size_t bytes);
cfx_status __wrap_cf_alloc(size_t bytes, void **out);
cfx_status __wrap_cf_alloc_zero(size_t count, size_t size, void **out);
cfx_status __wrap_cf_realloc(void **block, size_t bytes);

static _Thread_local int left = -1; /* allocations of this thread until one fails; negative: none does */

static int fails(void) {
    if (left < 0) return 0;
    if (left > 0) {
        left--;
        return 0;
    }
    left = -1;
    cf_message("made to fail");
    return 1;
}

cfx_status __wrap_cf_alloc(size_t bytes, void **out) {
    *out = NULL;
    return fails() ? CFX_EMEMORY : __real_cf_alloc(bytes, out);
}
cfx_status __wrap_cf_alloc_zero(size_t count, size_t size, void **out) {
    *out = NULL;
    return fails() ? CFX_EMEMORY : __real_cf_alloc_zero(count, size, out);
}
cfx_status __wrap_cf_realloc(void **block, size_t bytes) {
    return fails() ? CFX_EMEMORY : __real_cf_realloc(block, bytes);
}

/* ---- the world of a call ------------------------------------------------------------------------------ */

enum { DEVICES = 3, ROWS = 4, COLUMNS = 6, MODEL = 3, FILLERS = 64, OUTS = 3, TENSORS = 31, SHARE = 4096 };

static cfx_context *context;
static cfx_device *device[DEVICES];

typedef struct world {
    /* not watched: what is written in place, ids, and a condition */
    cfx_tensor y, part, ids, yes, above;
    cfx_tensor x, v, m, strided; /* inputs; watched in half of the runs */
    cfx_tensor image, kernel;    /* of convolutions from COLUMNS channels to as many */
    cfx_tensor mean, var;        /* of batch normalisation */
    cfx_tensor replica[DEVICES], across[DEVICES], gathered[DEVICES], parts[DEVICES]; /* of collectives */
    cfx_tensor w[MODEL], g[MODEL];                                                   /* a model, apart */
    cfx_tensor filler[FILLERS];
    cfx_tensor out[OUTS]; /* the call makes them */
    cfx_tape *tape;
    cfx_layout *layout, *made;
    cfx_loader *loader;
    cfx_safetensors *file;
} world;

/* All that has values; the order is that of the struct. */
static cfx_tensor *tensor_of(world *w, int i) {
    cfx_tensor *const lists[] = {
        &w->y,         &w->part,    &w->ids,         &w->yes,         &w->above,  &w->x,
        &w->v,         &w->m,       &w->strided,     &w->image,       &w->kernel, &w->mean,
        &w->var,       w->replica,  w->replica + 1,  w->replica + 2,  w->across,  w->across + 1,
        w->across + 2, w->gathered, w->gathered + 1, w->gathered + 2, w->parts,   w->parts + 1,
        w->parts + 2,  w->w,        w->w + 1,        w->w + 2,        w->g,       w->g + 1,
        w->g + 2};
    return lists[i];
}

/* Uses by several queues, so that one more has to be allocated. */
static void crowd(cfx_tensor *x) {
    for (int d = 1; d < DEVICES; d++) {
        cfx_tensor copy = {0};
        CHECK_STATUS(cfx_to(x, device[d], -1, &copy), CFX_OK);
        CHECK_STATUS(cfx_wait(&copy), CFX_OK);
        cfx_release(&copy);
    }
}

static void make(cfx_device *on, int ndim, const int64_t *shape, cfx_tensor *out) {
    CHECK_STATUS(cfx_random(on, CFX_FLOAT32, ndim, shape, "uniform", 0.5, 1.5, 0, out), CFX_OK);
}

/* share_rows: those of each device's part of what collectives join. */
static void make_world(world *w, int is_watched, int64_t share_rows) {
    const int64_t form[2] = {ROWS, COLUMNS}, columns = COLUMNS, n = ROWS, side[2] = {COLUMNS, 5};
    const int64_t all[2] = {DEVICES * share_rows, 2}, share[2] = {share_rows, 2}, large = 1 << 12;
    *w = (world){0};
    cfx_seed(context, 7);
    make(device[0], 2, form, &w->y);
    CHECK_STATUS(cfx_slice(&w->y, 0, 1, 2, 1, &w->part), CFX_OK);
    CHECK_STATUS(cfx_slice(&w->y, 0, 0, 2, 1, &w->above), CFX_OK);
    CHECK_STATUS(cfx_random(device[0], CFX_INT64, 1, &n, "integer", 0, 3, 0, &w->ids), CFX_OK);
    make(device[0], 2, form, &w->x);
    make(device[0], 1, &columns, &w->v);
    make(device[0], 2, side, &w->m);
    CHECK_STATUS(cfx_binary_scalar(CF_OP_gt, &w->x, 1, 0, &w->yes), CFX_OK);
    CHECK_STATUS(cfx_transpose(&w->m, 0, 1, &w->strided), CFX_OK);
    make(device[0], 4, (int64_t[]){1, 3, 3, COLUMNS}, &w->image);
    make(device[0], 4, (int64_t[]){COLUMNS, 2, 2, COLUMNS}, &w->kernel);
    make(device[0], 1, &columns, &w->mean);
    make(device[0], 1, &columns, &w->var);
    for (int d = 0; d < DEVICES; d++) {
        make(device[d], 2, all, &w->replica[d]);
        CHECK_STATUS(cfx_transpose(&w->replica[d], 0, 1, &w->across[d]), CFX_OK);
        make(device[d], 2, (int64_t[]){DEVICES * DEVICES * share_rows, 2}, &w->gathered[d]);
        make(device[d], 2, share, &w->parts[d]);
    }
    for (int k = 0; k < MODEL; k++) {
        make(device[0], 1, &large, &w->w[k]);
        make(device[0], 1, &large, &w->g[k]);
        crowd(&w->w[k]);
        crowd(&w->g[k]);
    }
    CHECK_STATUS(cfx_layout_new(MODEL, (const cfx_tensor *[]){&w->w[0], &w->w[1], &w->w[2]},
                                (const char *[]){"a", "b", "c"}, &w->layout),
                 CFX_OK);
    for (int i = 0; i < 13; i++) crowd(tensor_of(w, i));
    if (is_watched) {
        cfx_tensor *watched[FILLERS] = {&w->x, &w->v, &w->m};
        for (int i = 3; i < FILLERS; i++) {
            make(device[0], 1, &n, &w->filler[i]);
            watched[i] = &w->filler[i];
        }
        CHECK_STATUS(cfx_tape_begin(context, FILLERS, watched, &w->tape), CFX_OK); /* the next node needs memory */
    }
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
}

static void free_world(world *w) {
    cfx_tape_end(&w->tape);
    for (int i = 0; i < TENSORS; i++) cfx_release(tensor_of(w, i));
    for (int i = 0; i < FILLERS; i++) cfx_release(&w->filler[i]);
    for (int i = 0; i < OUTS; i++) cfx_release(&w->out[i]);
    cfx_layout_free(w->layout);
    cfx_layout_free(w->made);
    cfx_loader_free(&w->loader);
    cfx_safetensors_close(w->file);
}

/* ---- a state as before --------------------------------------------------------------------------------- */

enum { MOST = 1 << 22 };

typedef struct state {
    size_t bytes;
    char values[MOST];
    int32_t refs[TENSORS], saved[TENSORS];
    cf_buffer *buffers[TENSORS];
    uint64_t position[DEVICES + 1];
    size_t in_use[DEVICES];
    int64_t blocks[DEVICES];
} state;

static void add_values(state *s, const cfx_tensor *x) {
    if (!x->_buffer) return;
    const size_t n = (size_t)cf_numel(x) * (size_t)cfx_dtype_size(x->_dtype);
    if (!CHECK(s->bytes + n <= MOST)) return;
    CHECK_STATUS(cfx_read(x, s->values + s->bytes, n), CFX_OK);
    s->bytes += n;
}

static void take_state(world *w, state *s) {
    uint64_t seed;
    s->bytes = 0;
    for (int i = 0; i < TENSORS; i++) {
        const cfx_tensor *x = tensor_of(w, i);
        s->buffers[i] = x->_buffer;
        s->refs[i] = x->_buffer ? x->_buffer->refs : 0;
        s->saved[i] = 0;
        for (cf_hold *hold = x->_buffer ? x->_buffer->holds : NULL; hold; hold = hold->next) s->saved[i]++;
        add_values(s, x);
    }
    for (int i = 0; i < OUTS; i++) add_values(s, &w->out[i]);
    for (int i = 0; i <= DEVICES; i++) cfx_rng_get(context, i, &seed, &s->position[i]);
    for (int d = 0; d < DEVICES; d++) {
        s->in_use[d] = device[d]->pool.in_use;
        s->blocks[d] = device[d]->pool.blocks;
    }
}

static int same_values(const state *a, const state *b) {
    return a->bytes == b->bytes && memcmp(a->values, b->values, a->bytes) == 0 &&
           memcmp(a->position, b->position, sizeof a->position) == 0;
}

static int same_state(const state *a, const state *b) {
    return CHECK(same_values(a, b)) & CHECK(memcmp(a->refs, b->refs, sizeof a->refs) == 0) &
           CHECK(memcmp(a->saved, b->saved, sizeof a->saved) == 0) &
           CHECK(memcmp(a->buffers, b->buffers, sizeof a->buffers) == 0) &
           CHECK(memcmp(a->in_use, b->in_use, sizeof a->in_use) == 0) &
           CHECK(memcmp(a->blocks, b->blocks, sizeof a->blocks) == 0);
}

/* ---- the calls ------------------------------------------------------------------------------------------ */

static const int64_t FORM[2] = {ROWS, COLUMNS};
static const float NUMBERS[ROWS * COLUMNS] = {1, 2, 3};

#define CALL(name, expression) \
    static cfx_status call_##name(world *w) { return expression; }

CALL(empty, cfx_empty(device[0], CFX_FLOAT32, 1, (int64_t[]){0}, &w->out[0]))
CALL(full, cfx_full(device[0], CFX_FLOAT32, 2, FORM, 3, &w->out[0]))
CALL(from_host, cfx_from_host(device[0], CFX_FLOAT32, 2, FORM, NUMBERS, &w->out[0]))
CALL(arange, cfx_arange(device[0], CFX_INT64, 7, 0, 2, &w->out[0]))
CALL(uniform, cfx_random(device[0], CFX_FLOAT32, 2, FORM, "uniform", 0, 1, 1, &w->out[0]))
CALL(integer, cfx_random(device[0], CFX_INT64, 2, FORM, "integer", 0, 9, 0, &w->out[0]))
CALL(permutation, cfx_random(device[0], CFX_INT64, 1, FORM, "permutation", 0, 0, 2, &w->out[0]))
CALL(retain, cfx_retain(&w->x, &w->out[0]))
CALL(detach, cfx_detach(&w->x, &w->out[0]))
CALL(reshape, cfx_reshape(&w->x, 1, (int64_t[]){-1}, &w->out[0]))
CALL(reshape_copy, cfx_reshape(&w->strided, 1, (int64_t[]){-1}, &w->out[0]))
CALL(permute, cfx_permute(&w->x, 2, (int32_t[]){1, 0}, &w->out[0]))
CALL(transpose, cfx_transpose(&w->x, 0, 1, &w->out[0]))
CALL(slice, cfx_slice(&w->x, 0, 1, 2, 1, &w->out[0]))
CALL(select, cfx_select(&w->x, 0, 1, &w->out[0]))
CALL(unsqueeze, cfx_unsqueeze(&w->x, 1, &w->out[0]))
CALL(expand, cfx_expand(&w->v, 2, FORM, &w->out[0]))
CALL(diagonal, cfx_diagonal(&w->x, &w->out[0]))
CALL(to_dtype, cfx_to(&w->x, NULL, CFX_FLOAT64, &w->out[0]))
CALL(to_device, cfx_to(&w->x, device[2], -1, &w->out[0]))
CALL(clone, cfx_clone(&w->x, &w->out[0]))
CALL(contiguous, cfx_contiguous(&w->strided, &w->out[0]))
CALL(concat, cfx_concat(3, (const cfx_tensor *[]){&w->x, &w->y, &w->x}, 0, &w->out[0]))
CALL(concat_many, cfx_concat(5, (const cfx_tensor *[]){&w->x, &w->y, &w->x, &w->x, &w->y}, 1, &w->out[0]))
CALL(stack, cfx_stack(2, (const cfx_tensor *[]){&w->x, &w->y}, 0, &w->out[0]))
CALL(flip, cfx_flip(&w->x, 1, (int32_t[]){0}, &w->out[0]))
CALL(pad, cfx_pad(&w->x, (int64_t[]){1, 0}, (int64_t[]){0, 2}, 5, &w->out[0]))
CALL(tile, cfx_tile(&w->x, (int64_t[]){2, 1}, &w->out[0]))
CALL(unary, cfx_unary(CF_OP_tanh, &w->x, 0, 0, &w->out[0]))
CALL(binary, cfx_binary(CF_OP_mul, &w->x, &w->v, &w->out[0]))
CALL(binary_scalar, cfx_binary_scalar(CF_OP_pow, &w->x, 2, 1, &w->out[0]))
CALL(where, cfx_where(&w->yes, &w->x, &w->v, &w->out[0]))
CALL(binary_into, cfx_binary_into(CF_OP_add, &w->w[0], &w->w[1]))
CALL(binary_into_overlap, cfx_binary_into(CF_OP_add, &w->part, &w->above))
CALL(binary_scalar_into, cfx_binary_scalar_into(CF_OP_mul, &w->part, 3))
CALL(clamp_into, cfx_clamp_into(&w->y, 0.8, 1))
CALL(fill, cfx_fill(&w->part, 3))
CALL(copy, cfx_copy(&w->w[0], &w->w[2]))
CALL(reduce, cfx_reduce(CF_OP_sum, &w->x, 1, (int32_t[]){0}, 1, 0, &w->out[0]))
CALL(reduce_all, cfx_reduce(CF_OP_max, &w->x, 0, NULL, 0, 0, &w->out[0]))
CALL(prod, cfx_reduce(CF_OP_prod, &w->x, 1, (int32_t[]){1}, 0, 0, &w->out[0]))
CALL(var, cfx_reduce(CF_OP_var, &w->x, 1, (int32_t[]){0}, 0, 1, &w->out[0]))
CALL(softmax, cfx_softmax(CF_OP_softmax, &w->x, 0, &w->out[0]))
CALL(topk, cfx_topk(&w->x, 2, 1, &w->out[0], &w->out[1]))
CALL(sort, cfx_sort(&w->x, 0, 1, &w->out[0], &w->out[1]))
CALL(tri, cfx_tri(&w->x, 1, 0, &w->out[0]))
CALL(onehot, cfx_onehot(&w->ids, 4, &w->out[0]))
CALL(matmul, cfx_matmul(&w->x, &w->m, &w->out[0]))
CALL(matmul_vector, cfx_matmul(&w->x, &w->v, &w->out[0]))
CALL(dense, cfx_dense(&w->x, &w->strided, NULL, CF_OP_relu, &w->out[0]))
CALL(dense_apart, cfx_dense(&w->x, &w->strided, NULL, CF_OP_exp, &w->out[0]))
static const cfx_window WINDOW = {.stride = {1, 1}, .dilation = {1, 1}};
CALL(conv, cfx_conv(&w->image, &w->kernel, &w->v, NULL, CF_OP_relu, &WINDOW, 1, &w->out[0]))
CALL(conv_apart, cfx_conv(&w->image, &w->kernel, &w->v, NULL, CF_OP_exp, &WINDOW, 1, &w->out[0]))
CALL(conv_transpose,
     cfx_conv_transpose(&w->image, &w->kernel, &w->v, CF_OP_exp, &WINDOW, (int64_t[2]){0, 0}, 1, &w->out[0]))
static const cfx_window POOL = {.kernel = {2, 2}, .stride = {1, 1}, .dilation = {1, 1}};
CALL(maxpool, cfx_maxpool(&w->image, &POOL, &w->out[0]))
CALL(adaptive_meanpool, cfx_adaptive_meanpool(&w->image, 2, 2, &w->out[0]))
CALL(upsample, cfx_upsample(&w->image, 4, 5, NULL, 1, 0, &w->out[0]))
CALL(groupnorm, cfx_groupnorm(&w->x, &w->v, &w->v, 2, 1e-5, &w->out[0]))
static cfx_status normalise(world *w, int act, int training) {
    const cfx_batch_state state = {&w->v, &w->v, &w->mean, &w->var, NULL};
    return cfx_batchnorm(&w->x, &state, &w->y, act, 1e-5, 0.1, training, &w->out[0]);
}
CALL(batchnorm, normalise(w, CF_OP_relu, 1))
CALL(batchnorm_apart, normalise(w, CF_OP_exp, 1))
CALL(batchnorm_inference, normalise(w, -1, 0))
CALL(index, cfx_index(&w->x, 0, &w->ids, &w->out[0]))
CALL(layernorm, cfx_layernorm(&w->x, &w->v, &w->v, 1e-5, &w->out[0]))
CALL(dropout, cfx_dropout(&w->x, 0.5, 1, &w->out[0]))
CALL(crossentropy, cfx_crossentropy(&w->x, &w->ids, 0, -1, CFX_MEAN, &w->out[0]))
CALL(loss, cfx_loss(CF_OP_mse, &w->x, &w->y, 0, CFX_NONE, &w->out[0]))
CALL(norm, cfx_norm(3, (const cfx_tensor *[]){&w->x, &w->w[0], &w->w[2]}, &w->out[0]))
CALL(read, cfx_read(&w->x, (float[ROWS * COLUMNS]){0}, sizeof NUMBERS))
CALL(allreduce, cfx_allreduce("avg", DEVICES, 1, (cfx_tensor *[]){&w->replica[0], &w->replica[1], &w->replica[2]}))
CALL(allreduce_strided, cfx_allreduce("sum", DEVICES, 1, (cfx_tensor *[]){&w->across[0], &w->across[1], &w->across[2]}))
CALL(allreduce_some, cfx_allreduce("max", DEVICES, 2,
                                   (cfx_tensor *[]){&w->replica[0], &w->parts[0], &w->replica[1], &w->parts[1],
                                                    &w->replica[2], &w->parts[2]}))
CALL(reduce_to, cfx_reduce_to("sum", 1, DEVICES, 1, (cfx_tensor *[]){&w->replica[0], &w->replica[1], &w->replica[2]}))
CALL(broadcast, cfx_broadcast(2, DEVICES, 1, (cfx_tensor *[]){&w->across[0], &w->across[1], &w->across[2]}))
CALL(weighted_mean, cfx_weighted_mean((double[]){1, 2, 0}, -1, DEVICES, 1,
                                      (cfx_tensor *[]){&w->replica[0], &w->replica[1], &w->replica[2]}))
CALL(common, cfx_common(DEVICES, 1, (cfx_tensor *[]){&w->replica[0], &w->replica[1], &w->replica[2]}))
CALL(allgather, cfx_allgather(DEVICES, (const cfx_tensor *[]){&w->replica[0], &w->replica[1], &w->replica[2]},
                              (cfx_tensor *[]){&w->gathered[0], &w->gathered[1], &w->gathered[2]}))
CALL(reduce_scatter,
     cfx_reduce_scatter("sum", DEVICES, (const cfx_tensor *[]){&w->replica[0], &w->replica[1], &w->replica[2]},
                        (cfx_tensor *[]){&w->parts[0], &w->parts[1], &w->parts[2]}))
CALL(layout_new, cfx_layout_new(2, (const cfx_tensor *[]){&w->x, &w->v}, (const char *[]){"x", "v"}, &w->made))
CALL(layout_make, cfx_layout_make(w->layout, device[1], -1, 1, (cfx_tensor *[]){&w->out[0], &w->out[1], &w->out[2]}))
CALL(layout_copy, cfx_layout_copy(w->layout, device[1], (const cfx_tensor *[]){&w->w[0], &w->w[1], &w->w[2]},
                                  (cfx_tensor *[]){&w->out[0], &w->out[1], &w->out[2]}))
CALL(layout_pack, cfx_layout_pack(w->layout, device[0], (cfx_tensor *[]){&w->w[0], &w->w[1], &w->w[2]}))

static cfx_status call_update(world *w) {
    const cfx_rule rule = {sizeof rule, "momentum", 0.1, 0.01, 0.9, 0, 1e-8, 1, 0};
    /* two parameters, and the third is their states' */
    return cfx_optim_update(&rule, 1, 1, (cfx_tensor *[]){&w->w[0]}, (const cfx_tensor *[]){&w->g[0]},
                            (cfx_tensor *[]){&w->w[2]}, NULL, NULL, NULL);
}
static cfx_status call_update_several(world *w) {
    const cfx_rule rule = {sizeof rule, "descent", 0.1, 0.01, 0.9, 0, 1e-8, 0, 0};
    return cfx_optim_update(&rule, 1, MODEL, (cfx_tensor *[]){&w->w[0], &w->w[1], &w->w[2]},
                            (const cfx_tensor *[]){&w->g[0], &w->g[1], &w->g[2]}, NULL, (double[]){1, 2, 3}, NULL,
                            NULL);
}
static cfx_status call_loader(world *w) {
    const cfx_loader_options options = {.size = sizeof options,
                                        .batch = 1,
                                        .devices = DEVICES,
                                        .shuffle = 1,
                                        .last = 1,
                                        .prefetch = 1,
                                        .seed = 3,
                                        .threads = 2};
    return cfx_loader_new(&options, 2, (const cfx_tensor *[]){&w->y, &w->yes}, device, &w->loader);
}
static cfx_status call_write(world *w) {
    return cfx_safetensors_write(test_path("new.safetensors"), 2, (const cfx_tensor *[]){&w->x, &w->strided},
                                 (const char *[]){"x", "m"}, 1, (const char *[]){"k"}, (const char *[]){"v"});
}
static cfx_status call_open(world *w) { return cfx_safetensors_open(test_path("old.safetensors"), &w->file); }
static cfx_status call_csv(world *w) {
    return cfx_csv_read(device[0], test_path("numbers.csv"), ',', 0, CFX_FLOAT32, &w->out[0]);
}
static cfx_status call_tape(world *w) {
    if (w->tape) return CFX_OK;
    const cfx_status status = cfx_tape_begin(context, 2, (cfx_tensor *[]){&w->x, &w->m}, &w->tape);
    if (status == CFX_OK) cfx_tape_end(&w->tape);
    return status;
}

#define ROW(name) \
    { #name, call_##name, 1 }
#define COLLECTIVE(name) /* of so much that it is cut into slices */ \
    { #name, call_##name, SHARE }
static const struct {
    const char *name;
    cfx_status (*call)(world *w);
    int64_t share_rows;
} calls[] = {
    ROW(empty),
    ROW(full),
    ROW(from_host),
    ROW(arange),
    ROW(uniform),
    ROW(integer),
    ROW(permutation),
    ROW(retain),
    ROW(detach),
    ROW(reshape),
    ROW(reshape_copy),
    ROW(permute),
    ROW(transpose),
    ROW(slice),
    ROW(select),
    ROW(unsqueeze),
    ROW(expand),
    ROW(diagonal),
    ROW(to_dtype),
    ROW(to_device),
    ROW(clone),
    ROW(contiguous),
    ROW(concat),
    ROW(concat_many),
    ROW(stack),
    ROW(flip),
    ROW(pad),
    ROW(tile),
    ROW(unary),
    ROW(binary),
    ROW(binary_scalar),
    ROW(where),
    ROW(binary_into),
    ROW(copy),
    ROW(binary_into_overlap),
    ROW(binary_scalar_into),
    ROW(clamp_into),
    ROW(fill),
    ROW(reduce),
    ROW(reduce_all),
    ROW(softmax),
    ROW(prod),
    ROW(var),
    ROW(topk),
    ROW(sort),
    ROW(tri),
    ROW(onehot),
    ROW(matmul),
    ROW(matmul_vector),
    ROW(dense),
    ROW(dense_apart),
    ROW(conv),
    ROW(conv_apart),
    ROW(conv_transpose),
    ROW(maxpool),
    ROW(adaptive_meanpool),
    ROW(upsample),
    ROW(groupnorm),
    ROW(batchnorm),
    ROW(batchnorm_apart),
    ROW(batchnorm_inference),
    ROW(index),
    ROW(layernorm),
    ROW(dropout),
    ROW(crossentropy),
    ROW(loss),
    ROW(norm),
    ROW(read),
    COLLECTIVE(allreduce),
    COLLECTIVE(allreduce_strided),
    COLLECTIVE(allreduce_some),
    COLLECTIVE(reduce_to),
    COLLECTIVE(broadcast),
    COLLECTIVE(allgather),
    COLLECTIVE(weighted_mean),
    COLLECTIVE(common),
    COLLECTIVE(reduce_scatter),
    ROW(layout_new),
    ROW(layout_make),
    ROW(layout_copy),
    ROW(layout_pack),
    ROW(update),
    ROW(update_several),
    ROW(loader),
    ROW(write),
    ROW(open),
    ROW(csv),
    ROW(tape),
};
enum { CALLS = sizeof calls / sizeof *calls };

/* ---- the property --------------------------------------------------------------------------------------- */

typedef enum seam { HOST, DEVICE } seam;

/* Lets the n-th allocation fail, from 0, or lets each device have so little; returns what the call says. */
static cfx_status call_without(seam seam, int n, int call, world *w) {
    static hoard all[DEVICES];
    size_t limits[DEVICES];
    for (int d = 0; d < DEVICES && seam == DEVICE; d++) {
        limits[d] = device[d]->pool.limit;
        fill_hoard(device[d], &all[d]);
        device[d]->pool.limit += (size_t)(n + n * n / 4) * CF_ALIGN;
    }
    if (seam == HOST) left = n;
    const cfx_status status = calls[call].call(w);
    left = -1;
    for (int d = 0; d < DEVICES && seam == DEVICE; d++) {
        empty_hoard(device[d], &all[d]);
        device[d]->pool.limit = limits[d];
    }
    return status;
}

static int check_call(int call, int is_watched, seam seam) {
    static state want, before, after;
    world w;
    int failed = 0;
    make_world(&w, is_watched, calls[call].share_rows);
    if (!CHECK_STATUS(calls[call].call(&w), CFX_OK)) printf("# in %s\n", calls[call].name);
    take_state(&w, &want);
    free_world(&w);
    for (int n = 0;; n++) {
        make_world(&w, is_watched, calls[call].share_rows);
        take_state(&w, &before);
        cfx_memory_trim(context);
        const cfx_status status = call_without(seam, n, call, &w);
        int fine = 1;
        if (status != CFX_OK) {
            failed++;
            fine &= CHECK_STATUS(status, CFX_EMEMORY);
            take_state(&w, &after);
            fine &= same_state(&before, &after);
            fine &= CHECK_STATUS(calls[call].call(&w), CFX_OK);
        }
        take_state(&w, &after);
        fine &= CHECK(same_values(&want, &after));
        free_world(&w);
        for (int d = 0; d < DEVICES; d++) fine &= CHECK_EQ(blocks_of(device[d]), 0);
        if (!fine)
            printf("# in %s, %s, allocation %d of the %s\n", calls[call].name, is_watched ? "watched" : "not watched",
                   n, seam == HOST ? "host's" : "device's");
        if (status == CFX_OK || !fine) return failed;
    }
}

static void setup(void) {
    context = new_context("cpu*3");
    for (int d = 0; d < DEVICES; d++) device[d] = cfx_device_at(context, d);
    world w;
    make_world(&w, 0, 1);
    CHECK_STATUS(cfx_safetensors_write(test_path("old.safetensors"), 2, (const cfx_tensor *[]){&w.x, &w.v},
                                       (const char *[]){"x", "v"}, 1, (const char *[]){"k"}, (const char *[]){"v"}),
                 CFX_OK);
    FILE *csv = fopen(test_path("numbers.csv"), "w");
    for (int i = 0; csv && i < 400; i++) fprintf(csv, "%d,%d\n", i, -i);
    if (csv) fclose(csv);
    free_world(&w);
}

static void check_all(int is_watched, seam seam) {
    int failed = 0;
    setup();
    for (int call = 0; call < CALLS; call++) failed += check_call(call, is_watched, seam);
    CHECK(failed > CALLS);
    cfx_context_free(context);
}

TEST(a_call_without_host_memory_has_changed_nothing_and_can_be_made_again) { check_all(0, HOST); }
TEST(a_call_without_device_memory_has_changed_nothing_and_can_be_made_again) { check_all(0, DEVICE); }
TEST(a_recorded_call_without_host_memory_has_changed_nothing_and_can_be_made_again) { check_all(1, HOST); }
TEST(a_recorded_call_without_device_memory_has_changed_nothing_and_can_be_made_again) { check_all(1, DEVICE); }

/* ---- backward ------------------------------------------------------------------------------------------- */

typedef struct gradients {
    cfx_tensor of[FILLERS], loss;
    cfx_tensor *places[FILLERS];
} gradients;

/* Records the call, and its sum; 0 where it has no gradient. */
static int record(world *w, int call, gradients *g) {
    *g = (gradients){0};
    make_world(w, 1, calls[call].share_rows);
    for (int i = 0; i < FILLERS; i++) g->places[i] = &g->of[i];
    CHECK_STATUS(calls[call].call(w), CFX_OK);
    if (!w->out[0]._buffer || !cfx_is_watched(&w->out[0])) return 0;
    CHECK_STATUS(cfx_reduce(CF_OP_sum, &w->out[0], 0, NULL, 0, 0, &g->loss), CFX_OK);
    return 1;
}

static size_t read_three(const gradients *g, char *to) {
    size_t n = 0;
    for (int i = 0; i < 3; i++) {
        const size_t bytes = (size_t)cf_numel(&g->of[i]) * (size_t)cfx_dtype_size(g->of[i]._dtype);
        CHECK_STATUS(cfx_read(&g->of[i], to + n, bytes), CFX_OK);
        n += bytes;
    }
    return n;
}

static void forget(world *w, gradients *g) {
    for (int i = 0; i < FILLERS; i++) cfx_release(&g->of[i]);
    cfx_release(&g->loss);
    free_world(w);
    for (int d = 0; d < DEVICES; d++) CHECK_EQ(blocks_of(device[d]), 0);
}

TEST(a_walk_without_host_memory_goes_on_to_the_same_gradient) {
    static char want[4096], got[4096];
    int failed = 0;
    setup();
    for (int call = 0; call < CALLS; call++) {
        gradients g;
        world w;
        if (!record(&w, call, &g)) {
            forget(&w, &g);
            continue;
        }
        CHECK_STATUS(cfx_tape_backward(w.tape, &g.loss, g.places, 0), CFX_OK);
        const size_t bytes = read_three(&g, want);
        forget(&w, &g);
        for (int n = 0, more = 1; more; n += 1 + n / 16) { /* leaves that are not reached are many, and alike */
            record(&w, call, &g);
            left = n;
            const cfx_status status = cfx_tape_backward(w.tape, &g.loss, g.places, 0);
            more = left < 0;
            left = -1;
            failed += more;
            if (more && CHECK_STATUS(status, CFX_EMEMORY))
                CHECK_STATUS(cfx_tape_backward(w.tape, &g.loss, g.places, 0), CFX_OK);
            more = CHECK(read_three(&g, got) == bytes && memcmp(want, got, bytes) == 0) && more;
            if (memcmp(want, got, bytes) != 0) printf("# in %s, allocation %d\n", calls[call].name, n);
            forget(&w, &g);
        }
    }
    CHECK(failed > CALLS);
    cfx_context_free(context);
}
