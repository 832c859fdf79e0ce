/* The collectives of comm_test.c between devices that share no memory. */
#define COMM_SPECS \
    { "fake", "fake*2", "fake*3", "fake*4", "fake*5" }
#include "comm_test.c"
