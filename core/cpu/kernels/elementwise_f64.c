/* elementwise_f64.c: the block loops of double. */
#include "cpu/kernels/elementwise_loops.h"
#include "cpu/kernels/maths.h"

typedef double number;
#define M(function) function
#define EXP exp
#define TANH tanh
#define LOOPS CF_K(loops_f64)
#include "cpu/kernels/elementwise_float.h"
