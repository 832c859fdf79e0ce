/* optim.c: optimisers, fused over flat buffers.
 *
 * The numbers that change every step (rate, bias corrections, clip scale) lie in a slot on the device, a small float64
 * tensor that one command writes; the update reads it.  Parameters on another device, or with another count of updates,
 * have a slot of their own.  Clipping by the global norm never touches the gradients:
 * its scale is one of the slot's numbers.  device/rules.def says what each rule computes.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/options.h"
#include "device/rules.h"
#include "tensor/drift.h"
#include "tensor/issue.h"
#include "tensor/primitive.h"
#include "tensor/stretch.h"

enum { MAX_STATES = 2 };

static const char *const rules[CF_RULES] = {
#define CF_RULE(name, ...) #name,
#include "device/rules.def"
};

static int32_t rule_find(const char *name) {
    for (int32_t k = 0; k < CF_RULES; k++)
        if (strcmp(rules[k], name) == 0) return k;
    return -1;
}

CFX_API int32_t cfx_rule_states(const char *name) {
    const int32_t k = rule_find(name);
    return k < 0 ? -1 : cf_rule_kind_states(k);
}

/* NAdam's products of mu_i = beta1 (1 - 0.96^(0.004 i) / 2), i up to t (Dozat 2016, as PyTorch has it). */
static void nadam_terms(double beta1, int64_t t, double slot[8]) {
    const double ratio = pow(0.96, 0.004);
    double power = 1, product = 1, mu = 0;
    /* the product is 0 in float64 long before a long run's t */
    const int64_t terms = t < 20000 ? t : 20000;
    for (int64_t i = 1; i <= terms; i++) {
        power *= ratio;
        mu = beta1 * (1 - 0.5 * power);
        product *= mu;
    }
    if (t > terms) mu = beta1 * (1 - 0.5 * pow(0.96, 0.004 * (double)t));
    const double next = beta1 * (1 - 0.5 * pow(0.96, 0.004 * (double)(t + 1)));
    slot[3] = (1 - mu) / (1 - product);
    slot[4] = next / (1 - product * next);
}

static void slot_numbers(int32_t kind, const cfx_rule *rule, int64_t step, double slot[8]) {
    const double t = (double)step;
    slot[0] = rule->rate;
    slot[1] = rule->beta1;
    slot[2] = rule->beta2;
    slot[3] = 1 - pow(rule->beta1, t);
    slot[4] = 1 - pow(rule->beta2, t);
    slot[5] = 1 - pow(rule->beta2, t);
    slot[6] = t;
    slot[7] = 1;
    if (kind == CF_RULE_nadam) nadam_terms(rule->beta1, step, slot);
}

/* Borrowed: a stretch as one dimension. */
static void stretch_of(const cfx_tensor *first, int64_t n, cfx_tensor *out) {
    *out = *first;
    cf_set_packed(out, 1, &n);
}

static cfx_status make_slot(cfx_device *device, int32_t kind, const cfx_rule *rule, int64_t step, cfx_tensor *slot) {
    cf_slot_params params;
    const int64_t n = 8;
    slot_numbers(kind, rule, step, params.numbers);
    CF_TRY(cf_new(device, CFX_FLOAT64, 1, &n, slot));
    return cf_issue_run(
        &(cf_issue){.op = CF_OP_slot, .dtype = CFX_FLOAT64, .nout = 1, .t = CF_VIEWS(slot), .params = &params});
}

/* So many calls are one command: what a launch's parameters hold the addresses of. */
enum { LIST = 60, VIEWS = 3 + MAX_STATES };

/* A command in the making. */
typedef struct list {
    int32_t n;
    cf_issue issues[LIST];
    cf_touch touches[LIST * VIEWS];
    cf_update_params params[LIST];
    cfx_tensor views[LIST][2 + MAX_STATES];
    cfx_tensor *t[LIST][VIEWS]; /* of each issue: these, the result or the slot */
} list;

static cfx_status new_list(list **out) {
    void *memory;
    CF_TRY(cf_alloc(sizeof **out, &memory));
    *out = memory;
    (*out)->n = 0;
    return CFX_OK;
}

static cfx_status issue_list(list *of) {
    const int32_t n = of->n;
    of->n = 0;
    return n > 0 ? cf_issue_list(of->issues, n, of->touches) : CFX_OK;
}

