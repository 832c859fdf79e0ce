/* folders.c: a folder for each class, as most people keep their pictures.
 *
 * Classes are the folders of the root, sorted by bytes; a class's pictures are the .jpg and .jpeg files at any depth below
 * it, sorted by their paths' bytes.  Names that begin with a dot are none of either.  Links are followed.
 */
#include "data/images.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/locale.h"

enum { MOST_DEPTH = 32, FIRST_NAMES = 16 }; /* a link may lead back up */

typedef struct names {
    char **name;
    size_t n, room;
} names;

static cfx_status add_name(names *all, const char *name) {
    if (all->n == all->room) {
        const size_t room = all->room ? all->room * 2 : FIRST_NAMES;
        CF_TRY(cf_realloc((void **)&all->name, room * sizeof *all->name));
        all->room = room;
    }
    CF_TRY(cf_copy_string(name, &all->name[all->n]));
    all->n++;
    return CFX_OK;
}

static void free_names(names *all) {
    for (size_t i = 0; i < all->n; i++) free(all->name[i]);
    free(all->name);
    *all = (names){0};
}

static int compare(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static void sort(names *all) {
    if (all->n) qsort(all->name, all->n, sizeof *all->name, compare);
}

/* ---- entries of a folder ----------------------------------------------------------------------------- */

static int is_picture(const char *name) {
    const char *dot = strrchr(name, '.');
    return dot && (strcasecmp(dot, ".jpg") == 0 || strcasecmp(dot, ".jpeg") == 0);
}

static cfx_status join(char *out, const char *folder, const char *name) {
    if (strlen(folder) + 1 + strlen(name) >= CF_PATH_BYTES)
        return cf_fail(CFX_EIO, "%.100s...: a path of more than %d bytes", folder, CF_PATH_BYTES);
    cf_format(out, CF_PATH_BYTES, *folder ? "%s/%s" : "%s%s", folder, name);
    return CFX_OK;
}

static int is_folder(const struct dirent *entry, const char *path) {
    struct stat st;
    if (entry->d_type != DT_LNK && entry->d_type != DT_UNKNOWN) return entry->d_type == DT_DIR;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* Sorts what lies in `folder` into folders and pictures. */
static cfx_status read_entries(DIR *directory, const char *folder, names *folders, names *pictures) {
    for (const struct dirent *entry; (errno = 0, entry = readdir(directory));) {
        char path[CF_PATH_BYTES];
        if (entry->d_name[0] == '.') continue;
        CF_TRY(join(path, folder, entry->d_name));
        if (is_folder(entry, path)) CF_TRY(add_name(folders, entry->d_name));
        else if (is_picture(entry->d_name)) CF_TRY(add_name(pictures, entry->d_name));
    }
    return errno ? cf_fail(CFX_EIO, "%s: %s", folder, cf_strerror(errno)) : CFX_OK;
}

static cfx_status read_folder(const char *folder, names *folders, names *pictures) {
    DIR *directory = opendir(folder);
    if (!directory) return cf_fail(CFX_EIO, "%s: %s", folder, cf_strerror(errno));
    const cfx_status status = read_entries(directory, folder, folders, pictures);
    closedir(directory);
    return status;
}

/* ---- the pictures of a class ------------------------------------------------------------------------ */

typedef struct walk {
    cfx_context *context;
    const char *root;
    names found; /* paths from the root on */
} walk;

static cfx_status find(walk *w, const char *folder, int depth);

static cfx_status find_in(walk *w, const char *folder, int depth, const names *folders, const names *pictures) {
    char path[CF_PATH_BYTES];
    for (size_t i = 0; i < pictures->n; i++) {
        CF_TRY(join(path, folder, pictures->name[i]));
        CF_TRY(add_name(&w->found, path));
    }
    for (size_t i = 0; i < folders->n; i++) {
        CF_TRY(join(path, folder, folders->name[i]));
        CF_TRY(find(w, path, depth + 1));
    }
    return CFX_OK;
}

static cfx_status find(walk *w, const char *folder, int depth) { // NOLINT(misc-no-recursion): to MOST_DEPTH
    char path[CF_PATH_BYTES];
    names folders = {0}, pictures = {0};
    CF_TRY(cfx_check(w->context));
    CF_TRY(join(path, w->root, folder));
    if (depth > MOST_DEPTH) return cf_fail(CFX_EIO, "%s: more than %d folders deep", path, MOST_DEPTH);
    cfx_status status = read_folder(path, &folders, &pictures);
    if (status == CFX_OK) status = find_in(w, folder, depth, &folders, &pictures);
    free_names(&folders);
    free_names(&pictures);
    return status;
}

static cfx_status add_class(walk *w, const char *name, cfx_images *images) {
    const int32_t id = images->classes;
    CF_TRY(cf_images_add_class(images, name, ""));
    CF_TRY(find(w, name, 1));
    sort(&w->found);
    for (size_t i = 0; i < w->found.n; i++) CF_TRY(cf_images_add(images, w->found.name[i], id));
    free_names(&w->found);
    return CFX_OK;
}

static cfx_status add_classes(walk *w, const names *classes, cfx_images *images) {
    if (classes->n == 0) return cf_fail(CFX_EIO, "%s: there are no folders in it, one for each class", w->root);
    for (size_t i = 0; i < classes->n; i++) CF_TRY(add_class(w, classes->name[i], images));
    return cf_images_check(images);
}

CFX_API cfx_status cfx_images_folders(cfx_context *context, const char *root, cfx_images **out) {
    if (!context || !root || !out) return cf_fail(CFX_EARG, "images_folders: context, root or out is NULL");
    walk w = {.context = context, .root = root};
    names classes = {0}, loose = {0};
    cfx_images *images = NULL;
    cfx_status status = cf_images_new(root, &images);
    if (status == CFX_OK) status = read_folder(root, &classes, &loose);
    sort(&classes);
    if (status == CFX_OK) status = add_classes(&w, &classes, images);
    free_names(&classes);
    free_names(&loose);
    free_names(&w.found);
    if (status == CFX_OK) *out = images;
    else cfx_images_free(&images);
    return status == CFX_OK || status == CFX_EINTERRUPT ? status : cf_fail_in(status, "images_folders");
}
