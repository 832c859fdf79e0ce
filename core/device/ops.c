/* ops.c: the op table as data. */
#include "device/ops.h"

#include <string.h>

const cf_op_info cf_op_table[CF_OPS] = {
#define CF_OP(name, family, domain, gradient, params) \
    [CF_OP_##name] = {#name, #name "_", CF_##family, CF_##domain, CF_GRADIENT_##gradient, sizeof(cf_##params##_params)},
#include "device/ops.def"
#undef CF_OP
};

CFX_API int32_t cfx_op_find(const char *name) {
    for (int32_t i = 0; i < CF_OPS; i++)
        if (strcmp(cf_op_table[i].name, name) == 0) return i;
    return -1;
}
