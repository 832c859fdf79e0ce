/* dnnl_make.c: oneDNN 2.x describes an operation in a struct first; 3.x makes its primitive descriptor in one
 * call and has memory descriptors behind pointers.  The first part of this file gives both the same face. */
#include "cpu/dnnl_make.h"

#if DNNL_VERSION_MAJOR >= 3

typedef dnnl_memory_desc_t desc; /* a pointer, NULL for none */

static dnnl_status_t desc_new(desc *out, int ndims, const dnnl_dims_t dims, dnnl_data_type_t type,
                              const dnnl_dims_t strides) {
    return dnnl_memory_desc_create_with_strides(out, ndims, dims, type, strides);
}

static void desc_free(desc *d) {
    if (*d) dnnl_memory_desc_destroy(*d);
}

static dnnl_status_t memory_new(dnnl_memory_t *out, const desc *d, dnnl_engine_t engine) {
    return dnnl_memory_create(out, *d, engine, DNNL_MEMORY_NONE);
}

static dnnl_status_t matmul_desc(dnnl_primitive_desc_t *out, const desc *a, const desc *b, const desc *bias,
                                 const desc *y, const_dnnl_primitive_attr_t attr, dnnl_engine_t engine) {
    return dnnl_matmul_primitive_desc_create(out, engine, *a, *b, *bias, *y, attr);
}

static dnnl_status_t append_sum(dnnl_post_ops_t ops) {
    return dnnl_post_ops_append_sum(ops, 1, 0, dnnl_data_type_undef);
}

static dnnl_status_t append_act(dnnl_post_ops_t ops, dnnl_alg_kind_t act, float p0) {
    return dnnl_post_ops_append_eltwise(ops, act, p0, 0);
}

static const_dnnl_memory_desc_t pad_desc(const_dnnl_primitive_desc_t primitive) {
    return dnnl_primitive_desc_query_md(primitive, dnnl_query_scratchpad_md, 0);
}

#else

typedef dnnl_memory_desc_t desc; /* a struct, ndims 0 for none */

static dnnl_status_t desc_new(desc *out, int ndims, const dnnl_dims_t dims, dnnl_data_type_t type,
                              const dnnl_dims_t strides) {
    return dnnl_memory_desc_init_by_strides(out, ndims, dims, type, strides);
}

static void desc_free(desc *d) { (void)d; }

static dnnl_status_t memory_new(dnnl_memory_t *out, const desc *d, dnnl_engine_t engine) {
    return dnnl_memory_create(out, d, engine, DNNL_MEMORY_NONE);
}

static dnnl_status_t matmul_desc(dnnl_primitive_desc_t *out, const desc *a, const desc *b, const desc *bias,
                                 const desc *y, const_dnnl_primitive_attr_t attr, dnnl_engine_t engine) {
    dnnl_matmul_desc_t matmul;
    const dnnl_status_t status = dnnl_matmul_desc_init(&matmul, a, b, bias->ndims ? bias : NULL, y);
    return status != dnnl_success ? status : dnnl_primitive_desc_create(out, &matmul, attr, engine, NULL);
}

static dnnl_status_t append_sum(dnnl_post_ops_t ops) { return dnnl_post_ops_append_sum(ops, 1); }

static dnnl_status_t append_act(dnnl_post_ops_t ops, dnnl_alg_kind_t act, float p0) {
    return dnnl_post_ops_append_eltwise(ops, 1, act, p0, 0);
}

static const dnnl_memory_desc_t *pad_desc(const_dnnl_primitive_desc_t primitive) {
    return dnnl_primitive_desc_query_md(primitive, dnnl_query_scratchpad_md, 0);
}

#endif

dnnl_alg_kind_t cf_dnnl_act(int act) {
    switch (act) {
    case CF_OP_relu:
    case CF_OP_leakyrelu: return dnnl_eltwise_relu; /* alpha: the slope below 0 */
    case CF_OP_tanh: return dnnl_eltwise_tanh;
    case CF_OP_sigmoid: return dnnl_eltwise_logistic;
    case CF_OP_elu: return dnnl_eltwise_elu;
    default: return dnnl_alg_kind_undef;
    }
}

#define TRY(call) \
    if ((status = (call)) != dnnl_success) goto done

