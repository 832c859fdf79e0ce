/* tape.c: recording and walking back.  See tape.h. */
#include "ops/tape.h"

#include <stdlib.h>
#include <string.h>

#include "tensor/buckets.h"
#include "tensor/primitive.h"

/* Nodes lie in chunks of so many bytes, so that they stay where they are. */
enum { CHUNK_BYTES = 32 << 10 };

typedef struct chunk {
    struct chunk *next;
    size_t used, size;
    _Alignas(16) char memory[];
} chunk;

struct cfx_tape {
    cf_watch watch; /* first: a watch of a context's is a tape's */
    cfx_context *context;
    cf_node **nodes;
    chunk *chunks; /* the one in use first */
    int32_t n, capacity, leaves;
    /* the walk */
    cfx_tensor *places; /* [leaves]: handles on the caller's gradient places, or empty */
    cfx_tensor *const *grads;
    int32_t *pending;           /* [leaves]: contributions still to come */
    uint8_t *given;             /* [leaves]: one of the below */
    int32_t at, zeroed, handed; /* how far it is: this node, and so many leaves before and after all nodes */
    int32_t walking, custom, stopped, accumulate;
};

/* Of a leaf's place: no contribution yet; one is being written into it by the node at hand; one has come. */
enum { NONE, LENT, GIVEN };

static cfx_tape *tape_of(const cfx_tensor *x) { return (cfx_tape *)cf_watch_of(x); }

/* ---- nodes ------------------------------------------------------------------------------------------ */

static cfx_status take(cfx_tape *tape, size_t bytes, void **out) {
    chunk *last = tape->chunks;
    if (!last || last->size - last->used < bytes) {
        const size_t size = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
        void *memory;
        CF_TRY(cf_alloc(sizeof *last + size, &memory));
        last = memory;
        *last = (chunk){.next = tape->chunks, .size = size};
        tape->chunks = last;
    }
    *out = last->memory + last->used;
    last->used += bytes;
    return CFX_OK;
}

