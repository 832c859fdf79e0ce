/* dnnl_act.c: see dnnl_act.h. */
#include "cpu/dnnl_act.h"

#include "cpu/dnnl_primitive.h"
#include "device/ops.h"

static dnnl_alg_kind_t act_of(int act) {
    switch (act) {
    case CF_OP_relu:
    case CF_OP_leakyrelu: return dnnl_eltwise_relu; /* alpha: the slope below 0 */
    case CF_OP_tanh: return dnnl_eltwise_tanh;
    case CF_OP_sigmoid: return dnnl_eltwise_logistic;
    case CF_OP_elu: return dnnl_eltwise_elu;
    default: return dnnl_alg_kind_undef;
    }
}

/* relu has no slope; its row has no parameter to be trusted. */
static float slope_of(int act, double p0) { return act == CF_OP_relu ? 0 : (float)p0; }

/* Without a slope oneDNN takes the larger of x and 0, which makes a 0 of NaN: a net that diverged would look healthy. */
int cf_dnnl_fuses(int act, double p0) {
    return act_of(act) != dnnl_alg_kind_undef && (act_of(act) != dnnl_eltwise_relu || slope_of(act, p0) != 0);
}

int cf_dnnl_append_row(dnnl_post_ops_t ops, int act, double p0) {
    return cf_dnnl_append_act(ops, act_of(act), slope_of(act, p0));
}
