/* overlap.h: which elements two views have in common.
 *
 * Views of one buffer may interleave (the left and the right columns of a matrix) though their extents overlap, so an
 * operation that must not write what it reads, or write a place twice, asks for the elements themselves.
 */
#ifndef CF_TENSOR_OVERLAP_H
#define CF_TENSOR_OVERLAP_H

#include "tensor/tensor.h"

/* How many elements a and b, neither of them expanded, have in common; counting stops at `enough`.  Exact for views of
 * one dtype; views of two dtypes, or of memory that one program has shared twice and an odd number of bytes apart, have
 * one in common where their extents overlap. */
int64_t cf_shared(const cfx_tensor *a, const cfx_tensor *b, int64_t enough);
/* Whether several elements of x lie in one place. */
bool cf_is_expanded(const cfx_tensor *x);
/* Whether a and b are the same elements in the same order. */
bool cf_is_same(const cfx_tensor *a, const cfx_tensor *b);
/* The addresses that x can touch. */
void cf_reach(const cfx_tensor *x, uintptr_t *from, uintptr_t *to);

#endif