static void free_memory(cfx_tape *tape) {
    for (chunk *c = tape->chunks, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    free(tape->nodes);
    tape->chunks = NULL;
    tape->nodes = NULL;
}

static void node_drop(cf_node *node) {
    for (int32_t k = 0; k < node->nsaved; k++) cf_hold_end(&node->saved[k]);
    node->nsaved = 0;
    cfx_release(&node->grad);
}

/* With room for what it will have. */
static cfx_status node_new(cfx_tape *tape, int nin, int nsaved, size_t kept_bytes, cf_node **out) {
    void *memory;
    if (tape->n == tape->capacity) {
        const int32_t capacity = tape->capacity ? tape->capacity * 2 : 64;
        memory = tape->nodes;
        CF_TRY(cf_realloc(&memory, (size_t)capacity * sizeof *tape->nodes));
        tape->nodes = memory;
        tape->capacity = capacity;
    }
    const size_t inputs = (size_t)nin * sizeof(cf_input), saved = (size_t)nsaved * sizeof(cf_hold);
    CF_TRY(take(tape, sizeof(cf_node) + inputs + saved + ((kept_bytes + 7) & ~(size_t)7), &memory));
    cf_node *node = *out = tape->nodes[tape->n] = memory;
    node->backward = NULL;
    node->inputs = (cf_input *)(node + 1);
    node->saved = (cf_hold *)(node->inputs + nin);
    node->kept = node->saved + nsaved;
    node->nin = nin;
    node->nsaved = 0;
    node->grad._buffer = NULL;
    node->reached = false;
    return CFX_OK;
}

static void input_of(const cfx_tape *tape, const cfx_tensor *x, cf_input *in) {
    in->node = x && x->_tape == tape->watch.id ? x->_node : -1;
    in->given = false;
    if (!x) return;
    in->device = cf_device(x);
    in->dtype = x->_dtype;
    in->ndim = x->_ndim;
    memcpy(in->shape, x->_shape, x->_ndim * sizeof *in->shape);
}

/* The tape of the inputs, or NULL. */
static cfx_status find_tape(const cf_recording *r, cfx_tape **out) {
    *out = NULL;
    for (int k = 0; k < r->nin; k++) {
        cfx_tape *of = tape_of(r->inputs[k]);
        if (!of || !cf_is_float(r->inputs[k]->_dtype)) continue;
        if (*out && of != *out)
            return cf_fail(
                CFX_ESTATE,
                "%s: its inputs are watched by two gradients, and a gradient of a gradient is not supported; "
                "detach one",
                r->op);
        *out = of;
    }
    return CFX_OK;
}

static cfx_status record(const cf_recording *r, cfx_tensor *out, cf_node **node) {
    cfx_tape *tape;
    *node = NULL;
    CF_TRY(find_tape(r, &tape));
    if (!tape || !cf_is_float(out->_dtype)) return CFX_OK;
    if (tape->walking)
        return cf_fail(CFX_ESTATE, "%s: a backward function cannot be differentiated; detach its inputs", r->op);
    CF_TRY(node_new(tape, r->nin, r->nsaved, r->kept_bytes, node));
    (*node)->backward = r->backward;
    for (int k = 0; k < r->nin; k++) input_of(tape, r->inputs[k], &(*node)->inputs[k]);
    for (int k = 0; k < r->nsaved; k++) cf_hold_begin(&(*node)->saved[k], r->saved[k], r->op);
    (*node)->nsaved = r->nsaved;
    if (r->kept_bytes) memcpy((*node)->kept, r->kept, r->kept_bytes);
    out->_tape = tape->watch.id;
    out->_node = tape->n++;
    return CFX_OK;
}

cfx_status cf_record(const cf_recording *recording, cfx_tensor *out) {
    cf_node *node;
    const cfx_status status = record(recording, out, &node);
    if (status != CFX_OK) cfx_release(out);
    return status;
}

cf_mark cf_mark_of(int nin, const cfx_tensor *const *inputs) {
    for (int k = 0; k < nin; k++) {
        cfx_tape *tape = tape_of(inputs[k]);
        if (tape) return (cf_mark){tape, tape->n};
    }
    return (cf_mark){NULL, 0};
}

void cf_rewind(cf_mark mark) {
    while (mark.tape && mark.tape->n > mark.n) node_drop(mark.tape->nodes[--mark.tape->n]);
}

/* ---- the life of a tape ----------------------------------------------------------------------------- */

static void places_drop(cfx_tape *tape) {
    for (int32_t i = 0; tape->places && i < tape->leaves; i++) {
        if (tape->places[i]._buffer) cf_buckets_abort(&tape->places[i]);
        cfx_release(&tape->places[i]);
    }
    free(tape->places);
    free(tape->pending);
    free(tape->given);
    tape->places = NULL;
    tape->pending = NULL;
    tape->given = NULL;
}

/* Voids the watches and releases what was kept: all but the struct, which is the caller's to end. */
static void clear(cfx_tape *tape) {
    cf_depend_no_more(&tape->watch.dependent);
    for (int32_t i = 0; i < tape->n; i++) node_drop(tape->nodes[i]);
    places_drop(tape);
    free_memory(tape);
    tape->context = NULL;
}

static void end_with_context(cf_dependent *tape) { clear((cfx_tape *)tape); }

static cfx_status check_tape(const char *function, const cfx_tape *tape) {
    if (!tape) return cf_fail(CFX_EARG, "%s: argument 'tape': expected a tape, got none", function);
    if (!tape->context) return cf_fail(CFX_EARG, "%s: argument 'tape': the tape's context has ended", function);
    return CFX_OK;
}

/* Handles on one view are one parameter: its gradient is that of the first, whose number inputs[0].node holds. */
static void find_ties(cfx_tape *tape, int32_t n, cfx_tensor *const *watched) {
    bool rises = true, falls = true; /* in a flat buffer the order of places shows that none is there twice */
    for (int32_t i = 1; i < n; i++) {
        const cfx_tensor *a = watched[i - 1], *b = watched[i];
        rises = rises &&
                (a->_buffer == b->_buffer ? a->_offset < b->_offset : (uintptr_t)a->_buffer < (uintptr_t)b->_buffer);
        falls = falls &&
                (a->_buffer == b->_buffer ? a->_offset > b->_offset : (uintptr_t)a->_buffer > (uintptr_t)b->_buffer);
    }
    for (int32_t i = 1; i < n && !rises && !falls; i++)
        for (int32_t j = 0; j < i && tape->nodes[i]->inputs[0].node == i; j++)
            if (cf_same_view(watched[i], watched[j])) tape->nodes[i]->inputs[0].node = j;
}
static int32_t tied_to(const cfx_tape *tape, int32_t leaf) { return tape->nodes[leaf]->inputs[0].node; }

CFX_API cfx_status cfx_tape_begin(cfx_context *context, int32_t n, cfx_tensor *const *watched, cfx_tape **out) {
    void *memory;
    for (int32_t i = 0; i < n; i++) {
        CF_TRY(cf_check_tensor("withgradient", "model", watched[i]));
        if (!cf_is_float(watched[i]->_dtype))
            return cf_fail(CFX_EARG, "withgradient: parameter %d: expected a float tensor, got %s", i + 1,
                           cfx_dtype_name(watched[i]->_dtype));
        if (cf_watched(watched[i]))
            return cf_fail(
                CFX_ESTATE,
                "withgradient: parameter %d is watched by a gradient being recorded: a gradient of a gradient is "
                "not supported",
                i + 1);
    }
    CF_TRY(cf_alloc_zero(1, sizeof(cfx_tape), &memory));
    cfx_tape *tape = memory;
    tape->context = context;
    tape->watch.id = ++context->next_tape;
    tape->leaves = n;
    for (int32_t i = 0; i < n; i++) {
        cf_node *node = NULL;
        const cfx_status status = node_new(tape, 1, 0, 0, &node);
        if (status != CFX_OK) {
            free_memory(tape);
            free(tape);
            return status;
        }
        input_of(tape, watched[i], &node->inputs[0]); /* a leaf's own form */
        node->inputs[0].node = i;
        node->nin = 0;
        tape->n++;
    }
    find_ties(tape, n, watched);
    for (int32_t i = 0; i < n; i++) {
        watched[i]->_tape = tape->watch.id;
        watched[i]->_node = tape->nodes[i]->inputs[0].node;
    }
    cf_depend(&context->tapes, &tape->watch.dependent, end_with_context);
    *out = tape;
    return CFX_OK;
}

CFX_API void cfx_tape_end(cfx_tape **tape) {
    if (!tape || !*tape) return;
    if ((*tape)->context) clear(*tape);
    free(*tape);
    *tape = NULL;
}

/* ---- the walk --------------------------------------------------------------------------------------- */

void cf_place(cfx_tape *tape, cf_node *node, int k, int32_t dtype, int32_t ndim, const int64_t *shape,
              cfx_tensor *out) {
    const cf_input *in = &node->inputs[k];
    memset(out, 0, sizeof *out);
    if (in->node < 0 || in->node >= tape->leaves || tape->given[in->node] != NONE || tape->accumulate) return;
    const cfx_tensor *place = &tape->places[in->node];
    if (!place->_buffer || place->_dtype != dtype || !cf_has_shape(place, ndim, shape)) return;
    *out = *place;
    out->_lent = 1;
    tape->given[in->node] = LENT;
}

/* Gives g, which is summed or converted, its place. */
static void replace(cfx_tensor *g, const cfx_tensor *by) {
    cfx_release(g);
    *g = *by;
}

/* Sums g over the dimensions that broadcasting added or stretched, and converts: to the form of `in`. */
static cfx_status fit(const cf_input *in, cfx_tensor *g) {
    if (!cf_has_shape(g, in->ndim, in->shape)) {
        cfx_tensor sum = {0};
        CF_TRY(cf_sum_to(g, in->ndim, in->shape, &sum));
        replace(g, &sum);
    }
    if (g->_dtype != in->dtype || cf_device(g) != in->device) {
        cfx_tensor converted = {0};
        CF_TRY(cf_copy_to(g, in->device, in->dtype, &converted));
        replace(g, &converted);
    }
    return CFX_OK;
}

static cfx_status add_to_place(cfx_tape *tape, int32_t leaf, const cfx_tensor *g) {
    cfx_tensor *place = &tape->places[leaf];
    if (g->_lent) return CFX_OK; /* it was written there */
    return tape->given[leaf] == NONE && !tape->accumulate ? cf_copy_make(place, g) : cf_add_into(place, g);
}

static cfx_status add_to_node(cf_node *node, cfx_tensor *g) {
    if (!node->grad._buffer) {
        node->grad = *g;
        g->_buffer = NULL;
        return CFX_OK;
    }
    /* A gradient that something else refers to (an operation may give one tensor twice) is not added into. */
    const bool own = node->grad._buffer->refs == 1 && cfx_is_contiguous(&node->grad);
    if (own) return cf_add_into(&node->grad, g);
    cfx_tensor sum = {0};
    CF_TRY(cf_add(&node->grad, g, &sum));
    cfx_release(&node->grad);
    node->grad = sum;
    return CFX_OK;
}

cfx_status cf_give(cfx_tape *tape, cf_node *node, int k, cfx_tensor *grad) {
    cf_input *in = &node->inputs[k];
    cfx_status status = CFX_OK;
    if (cf_needs(node, k)) {
        status = fit(in, grad);
        if (status == CFX_OK) {
            if (in->node < tape->leaves && tape->places[in->node]._buffer) status = add_to_place(tape, in->node, grad);
            else status = add_to_node(tape->nodes[in->node], grad);
        }
        in->given = status == CFX_OK;
        if (in->given && in->node < tape->leaves) tape->given[in->node] = GIVEN;
    }
    cfx_release(grad);
    return status;
}

cfx_status cf_give_alike(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    cfx_tensor g;
    cf_alias(dy, &g);
    return cf_give(tape, node, 0, &g);
}

/* Counts, from the loss back, how many contributions each leaf will get. */
static void count(cfx_tape *tape, int32_t from) {
    tape->nodes[from]->reached = 1;
    for (int32_t n = from; n >= tape->leaves; n--) {
        cf_node *node = tape->nodes[n];
        if (!node->reached) continue;
        for (int32_t k = 0; k < node->nin; k++) {
            const int32_t m = node->inputs[k].node;
            if (m < 0) continue;
            tape->nodes[m]->reached = 1;
            if (m < tape->leaves) tape->pending[m]++;
        }
    }
}

/* Takes handles on the caller's places, which must have the leaves' forms. */
static cfx_status take_places(cfx_tape *tape) {
    for (int32_t i = 0; i < tape->leaves; i++) {
        const cf_input *form = tape->nodes[i]->inputs;
        cfx_tensor *grad = tape->grads[i];
        if (grad->_buffer) {
            cf_alias(grad, &tape->places[i]);
            CF_TRY(cf_check_writable("gradient", grad));
            if (grad->_dtype != form->dtype || cf_device(grad) != form->device ||
                !cf_has_shape(grad, form->ndim, form->shape)) {
                char have[256], want[192];
                return cf_fail(CFX_EARG, "gradient: place %d: expected %s (%s, %s), got %s", i + 1,
                               cf_shape_text(form->ndim, form->shape, want), cfx_dtype_name(form->dtype),
                               form->device->name, cf_describe(grad, have));
            }
        }
        if (grad->_buffer && tape->accumulate && !cf_same_view(grad, tape->grads[tied_to(tape, i)]))
            return cf_fail(CFX_EARG, "gradient: place %d: parameters %d and %d are one, but their gradients are not",
                           i + 1, tied_to(tape, i) + 1, i + 1);
    }
    return CFX_OK;
}

/* Leaves that the loss does not reach have a gradient of zero. */
static cfx_status zero_unreached(cfx_tape *tape) {
    for (; tape->zeroed < tape->leaves; tape->zeroed++) {
        const int32_t i = tape->zeroed;
        if (!tape->places[i]._buffer || tied_to(tape, i) != i || tape->pending[i] || tape->accumulate) continue;
        CF_TRY(cf_fill_make(&tape->places[i]));
    }
    return CFX_OK;
}

/* A node is done: its contributions are enqueued, and buckets that were waiting for them are complete.  Where
 * none came after all (a condition, a custom gradient that was not given) the place is zeroed now.  An input that
 * was counted needs nothing more. */
static cfx_status settle_leaves(cfx_tape *tape, cf_node *node) {
    for (int32_t k = 0; k < node->nin; k++) {
        cf_input *in = &node->inputs[k];
        const int32_t leaf = in->node;
        if (leaf < 0 || leaf >= tape->leaves) continue;
        const bool complete = tape->pending[leaf] == 1 && tape->places[leaf]._buffer;
        if (complete && tape->given[leaf] == NONE && !tape->accumulate) CF_TRY(cf_fill_make(&tape->places[leaf]));
        tape->pending[leaf]--;
        in->node = -1;
        if (complete) cf_bucket_count(&tape->places[leaf]);
    }
    return CFX_OK;
}

/* The gradient of a leaf that had no place. */
static cfx_status hand_out(cfx_tape *tape, int32_t i) {
    cfx_tensor *grad = &tape->nodes[i]->grad, *out = tape->grads[i];
    const cf_input *form = tape->nodes[i]->inputs;
    const int32_t first = tied_to(tape, i);
    if (first != i) {
        if (!out->_buffer) return cfx_retain(tape->grads[first], out);
        if (cf_same_view(out, tape->grads[first])) return CFX_OK;
        cf_buckets_abort(out); /* it may have counted this place already */
        return cf_copy_make(&tape->places[i], tape->grads[first]);
    }
    if (tape->places[i]._buffer) return CFX_OK;
    if (!grad->_buffer) return cfx_full(form->device, form->dtype, form->ndim, form->shape, 0, out);
    /* Several leaves may have been given one tensor; each gets its own, which may be changed in place. */
    CF_TRY(grad->_buffer->refs > 1 ? cf_clone(grad, out) : cf_packed(grad, out));
    cfx_release(grad);
    return CFX_OK;
}

/* The places that the node at hand borrowed and did not write. */
static void take_back(cfx_tape *tape, cf_node *node) {
    for (int32_t k = 0; k < node->nin; k++) {
        const int32_t leaf = node->inputs[k].node;
        if (leaf >= 0 && leaf < tape->leaves && tape->given[leaf] == LENT) tape->given[leaf] = NONE;
    }
}

static cfx_status walk_on(cfx_tape *tape) {
    CF_TRY(zero_unreached(tape));
    for (; tape->at >= tape->leaves; tape->at--) {
        cf_node *node = tape->nodes[tape->at];
        if (node->reached && node->grad._buffer) {
            if (!tape->custom) {
                const cfx_status status = node->backward(tape, node, &node->grad);
                if (status == CFX_CUSTOM) tape->custom = 1;
                if (status != CFX_OK) take_back(tape, node);
                if (status != CFX_OK) return status;
            }
            tape->custom = 0;
            cfx_release(&node->grad); /* should what follows fail, the node is not asked again */
        }
        if (node->reached) CF_TRY(settle_leaves(tape, node));
        node_drop(node);
    }
    for (; tape->handed < tape->leaves; tape->handed++) CF_TRY(hand_out(tape, tape->handed));
    for (int32_t i = 0; i < tape->leaves; i++)
        if (tape->places[i]._buffer) cf_buckets_close(&tape->places[i]);
    return CFX_OK;
}

/* A walk that fails, for want of memory, stays where it is: each step that can fail is repeated by the next call, and
 * what a node has given already is not asked for again. */
static cfx_status walk(cfx_tape *tape) {
    const cfx_status status = walk_on(tape);
    tape->stopped = status > CFX_OK;
    return status;
}

/* The node that the walk begins at: a loss that is a parameter itself has one that hands dy on. */
static cfx_status find_start(cfx_tape *tape, const cfx_tensor *loss) {
    cf_node *node = NULL;
    tape->at = loss->_node;
    if (loss->_node >= tape->leaves) return CFX_OK;
    CF_TRY(node_new(tape, 1, 0, 0, &node));
    node->backward = cf_give_alike;
    node->inputs[0] = tape->nodes[loss->_node]->inputs[0];
    node->inputs[0].node = loss->_node;
    tape->at = tape->n++;
    return CFX_OK;
}

static cfx_status begin_walk(cfx_tape *tape, const cfx_tensor *loss) {
    const size_t n = (size_t)tape->leaves;
    void *places, *pending, *given;
    CF_TRY(cf_alloc_zero(n, sizeof *tape->places, &places));
    tape->places = places;
    CF_TRY(cf_alloc_zero(n, sizeof *tape->pending, &pending));
    tape->pending = pending;
    CF_TRY(cf_alloc_zero(n, 1, &given));
    tape->given = given;
    CF_TRY(take_places(tape));
    CF_TRY(find_start(tape, loss));
    count(tape, tape->at);
    for (int32_t i = 0; i < tape->leaves; i++)
        if (tape->places[i]._buffer) CF_TRY(cf_buckets_open(&tape->places[i], tape->pending[i] > 0));
    return cfx_full(cf_device(loss), loss->_dtype, loss->_ndim, loss->_shape, 1, &tape->nodes[tape->at]->grad);
}

CFX_API cfx_status cfx_tape_backward(cfx_tape *tape, const cfx_tensor *loss, cfx_tensor *const *grads,
                                     int32_t accumulate) {
    CF_TRY(check_tape("withgradient", tape));
    CF_TRY(cf_check_tensor("withgradient", "f", loss));
    if (cf_numel(loss) != 1) {
        char text[256];
        return cf_fail(CFX_EARG, "withgradient: argument 'f': expected its first result to be one number, got %s",
                       cf_describe(loss, text));
    }
    if (loss->_tape != tape->watch.id)
        return cf_fail(CFX_EARG,
                       "withgradient: argument 'f': its first result does not depend on the model's parameters");
    if (tape->walking && tape->stopped) return walk(tape);
    if (tape->walking) return cf_fail(CFX_ESTATE, "withgradient: this tape has been walked");
    const int32_t recorded = tape->n;
    tape->grads = grads;
    tape->accumulate = accumulate;
    const cfx_status status = begin_walk(tape, loss);
    if (status != CFX_OK) { /* nothing has changed */
        tape->n = recorded;
        for (int32_t i = 0; i < tape->n; i++) tape->nodes[i]->reached = 0;
        places_drop(tape);
        return status;
    }
    tape->walking = 1;
    for (int32_t i = loss->_node < tape->leaves ? tape->leaves : loss->_node + 1; i < recorded; i++)
        node_drop(tape->nodes[i]);
    return walk(tape);
}

CFX_API cfx_status cfx_tape_resume(cfx_tape *tape) {
    CF_TRY(check_tape("resume", tape));
    if (!tape->walking || (!tape->custom && !tape->stopped))
        return cf_fail(CFX_ESTATE, "resume: the tape waits for no custom gradient");
    return walk(tape);
}

/* ---- operations of the host's own ------------------------------------------------------------------- */

static cfx_status custom_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    (void)tape;
    (void)node;
    (void)dy;
    return CFX_CUSTOM;
}

