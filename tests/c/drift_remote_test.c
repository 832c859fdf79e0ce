/* drift_test.c between devices that share no memory, or some of it. */
#define COMM_SPECS \
    { "fake", "fake*2", "fake*3", "fake:0*2,fake:1*2", "fake:0*2,fake:1*2,fake:2" }
#include "drift_test.c"
