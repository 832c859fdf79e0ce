/* dnnl_matmul.c: see dnnl_matmul.h. */
#include "cpu/dnnl_matmul.h"

#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "cpu/dnnl.h"
#include "cpu/dnnl_act.h"

/* All of a product that shapes its primitive; without padding. */
typedef struct shape {
    int64_t batch, n, m, k, a_batch, a_row, a_col, b_batch, b_row, b_col, y_batch, y_row;
    double p0, p1;
    int32_t dtype, add, act, bias;
} shape;

static shape shape_of(const cf_product *p) {
    return (shape){p->batch, p->n,       p->m,     p->k,  p->a_batch, p->a_row, p->a_col, p->b_batch, p->b_row,
                   p->b_col, p->y_batch, p->y_row, p->p0, p->p1,      p->dtype, p->add,   p->act,     p->bias != NULL};
}

#define TRY(call) \
    if ((status = (call)) != dnnl_success) goto done

/* A [batch, rows, cols] (or without batch, [rows, cols]) operand.  A stride over one element may be anything
 * for us and must make sense for oneDNN. */
static dnnl_status_t operand(cf_dnnl_desc *out, dnnl_data_type_t type, int64_t batch, int64_t batch_stride,
                             int64_t rows, int64_t cols, int64_t row, int64_t col) {
    if (col == 1 && rows == 1) row = cols;
    else if (row == 1 && cols == 1 && col != 1) col = rows;
    if (batch == 1) return cf_dnnl_desc_new(out, 2, (dnnl_dims_t){rows, cols}, type, (dnnl_dims_t){row, col});
    if (batch_stride == 0) { /* repeated: oneDNN broadcasts a dimension of one */
        batch = 1;
        batch_stride = rows * row > cols * col ? rows * row : cols * col;
    }
    return cf_dnnl_desc_new(out, 3, (dnnl_dims_t){batch, rows, cols}, type, (dnnl_dims_t){batch_stride, row, col});
}

static dnnl_status_t describe(dnnl_engine_t engine, const shape *s, dnnl_primitive_desc_t *out) {
    const dnnl_data_type_t type = s->dtype == CFX_BFLOAT16 ? dnnl_bf16 : dnnl_f32;
    cf_dnnl_desc a, b, bias, y;
    dnnl_post_ops_t ops = NULL;
    dnnl_status_t status;
    memset(&a, 0, sizeof a);
    memset(&b, 0, sizeof b);
    memset(&bias, 0, sizeof bias);
    memset(&y, 0, sizeof y);
    TRY(dnnl_post_ops_create(&ops));
    if (s->add) TRY(cf_dnnl_append_sum(ops));
    if (s->act >= 0) TRY(cf_dnnl_append_row(ops, s->act, s->p0));
    TRY(operand(&a, type, s->batch, s->a_batch, s->n, s->k, s->a_row, s->a_col));
    TRY(operand(&b, type, s->batch, s->b_batch, s->k, s->m, s->b_row, s->b_col));
    TRY(operand(&y, type, s->batch, s->y_batch, s->n, s->m, s->y_row, 1));
    if (s->bias) TRY(operand(&bias, type, s->batch, 0, 1, s->m, s->m, 1));
    TRY(cf_dnnl_matmul_desc(out, engine, &a, &b, &bias, &y, ops));
done:
    if (ops) dnnl_post_ops_destroy(ops);
    cf_dnnl_desc_free(&a);
    cf_dnnl_desc_free(&b);
    cf_dnnl_desc_free(&bias);
    cf_dnnl_desc_free(&y);
    return status;
}

static cfx_status make(dnnl_engine_t engine, const void *key, cf_dnnl_primitive *out) {
    static const int args[] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS};
    const shape *s = key;
    dnnl_primitive_desc_t desc = NULL;
    dnnl_status_t status;
    TRY(describe(engine, s, &desc));
    TRY(cf_dnnl_primitive_new(engine, desc, s->bias ? 4 : 3, args, out));
done:
    if (desc) dnnl_primitive_desc_destroy(desc);
    return cf_dnnl_made(status, "such a product");
}

cfx_status cf_dnnl_matmul_new(struct dnnl_engine *engine, const cf_product *product, struct cf_dnnl_primitive *out) {
    const shape s = shape_of(product);
    return make(engine, &s, out);
}

cfx_status cf_dnnl_product(cf_worker *worker, const cf_product *p) {
    const shape key = shape_of(p);
    cf_dnnl_primitive *matmul;
    CF_TRY(cf_dnnl_find(worker, make, &key, sizeof key, &matmul));
    const cfx_status status =
        cf_dnnl_run(worker, matmul, (void *[]){(void *)p->a, (void *)p->b, p->y, (void *)p->bias});
    if (status != CFX_EFAULT) return status;
    char what[128];
    snprintf(what, sizeof what, "a product of [%lld, %lld] and [%lld, %lld]", (long long)p->n, (long long)p->k,
             (long long)p->k, (long long)p->m);
    return cf_fail_in(status, what);
}
