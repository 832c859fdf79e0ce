/* dnnl_act.h: activations as the last step of oneDNN's products and convolutions. */
#ifndef CF_CPU_DNNL_ACT_H
#define CF_CPU_DNNL_ACT_H

struct dnnl_post_ops;

/* Whether a primitive can take this row, with its number p0, last, so that a NaN stays one. */
int cf_dnnl_fuses(int act, double p0);
/* Makes such a row the next step; returns a dnnl_status_t. */
int cf_dnnl_append_row(struct dnnl_post_ops *ops, int act, double p0);

#endif