/* The sum of squares of the stretches on `device`, a float64 scalar. */
static cfx_status sum_squares(cfx_device *device, cfx_tensor *const *xs, int32_t count, const cf_stretch *stretches,
                              cfx_tensor *out) {
    list *sums;
    const cf_sumsq_params adding = {1};
    bool adds = false;
    CF_TRY(cf_new(device, CFX_FLOAT64, 0, NULL, out));
    CF_TRY(new_list(&sums));
    cfx_status status = CFX_OK;
    for (int32_t k = 0; k < count && status == CFX_OK; k++) {
        const cfx_tensor *first = xs[stretches[k].leaf];
        if (cf_device(first) != device) continue;
        cfx_tensor *x = &sums->views[sums->n][0], **t = sums->t[sums->n];
        stretch_of(first, stretches[k].n, x);
        t[0] = out;
        t[1] = x;
        sums->issues[sums->n++] = (cf_issue){
            .op = CF_OP_sumsq, .dtype = x->_dtype, .nout = 1, .nin = 1, .t = t, .params = adds ? &adding : NULL};
        adds = true;
        if (sums->n == LIST) status = issue_list(sums);
    }
    if (status == CFX_OK) status = issue_list(sums);
    free(sums);
    return status;
}

/* One update: the lists are [parameters, gradients, states..][n]. */
typedef struct update {
    int32_t kind, n, count;
    const cfx_rule *rule;
    int64_t step;
    cfx_tensor **lists;
    const double *scale, *decay;
    const int64_t *missed;
    cf_stretch *stretches; /* [count] */
} update;

/* The numbers of a device's parameters that have been updated equally often. */
typedef struct slot {
    cfx_device *device;
    int64_t step;
    cfx_tensor numbers, squares; /* squares: of the device's gradients, in its first slot */
    int32_t first;               /* the device's first slot */
} slot;

/* The slot of a stretch, or -1. */
static int32_t find_slot(const update *u, const slot *slots, int32_t n, int32_t stretch) {
    const int32_t leaf = u->stretches[stretch].leaf;
    const int64_t step = u->step - (u->missed ? u->missed[leaf] : 0);
    for (int32_t k = 0; k < n; k++)
        if (slots[k].device == cf_device(u->lists[leaf]) && slots[k].step == step) return k;
    return -1;
}

static cfx_status make_slots(const update *u, slot **out, int32_t *n) {
    for (int32_t k = 0; k < u->count; k++) {
        if (find_slot(u, *out, *n, k) >= 0) continue;
        const int32_t leaf = u->stretches[k].leaf;
        void *memory = *out;
        CF_TRY(cf_realloc(&memory, (size_t)(*n + 1) * sizeof **out)); /* there are few */
        slot *slots = *out = memory, *fresh = &slots[*n];
        *fresh = (slot){.device = cf_device(u->lists[leaf]), .step = u->step - (u->missed ? u->missed[leaf] : 0)};
        while (slots[fresh->first].device != fresh->device) fresh->first++;
        CF_TRY(make_slot(fresh->device, u->kind, u->rule, fresh->step, &fresh->numbers));
        ++*n;
    }
    return CFX_OK;
}

/* The sum of squares over all devices, on `device`; the same bits on each, for all add the devices' parts in the order
 * of the slots. */
static cfx_status total_squares(const slot *slots, int32_t n, cfx_device *device, cfx_tensor *total) {
    cfx_status status = cfx_to(&slots[0].squares, device, -1, total);
    for (int32_t k = 1; k < n && status == CFX_OK; k++) {
        cfx_tensor part = {0}, sum = {0};
        if (slots[k].first != k) continue;
        status = cfx_to(&slots[k].squares, device, -1, &part);
        if (status == CFX_OK) status = cfx_binary(CF_OP_add, total, &part, &sum);
        cfx_release(&part);
        if (status != CFX_OK) break;
        cfx_release(total);
        *total = sum;
    }
    return status;
}

static cfx_status clip(const update *u, slot *slots, int32_t n) {
    for (int32_t k = 0; k < n; k++)
        if (slots[k].first == k)
            CF_TRY(sum_squares(slots[k].device, u->lists + u->n, u->count, u->stretches, &slots[k].squares));
    for (int32_t k = 0; k < n; k++) {
        cfx_tensor total = {0};
        cfx_status status = total_squares(slots, n, slots[k].device, &total);
        if (status == CFX_OK)
            status = cf_issue_run(&(cf_issue){.op = CF_OP_clip,
                                              .dtype = CFX_FLOAT64,
                                              .nout = 1,
                                              .nin = 1,
                                              .t = CF_VIEWS(&slots[k].numbers, &total),
                                              .params = &(cf_clip_params){u->rule->clip_norm},
                                              .nupdated = 1});
        cfx_release(&total);
        CF_TRY(status);
    }
    return CFX_OK;
}

