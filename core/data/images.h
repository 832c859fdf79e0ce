/* images.h: a list of picture files with a class for each, of which there may be millions.
 *
 * Paths lie one behind the other in one text, each from the folder on that all have in common.  A list is built on the
 * host's thread and then only read, by any thread; who reads it from another one holds it.
 */
#ifndef CF_DATA_IMAGES_H
#define CF_DATA_IMAGES_H

#include "base/status.h"

enum { CF_PATH_BYTES = 4096 };

struct cfx_images {
    int32_t refs; /* the host's */
    char *folder; /* of all */
    int64_t n, room;
    struct cf_image {
        size_t path; /* in text */
        int32_t id;
    } * image; /* [n] */
    int32_t classes, class_room;
    struct cf_class {
        size_t name, description;
    } * class; /* [classes] */
    char *text;
    size_t bytes, text_room;
    int64_t left_out;
};

/* An empty list of files below `folder`. */
cfx_status cf_images_new(const char *folder, cfx_images **out);
cfx_status cf_images_add(cfx_images *images, const char *path, int32_t id);
/* The next class; description "": there is none. */
cfx_status cf_images_add_class(cfx_images *images, const char *name, const char *description);
static inline const char *cf_images_class_name(const cfx_images *images, int32_t k) {
    return images->text + images->class[k].name;
}
/* Refuses a class, named by its id, that no file is of. */
cfx_status cf_images_check(const cfx_images *images);
cfx_images *cf_images_hold(cfx_images *images);

#endif
