/* channels.h: sums over the channels of packed tensors [samples, rows, c], and what is made of x by numbers of each
 * channel: what batch and group normalisation consist of.
 *
 * Rows lie one behind the other, so `lanes` of them are one wide row, and loops are long where channels are few.  Sums
 * lie on a grid of chunks of wide rows, which is of the shape alone, and are merged in order.
 */
#ifndef CF_CPU_KERNELS_CHANNELS_H
#define CF_CPU_KERNELS_CHANNELS_H

#include "cpu/kernels/block.h"

typedef struct cf_channels {
    cf_compute compute;
    int64_t samples, rows, c;
    int64_t lanes, width;       /* width: lanes c */
    int64_t wide, rest;         /* wide rows of a sample, and rows behind the last of them */
    int64_t strips;             /* pieces of a wide row, of at most CF_BLOCK elements */
    int64_t chunk_rows, chunks; /* wide rows of a chunk; chunks of a sample, `rest` being one of its own */
} cf_channels;

/* c > 0 */
cf_channels CF_K(channels)(int dtype, int64_t samples, int64_t rows, int64_t c);

/* n numbers of any float dtype as doubles, and back; and scratch memory for so many, or NULL and a message. */
void CF_K(channels_read)(const cf_view *v, int64_t n, double *out);
void CF_K(channels_write)(const cf_view *v, int64_t n, const double *numbers);
double *CF_K(channels_room)(cf_worker *worker, int64_t n);

/* How many numbers the two sums need while they are made. */
static inline int64_t cf_channels_room(const cf_channels *g) { return g->samples * g->chunks * 2 * g->width; }

/* A gate lets the gradient through: everywhere; where relu came last, where y > 0, or where that holds of the y that x
 * gives. */
typedef enum cf_gate { CF_GATE_NONE, CF_GATE_OUTPUT, CF_GATE_INPUT } cf_gate;

/* Numbers of the compute type, each [samples, width]: a channel's in each lane.  y = (x - mean) scale + shift;
 * dx = scale g - flat - (x - mean) slope. */
typedef struct cf_channel_numbers {
    const void *mean, *scale, *shift, *flat, *slope;
} cf_channel_numbers;

/* Repeats a channel's number in each lane: [samples, c] -> [samples, width] of the compute type. */
void CF_K(channels_spread)(const cf_channels *g, const double *number, void *out);

/* mean and away [samples, c]: of each channel's rows the mean, and the sum of the squares of what is left without it.
 * room: cf_channels_room. */
void CF_K(channels_moments)(cf_worker *worker, const cf_channels *g, const cf_view *x, double *room, double *mean,
                            double *away);
/* sum_g and sum_gx [samples, c]: of g, the gradient past the gate, and of g (x - mean).  y: of CF_GATE_OUTPUT. */
void CF_K(channels_slopes)(cf_worker *worker, const cf_channels *g, cf_gate gate, const cf_view *dy, const cf_view *x,
                           const cf_view *y, const cf_channel_numbers *numbers, double *room, double *sum_g,
                           double *sum_gx);
/* y = (x - mean) scale + shift + residual, then relu; residual may be NULL. */
void CF_K(channels_map)(cf_worker *worker, const cf_channels *g, int relu, const cf_view *x, const cf_view *residual,
                        const cf_channel_numbers *numbers, const cf_view *y);
/* dx and dresidual, either of which may be NULL: the latter is g.  numbers->slope NULL: dx = scale g. */
void CF_K(channels_gradient)(cf_worker *worker, const cf_channels *g, cf_gate gate, const cf_view *dy, const cf_view *x,
                             const cf_view *y, const cf_channel_numbers *numbers, const cf_view *dx,
                             const cf_view *dresidual);

#endif