static cfx_status check_update(int32_t states, int32_t n, cfx_tensor *const *params, cfx_tensor *const *lists) {
    char have[256], want[256];
    for (int32_t k = 0; k < n; k++) {
        const cfx_tensor *p = params[k];
        CF_TRY(cf_check_tensor("update", "model", p));
        CF_TRY(cf_check_writable("update", p));
        CF_TRY(cf_refuse_behind("update", "the model", p));
        for (int32_t r = 1; r < 2 + states; r++) {
            const cfx_tensor *x = lists[(int64_t)r * n + k];
            CF_TRY(cf_check_tensor("update", r == 1 ? "gradient" : "state", x));
            CF_TRY(cf_check_same_device("update", r == 1 ? "gradient" : "state", p, x));
            CF_TRY(cf_refuse_behind("update", r == 1 ? "the gradient" : "the state", x));
            const int32_t half = p->_dtype == CFX_FLOAT16 || p->_dtype == CFX_BFLOAT16;
            const int32_t dtype = r > 1 && half ? CFX_FLOAT32 : p->_dtype;
            if (!cf_same_shape(p, x) || x->_dtype != dtype)
                return cf_fail(CFX_EARG, "update: %s %d: expected a %s's shape (%s), got %s",
                               r == 1 ? "gradient" : "state", k + 1, cf_describe(p, want), cfx_dtype_name(dtype),
                               cf_describe(x, have));
        }
        if (!cf_is_float(p->_dtype))
            return cf_fail(CFX_EARG, "update: parameter %d: expected floats, got %s", k + 1, cf_describe(p, have));
        for (int32_t r = 0; r < 2 + states; r++)
            if (!cfx_is_contiguous(lists[(int64_t)r * n + k]))
                return cf_fail(CFX_EARG, "update: tensor %d: expected packed tensors, got a strided %s", k + 1,
                               cf_describe(lists[(int64_t)r * n + k], have));
    }
    return CFX_OK;
}

/* Leaves of one key are updated together. */
typedef struct group_key {
    double scale, decay;
    int64_t missed;
    int32_t leaf;
} group_key;

static bool same_key(const group_key *x, const group_key *y) {
    return x->scale == y->scale && x->decay == y->decay && x->missed == y->missed;
}

/* qsort: the same keys side by side, each in the order of the leaves. */
static int by_key(const void *a, const void *b) {
    const group_key *x = a, *y = b;
    if (x->scale != y->scale) return x->scale < y->scale ? -1 : 1;
    if (x->decay != y->decay) return x->decay < y->decay ? -1 : 1;
    if (x->missed != y->missed) return x->missed < y->missed ? -1 : 1;
    return x->leaf < y->leaf ? -1 : x->leaf > y->leaf;
}

/* Leaves with the same factors and the same count are of one group; NULL where all are. */
static cfx_status group_leaves(const update *u, int32_t **out) {
    void *memory, *groups;
    *out = NULL;
    if (!u->scale && !u->decay && !u->missed) return CFX_OK;
    CF_TRY(cf_alloc((size_t)u->n * sizeof(int32_t), &groups));
    if (cf_alloc((size_t)u->n * sizeof(group_key), &memory) != CFX_OK) {
        free(groups);
        return CFX_EMEMORY;
    }
    group_key *all = memory;
    int32_t *group = *out = groups;
    for (int32_t k = 0; k < u->n; k++)
        all[k] = (group_key){u->scale ? u->scale[k] : 1, u->decay ? u->decay[k] : 1, u->missed ? u->missed[k] : 0, k};
    qsort(all, (size_t)u->n, sizeof *all, by_key);
    for (int32_t k = 0, first = 0; k < u->n; k++) {
        if (!same_key(&all[k], &all[first])) first = k;
        group[all[k].leaf] = all[first].leaf;
    }
    free(memory);
    return CFX_OK;
}

