/* matmul.h: products by our own loops, for kernels that are made of some. */
#ifndef CF_CPU_KERNELS_MATMUL_H
#define CF_CPU_KERNELS_MATMUL_H

#include "cpu/cpu.h"
#include "cpu/dnnl_matmul.h"

/* The product, without activation, of float32, float64, int32 or int64: the same bits with any team.  bias only where
 * batch is 1.  room: CF_K(product_room) bytes, which are never fewer for a larger product. */
void CF_K(product)(cf_worker *worker, const cf_product *p, void *room);
size_t CF_K(product_room)(const cf_worker *worker, const cf_product *p);

#endif
