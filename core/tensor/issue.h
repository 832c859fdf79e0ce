/* issue.h: an operation, as one command on the compute queue of its first output's device. */
#ifndef CF_TENSOR_ISSUE_H
#define CF_TENSOR_ISSUE_H

#include "tensor/dispatch.h"

/* As many as the operation has. */
#define CF_VIEWS(...) ((cfx_tensor *const[]){__VA_ARGS__})

/* Inputs may lie on other devices only for `copy`. */
typedef struct cf_issue {
    cf_op op;
    int dtype; /* the dtype that it computes in */
    int nout, nin;
    int nupdated;         /* so many of the outputs, the last ones, are updated; the others are made */
    cfx_tensor *const *t; /* outputs, then inputs */
    const void *params;   /* of the row's kind; NULL: zeros */
    size_t items_bytes;   /* of the list at their end, if the kind has one */
} cf_issue;

/* Fills the call, orders it and notes its uses.  On failure nothing was enqueued, and outputs that were never written
 * are released. */
cfx_status cf_issue_run(const cf_issue *issue);
/* n >= 1 operations of one row that takes a list, on one device, as one command: all of them happen, or none.  touches:
 * room for the views of all. */
cfx_status cf_issue_list(const cf_issue *issues, int32_t n, cf_touch *touches);

#endif