static void add_stretch(const update *u, int32_t k, cfx_tensor *numbers, list *to) {
    const int32_t states = cf_rule_kind_states(u->kind), leaf = u->stretches[k].leaf;
    cfx_tensor *x = to->views[to->n];
    cf_update_params *params = &to->params[to->n];
    cfx_tensor **t = to->t[to->n];
    cf_issue *issue = &to->issues[to->n++];
    *params = (cf_update_params){.scale = u->scale ? u->scale[leaf] : 1,
                                 .decay = u->rule->decay * (u->decay ? u->decay[leaf] : 1),
                                 .clip_value = u->rule->clip_value,
                                 .eps = u->rule->eps,
                                 .rule = u->kind};
    *issue = (cf_issue){.op = CF_OP_update,
                        .dtype = u->lists[leaf]->_dtype,
                        .nout = 1 + states,
                        .nin = 2,
                        .nupdated = 1 + states,
                        .t = t,
                        .params = params};
    for (int32_t r = 0; r < 2 + states; r++) stretch_of(u->lists[(int64_t)r * u->n + leaf], u->stretches[k].n, &x[r]);
    t[0] = &x[0];
    for (int32_t s = 0; s < states; s++) t[1 + s] = &x[2 + s];
    t[1 + states] = &x[1];
    t[2 + states] = numbers;
}

/* Whether one launch can update both: they have a device, a dtype and a slot. */
static bool go_together(const update *u, int32_t a, int32_t b) {
    const int32_t one = u->stretches[a].leaf, other = u->stretches[b].leaf;
    return cf_device(u->lists[one]) == cf_device(u->lists[other]) && u->lists[one]->_dtype == u->lists[other]->_dtype &&
           (!u->missed || u->missed[one] == u->missed[other]);
}

/* Puts stretch `first` into the list, and of those behind it what goes with it and is left. */
static void gather(const update *u, int32_t first, cfx_tensor *numbers, bool *left, list *to) {
    for (int32_t k = first; k < u->count && to->n < LIST; k++) {
        if (!left[k] || !go_together(u, first, k)) continue;
        add_stretch(u, k, numbers, to);
        left[k] = false;
    }
}

/* Once the first command is enqueued nothing may fail: what the others need is made sure of before. */
static cfx_status update_room(const update *u) {
    const int32_t lists = 2 + cf_rule_kind_states(u->kind);
    for (int32_t k = 0; k < u->count; k++) {
        cfx_tensor *t[2 + MAX_STATES]; /* parameter, states, gradient */
        for (int32_t r = 0; r < lists; r++) {
            cfx_tensor *x = u->lists[(int64_t)r * u->n + u->stretches[k].leaf];
            CF_TRY(cf_refuse_void(x));
            CF_TRY(cf_uses_room(&x->_buffer->reads, 1));
            CF_TRY(cf_uses_room(&x->_buffer->made, 1));
            t[r == 0 ? 0 : r == 1 ? lists - 1 : r - 1] = x;
        }
        CF_TRY(cf_change_room(lists - 1, 1, t, u->count));
    }
    return CFX_OK;
}

/* All parameters take the step, or none: an interrupt comes before the first command, or behind the last. */
static cfx_status update_all(const update *u, slot *slots, int32_t n) {
    void *memory;
    list *updates;
    CF_TRY(cf_alloc((size_t)u->count * sizeof(bool), &memory));
    bool *left = memory;
    cfx_status status = new_list(&updates);
    if (status == CFX_OK) {
        for (int32_t k = 0; k < u->count; k++) left[k] = true;
        for (int32_t k = 0; k < u->count && status == CFX_OK; k++) {
            if (!left[k]) continue;
            gather(u, k, &slots[find_slot(u, slots, n, k)].numbers, left, updates);
            status = issue_list(updates);
            if (status == CFX_OK) cf_interrupts_hold(&cf_context(u->lists[0])->hub);
        }
        cf_interrupts_resume(&cf_context(u->lists[0])->hub);
        free(updates);
    }
    free(left);
    return status;
}

static cfx_status run_update(const update *u) {
    int32_t n = 0;
    slot *slots = NULL;
    cfx_status status = update_room(u);
    if (status == CFX_OK) status = make_slots(u, &slots, &n);
    if (status == CFX_OK && u->rule->clip_norm > 0) status = clip(u, slots, n);
    if (status == CFX_OK) status = update_all(u, slots, n);
    for (int32_t k = 0; k < n; k++) {
        cfx_release(&slots[k].numbers);
        cfx_release(&slots[k].squares);
    }
    free(slots);
    return status;
}

