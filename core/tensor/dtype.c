/* dtype.c: the eight element types. */
#include <string.h>

#include "conflux.h"

static const struct {
    const char *name;
    int32_t size;
} dtypes[CFX_DTYPES] = {
    [CFX_BOOL] = {"bool", 1},       [CFX_UINT8] = {"uint8", 1},     [CFX_INT32] = {"int32", 4},
    [CFX_INT64] = {"int64", 8},     [CFX_FLOAT16] = {"float16", 2}, [CFX_BFLOAT16] = {"bfloat16", 2},
    [CFX_FLOAT32] = {"float32", 4}, [CFX_FLOAT64] = {"float64", 8},
};

CFX_API const char *cfx_dtype_name(int32_t dtype) {
    return dtype >= 0 && dtype < CFX_DTYPES ? dtypes[dtype].name : "unknown";
}

CFX_API int32_t cfx_dtype_size(int32_t dtype) { return dtype >= 0 && dtype < CFX_DTYPES ? dtypes[dtype].size : 0; }

CFX_API int32_t cfx_dtype_find(const char *name) {
    for (int32_t i = 0; i < CFX_DTYPES; i++)
        if (strcmp(dtypes[i].name, name) == 0) return i;
    return -1;
}

/* bool < uint8 < int32 < int64 < float16, bfloat16 < float32 < float64; the two half types have no common one
 * below float32. */
CFX_API int32_t cfx_dtype_promote(int32_t a, int32_t b) {
    if ((a == CFX_FLOAT16 && b == CFX_BFLOAT16) || (a == CFX_BFLOAT16 && b == CFX_FLOAT16)) return CFX_FLOAT32;
    return a > b ? a : b;
}