CFX_API cfx_status cfx_tape_record(int32_t id, int32_t n, const cfx_tensor *const *inputs, int32_t nkept,
                                   const cfx_tensor *const *kept, cfx_tensor *out) {
    cf_node *node = NULL;
    void *memory;
    CF_TRY(cf_check_tensor("op", "result", out));
    if (n < 0 || nkept < 0) return cf_fail(CFX_EARG, "op: %d inputs, %d kept tensors", n, nkept);
    for (int32_t k = 0; k < n; k++) CF_TRY(cf_check_tensor("op", "inputs", inputs[k]));
    for (int32_t k = 0; k < nkept; k++) CF_TRY(cf_check_tensor("op", "kept", kept[k]));
    if (cf_watched(out)) return cf_fail(CFX_ESTATE, "op: the result is recorded already");
    CF_TRY(cf_alloc(((size_t)n + (size_t)nkept + 1) * sizeof(cfx_tensor *), &memory));
    const cfx_tensor **saved = memory;
    int32_t nsaved = 0;
    for (int32_t k = 0; k < n; k++) saved[nsaved++] = inputs[k];
    for (int32_t k = 0; k < nkept; k++) saved[nsaved++] = kept[k];
    saved[nsaved++] = out;
    const cfx_status status = record(&(cf_recording){.op = "op",
                                                     .backward = custom_backward,
                                                     .nin = n,
                                                     .nsaved = nsaved,
                                                     .inputs = inputs,
                                                     .saved = saved,
                                                     .kept = &id,
                                                     .kept_bytes = sizeof id},
                                     out, &node);
    for (int32_t k = 0; node && k < nsaved; k++) node->saved[k].op = "a custom operation";
    free(memory);
    return status;
}

