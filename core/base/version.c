/* version.c: what this library is. */
#include "conflux.h"

CFX_API int32_t cfx_abi_version(void) { return CFX_ABI_VERSION; }
CFX_API const char *cfx_version(void) { return CF_VERSION; }
CFX_API const char *cfx_build(void) { return CF_BUILD; }
