/* shares.h: weights of a mean over samples. */
#ifndef CF_COMM_SHARES_H
#define CF_COMM_SHARES_H

#include <stdint.h>

typedef enum cf_shares { CF_SHARES_NONE, CF_SHARES_EVEN, CF_SHARES_UNEVEN } cf_shares;

/* Writes each replica's share of all samples to `out`: the weights over their sum.  NONE: all weights are 0.  The weights
 * are finite and not below 0. */
cf_shares cf_shares_of(int32_t n, const double *weights, double *out);

#endif
