/* comm.h: what the tests of collectives share: virtual devices, and small tensors on them. */
#ifndef CF_TEST_COMM_H
#define CF_TEST_COMM_H

#include "fake.h"
#include "tensor/buffer.h"

static cfx_context *context;
static cfx_device *device[8];
/* How `devices` devices are called: those of a file that defines COMM_SPECS, [devices - 1], else CPUs. */
static inline void setup(int devices) {
#ifdef COMM_SPECS
    static const char *const specs[] = COMM_SPECS;
    context = context_of(specs[devices - 1]);
#else
    char spec[16];
    snprintf(spec, sizeof spec, "cpu*%d", devices);
    context = context_of(spec);
#endif
    for (int i = 0; i < devices; i++) device[i] = cfx_device_at(context, i);
}
static inline void teardown(void) {
    for (int i = 0; i < cfx_device_count(context); i++) CHECK_EQ(blocks_of(device[i]), 0);
    cfx_context_free(context);
}
static inline void release(int n, cfx_tensor *xs) {
    for (int i = 0; i < n; i++) cfx_release(&xs[i]);
}

/* As says, of a message with the names of the first two devices for $0 and $1. */
static inline int says_of(const char *part) {
    char text[256];
    size_t n = 0;
    for (; *part && n + CF_NAME_BYTES < sizeof text; part++) {
        if (*part == '$') n += (size_t)sprintf(text + n, "%s", cfx_device_name(device[*++part - '0']));
        else text[n++] = *part;
    }
    text[n] = 0;
    return says(text);
}

/* [n] of a dtype, all `value`. */
static inline cfx_tensor of(cfx_device *on, int32_t dtype, int64_t n, double value) {
    cfx_tensor x = {0};
    CHECK_STATUS(cfx_full(on, dtype, 1, &n, value, &x), CFX_OK);
    return x;
}
/* The one value of x as a double, of any dtype. */
static inline double any_value(const cfx_tensor *x) {
    cfx_tensor wide = {0};
    double value = NAN;
    if (CHECK_STATUS(cfx_to(x, NULL, CFX_FLOAT32, &wide), CFX_OK)) value = value_of(&wide);
    cfx_release(&wide);
    return value;
}

/* Replicas in flat buffers. */
typedef struct model {
    int replicas, n;
    cfx_tensor x[5][4], *leaves[20];
    cfx_layout *layout;
} model;
static inline void make_model(model *m, int replicas, int n, const int64_t *sizes) {
    static const char *const paths[] = {"0", "1", "2", "3"};
    memset(m, 0, sizeof *m);
    m->replicas = replicas;
    m->n = n;
    for (int r = 0; r < replicas; r++) {
        for (int k = 0; k < n; k++) {
            m->x[r][k] = full(device[r], sizes[k], (r + 1) * (k + 1));
            m->leaves[r * n + k] = &m->x[r][k];
        }
        if (r == 0) CHECK_STATUS(cfx_layout_new(n, (const cfx_tensor *const *)m->leaves, paths, &m->layout), CFX_OK);
        CHECK_STATUS(cfx_layout_pack(m->layout, device[r], &m->leaves[r * n]), CFX_OK);
    }
}
static inline void free_model(model *m) {
    for (int r = 0; r < m->replicas; r++) release(m->n, m->x[r]);
    cfx_layout_free(m->layout);
}

#endif
