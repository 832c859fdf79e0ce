/* elementwise_f32.c: the block loops of float. */
#include "cpu/kernels/elementwise_loops.h"
#include "cpu/kernels/maths.h"

typedef float number;
#define M(function) function##f
#define EXP cf_exp
#define TANH cf_tanh
#define LOOPS CF_K(loops_f32)
#include "cpu/kernels/elementwise_float.h"