static cf_node *custom_node(cfx_tape *tape) { return tape->walking && tape->custom ? tape->nodes[tape->at] : NULL; }

CFX_API cfx_status cfx_tape_custom(cfx_tape *tape, int32_t *id, cfx_tensor *grad) {
    CF_TRY(check_tape("custom", tape));
    cf_node *node = custom_node(tape);
    if (!node) return cf_fail(CFX_ESTATE, "custom: the tape waits for no custom gradient");
    *id = *(int32_t *)node->kept;
    return cfx_detach(&node->grad, grad);
}

CFX_API cfx_status cfx_tape_give(cfx_tape *tape, int32_t i, const cfx_tensor *grad) {
    CF_TRY(check_tape("give", tape));
    cf_node *node = custom_node(tape);
    CF_TRY(cf_check_tensor("op", "gradient", grad));
    if (!node) return cf_fail(CFX_ESTATE, "give: the tape waits for no custom gradient");
    if (i < 0 || i >= node->nin) return cf_fail(CFX_EARG, "give: input %d of %d", i + 1, node->nin);
    const cf_input *in = &node->inputs[i];
    if (in->given) return cf_fail(CFX_ESTATE, "give: the gradient of input %d was given already", i + 1);
    if (in->node < 0) return CFX_OK;
    if (!cf_has_shape(grad, in->ndim, in->shape)) {
        char have[256], want[192];
        return cf_fail(CFX_EARG, "op: gradient %d: expected the input's shape %s, got %s", i + 1,
                       cf_shape_text(in->ndim, in->shape, want), cf_describe(grad, have));
    }
    cfx_tensor given;
    cf_alias(grad, &given);
    return cf_give(tape, node, i, &given);
}
