/* dtype.c: the eight element types as the public header has them. */
#include <string.h>

#include "base/view.h"

static const char *const names[CFX_DTYPES] = {"bool",    "uint8",    "int32",   "int64",
                                              "float16", "bfloat16", "float32", "float64"};

static bool is_dtype(int32_t dtype) { return dtype >= 0 && dtype < CFX_DTYPES; }

CFX_API const char *cfx_dtype_name(int32_t dtype) { return is_dtype(dtype) ? names[dtype] : "unknown"; }

CFX_API int32_t cfx_dtype_size(int32_t dtype) { return is_dtype(dtype) ? (int32_t)cf_dtype_size(dtype) : 0; }

CFX_API int32_t cfx_dtype_find(const char *name) {
    for (int32_t i = 0; i < CFX_DTYPES; i++)
        if (strcmp(names[i], name) == 0) return i;
    return -1;
}

/* bool < uint8 < int32 < int64 < float16, bfloat16 < float32 < float64; the two half types have no common one
 * below float32. */
CFX_API int32_t cfx_dtype_promote(int32_t a, int32_t b) {
    if ((a == CFX_FLOAT16 && b == CFX_BFLOAT16) || (a == CFX_BFLOAT16 && b == CFX_FLOAT16)) return CFX_FLOAT32;
    return a > b ? a : b;
}