static dnnl_status_t attr_new(const cf_product *p, dnnl_primitive_attr_t *out) {
    dnnl_status_t status;
    dnnl_post_ops_t ops = NULL;
    TRY(dnnl_primitive_attr_create(out));
    TRY(dnnl_primitive_attr_set_scratchpad_mode(*out, dnnl_scratchpad_mode_user));
    TRY(dnnl_post_ops_create(&ops));
    if (p->add) TRY(append_sum(ops));
    if (p->act >= 0) {
        /* relu has no slope; its row has no parameter to be trusted. */
        TRY(append_act(ops, cf_dnnl_act(p->act), p->act == CF_OP_relu ? 0 : (float)p->p0));
    }
    TRY(dnnl_primitive_attr_set_post_ops(*out, ops));
done:
    if (ops) dnnl_post_ops_destroy(ops);
    return status;
}

/* A [batch, rows, cols] (or without batch, [rows, cols]) operand.  A stride over one element may be anything
 * for us and must make sense for oneDNN. */
static dnnl_status_t operand(desc *out, dnnl_data_type_t type, int64_t batch, int64_t batch_stride, int64_t rows,
                             int64_t cols, int64_t row, int64_t col) {
    if (col == 1 && rows == 1) row = cols;
    else if (row == 1 && cols == 1 && col != 1) col = rows;
    if (batch == 1) return desc_new(out, 2, (dnnl_dims_t){rows, cols}, type, (dnnl_dims_t){row, col});
    if (batch_stride == 0) { /* repeated: oneDNN broadcasts a dimension of one */
        batch = 1;
        batch_stride = rows * row > cols * col ? rows * row : cols * col;
    }
    return desc_new(out, 3, (dnnl_dims_t){batch, rows, cols}, type, (dnnl_dims_t){batch_stride, row, col});
}

cfx_status cf_dnnl_matmul_new(dnnl_engine_t engine, const cf_product *p, cf_dnnl_matmul *out) {
    const dnnl_data_type_t type = p->dtype == CFX_BFLOAT16 ? dnnl_bf16 : dnnl_f32;
    desc a, b, bias, y;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t primitive = NULL;
    dnnl_status_t status;
    memset(out, 0, sizeof *out);
    memset(&a, 0, sizeof a);
    memset(&b, 0, sizeof b);
    memset(&bias, 0, sizeof bias);
    memset(&y, 0, sizeof y);
    TRY(attr_new(p, &attr));
    TRY(operand(&a, type, p->batch, p->a_batch, p->n, p->k, p->a_row, p->a_col));
    TRY(operand(&b, type, p->batch, p->b_batch, p->k, p->m, p->b_row, p->b_col));
    TRY(operand(&y, type, p->batch, p->y_batch, p->n, p->m, p->y_row, 1));
    if (p->bias) TRY(operand(&bias, type, p->batch, 0, 1, p->m, p->m, 1));
    TRY(matmul_desc(&primitive, &a, &b, &bias, &y, attr, engine));
    TRY(dnnl_primitive_create(&out->primitive, primitive));
    TRY(memory_new(&out->a, &a, engine));
    TRY(memory_new(&out->b, &b, engine));
    TRY(memory_new(&out->y, &y, engine));
    if (p->bias) TRY(memory_new(&out->bias, &bias, engine));
    out->pad_bytes = dnnl_memory_desc_get_size(pad_desc(primitive));
    TRY(dnnl_memory_create(&out->pad, pad_desc(primitive), engine, DNNL_MEMORY_NONE));
done:
    if (primitive) dnnl_primitive_desc_destroy(primitive);
    if (attr) dnnl_primitive_attr_destroy(attr);
    desc_free(&a);
    desc_free(&b);
    desc_free(&bias);
    desc_free(&y);
    if (status == dnnl_success) return CFX_OK;
    cf_dnnl_matmul_free(out);
    if (status == dnnl_out_of_memory) return cf_fail(CFX_EMEMORY, "oneDNN has no memory for a product");
    return cf_fail(CFX_ESTATE, "oneDNN has no such product (status %d)", (int)status);
}

void cf_dnnl_matmul_free(cf_dnnl_matmul *matmul) {
    dnnl_memory_t memories[] = {matmul->a, matmul->b, matmul->bias, matmul->y, matmul->pad};
    for (size_t i = 0; i < sizeof memories / sizeof *memories; i++)
        if (memories[i]) dnnl_memory_destroy(memories[i]);
    if (matmul->primitive) dnnl_primitive_destroy(matmul->primitive);
    memset(matmul, 0, sizeof *matmul);
}
