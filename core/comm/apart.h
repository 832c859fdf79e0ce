/* apart.h: what collectives write lies apart.
 *
 * Replicas are joined side by side, each in its own memory, so an element that two of them share would be read by one
 * join after another has written it.  Tensors of one replica may share memory where they do so likewise in all replicas
 * and one is all of the smaller one: they are tied, and hold the same result.
 */
#ifndef CF_COMM_APART_H
#define CF_COMM_APART_H

#include "comm/parts.h"

/* CFX_EARG, naming both places, if leaves [replicas][n] share memory otherwise.  paths: the names of places, or NULL:
 * their numbers.  One replica is joined with none: it is not looked at. */
cfx_status cf_check_apart(const char *function, int32_t replicas, int32_t n, cfx_tensor *const *leaves,
                          const char *const *paths);
/* CFX_EARG if a leaf that is written is expanded. */
cfx_status cf_check_targets(const char *function, cf_combine op, int32_t root, int32_t replicas, int32_t n,
                            cfx_tensor *const *leaves, const char *const *paths);
/* The same of out[r], which are written from in[s]: no two may share an element, but in[r] and out[r] where in_place[r]
 * says that the one is its own place in the other. */
cfx_status cf_check_outs(const char *function, int32_t replicas, const cfx_tensor *const *in, cfx_tensor *const *out,
                         const bool *in_place);

#endif