/* Limits may be missing, for they have a default. */
static cfx_status read_rule(const cfx_rule *given, cfx_rule *out, int32_t *kind) {
    static const cf_field last[] = {CF_FIELD(cfx_rule, eps), CF_FIELD(cfx_rule, clip_norm),
                                    CF_FIELD(cfx_rule, clip_value)};
    if (!given) return cf_fail(CFX_EARG, "update: argument 'rule': expected one, got NULL");
    CF_TRY(cf_options_read("update: rule", given, last, sizeof last / sizeof *last, out, sizeof *out));
    *kind = out->name ? rule_find(out->name) : -1;
    if (*kind < 0) return cf_fail(CFX_EARG, "update: there is no rule '%s'", out->name ? out->name : "NULL");
    return CFX_OK;
}

CFX_API cfx_status cfx_optim_update(const cfx_rule *given, int64_t step, int32_t n, cfx_tensor *const *params,
                                    const cfx_tensor *const *grads, cfx_tensor *const *states, const double *scale,
                                    const double *decay, const int64_t *missed) {
    cfx_rule rule;
    int32_t kind;
    CF_TRY(read_rule(given, &rule, &kind));
    if (step < 1) return cf_fail(CFX_EARG, "update: argument 'step': expected 1 or more, got %lld", (long long)step);
    for (int32_t k = 0; missed && k < n; k++)
        if (missed[k] < 0 || missed[k] >= step)
            return cf_fail(CFX_EARG, "update: parameter %d: expected 0 to %lld missed updates, got %lld", k + 1,
                           (long long)step - 1, (long long)missed[k]);
    if (n == 0) return CFX_OK;
    const int32_t nlists = 2 + cf_rule_kind_states(kind);
    void *memory;
    CF_TRY(cf_alloc((size_t)n * (size_t)nlists * sizeof(void *), &memory));
    update u = {.kind = kind,
                .n = n,
                .rule = &rule,
                .step = step,
                .lists = memory,
                .scale = scale,
                .decay = decay,
                .missed = missed};
    int32_t *group = NULL;
    memcpy(u.lists, params, (size_t)n * sizeof *u.lists);
    memcpy(u.lists + n, grads, (size_t)n * sizeof *u.lists);
    if (nlists > 2) memcpy(u.lists + 2 * (int64_t)n, states, (size_t)n * (size_t)(nlists - 2) * sizeof *u.lists);
    cfx_status status = check_update(cf_rule_kind_states(kind), n, params, u.lists);
    if (status == CFX_OK) status = group_leaves(&u, &group);
    if (status == CFX_OK) status = cf_stretches(nlists, n, u.lists, group, &u.stretches, &u.count);
    if (status == CFX_OK && u.count) status = run_update(&u);
    free(u.stretches);
    free(group);
    free(memory);
    return status;
}

CFX_API cfx_status cfx_norm(int32_t n, const cfx_tensor *const *xs, cfx_tensor *out) {
    cf_stretch *stretches = NULL;
    int32_t count = 0;
    char have[256];
    if (n < 1) return cf_fail(CFX_EARG, "norm: expected one tensor or more, got none");
    for (int32_t k = 0; k < n; k++) {
        CF_TRY(cf_check_tensor("norm", "x", xs[k]));
        CF_TRY(cf_check_same_device("norm", "x", xs[0], xs[k]));
        if (!cf_is_float(xs[k]->_dtype) || !cfx_is_contiguous(xs[k]))
            return cf_fail(CFX_EARG, "norm: tensor %d: expected packed floats, got %s", k + 1,
                           cf_describe(xs[k], have));
    }
    cfx_tensor total = {0}, root = {0};
    cfx_status status = cf_stretches(1, n, (cfx_tensor *const *)xs, NULL, &stretches, &count);
    if (status == CFX_OK && count == 0) status = cfx_full(cf_device(xs[0]), CFX_FLOAT64, 0, NULL, 0, &total);
    else if (status == CFX_OK)
        status = sum_squares(cf_device(xs[0]), (cfx_tensor *const *)xs, count, stretches, &total);
    if (status == CFX_OK) status = cfx_unary(CF_OP_sqrt, &total, 0, 0, &root);
    if (status == CFX_OK) status = cfx_to(&root, NULL, CFX_FLOAT32, out);
    cfx_release(&total);
    cfx_release(&root);
    free(stretches);
    return status;
}
