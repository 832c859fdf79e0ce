/* loader.h: how a source of samples becomes a loader. */
#ifndef CF_DATA_LOADER_H
#define CF_DATA_LOADER_H

#include "data/samples.h"

/* Reads and checks options and devices, for which a source is about to be made. */
cfx_status cf_loader_options_read(const cfx_loader_options *given, cfx_device *const *devices, cfx_loader *const *out,
                                  cfx_loader_options *options);
/* A loader over `samples`, which it ends, also where this fails. */
cfx_status cf_loader_make(const cfx_loader_options *options, cf_samples *samples, cfx_device *const *devices,
                          cfx_loader **out);

#endif
