/* imagenet.c: ImageNet as Kaggle has it ("ImageNet Object Localization Challenge").
 *
 *   LOC_synset_mapping.txt                      n01440764 tench, Tinca tinca
 *   LOC_train_solution.csv, LOC_val_solution.csv
 *                                               ImageId,PredictionString
 *                                               n02017213_7894,n02017213 115 49 448 294 n02017213 66 52 312 301
 *   ILSVRC/Data/CLS-LOC/train/<synset>/<ImageId>.JPEG, ILSVRC/Data/CLS-LOC/val/<ImageId>.JPEG
 *
 * The files' names come from these tables, so that a million of them need not be listed.  Names become parts of paths:
 * one that could lead elsewhere is refused.
 */
#include "data/images.h"
#include "data/lines.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/locale.h"

enum { BOX_NUMBERS = 4 };

/* A synset of the mapping. */
typedef struct synset {
    char *name, *description;
    int32_t id; /* -1: its pictures are not wanted */
} synset;

typedef struct mapping {
    synset *synset; /* in the file's order */
    int32_t n, room;
    synset **sorted; /* by name */
} mapping;

static cfx_status join(char *out, const char *root, const char *rest) {
    if (strlen(root) + 1 + strlen(rest) >= CF_PATH_BYTES) return cf_fail(CFX_EARG, "root: a path that is too long");
    cf_format(out, CF_PATH_BYTES, "%s/%s", root, rest);
    return CFX_OK;
}

/* Whether it can be a part of a path, and of this one. */
static int is_name(const char *name, size_t length) {
    return length > 0 && strlen(name) == length && !strchr(name, '/') && !strstr(name, "..") && strlen(name) < 256;
}

/* ---- the mapping ----------------------------------------------------------------------------------- */

static void free_mapping(mapping *m) {
    for (int32_t i = 0; i < m->n; i++) {
        free(m->synset[i].name);
        free(m->synset[i].description);
    }
    free(m->synset);
    free(m->sorted);
}

static cfx_status add_synset(mapping *m, const char *name, const char *description) {
    if (m->n == m->room) {
        const int32_t room = m->room ? m->room * 2 : 1024;
        CF_TRY(cf_realloc((void **)&m->synset, (size_t)room * sizeof *m->synset));
        m->room = room;
    }
    synset *s = &m->synset[m->n++];
    *s = (synset){.id = -1};
    CF_TRY(cf_copy_string(name, &s->name));
    return cf_copy_string(description, &s->description);
}

static int by_name(const void *a, const void *b) {
    return strcmp((*(synset *const *)a)->name, (*(synset *const *)b)->name);
}

static synset *find_synset(const mapping *m, const char *name) {
    synset wanted = {.name = (char *)name}, *key = &wanted;
    synset **found = m->n ? bsearch(&key, m->sorted, (size_t)m->n, sizeof *m->sorted, by_name) : NULL;
    return found ? *found : NULL;
}

static cfx_status sort_mapping(mapping *m, const char *path) {
    if (m->n == 0) return cf_fail(CFX_EIO, "%s: there are no classes in it", path);
    CF_TRY(cf_alloc((size_t)m->n * sizeof *m->sorted, (void **)&m->sorted));
    for (int32_t i = 0; i < m->n; i++) m->sorted[i] = &m->synset[i];
    qsort(m->sorted, (size_t)m->n, sizeof *m->sorted, by_name);
    for (int32_t i = 1; i < m->n; i++)
        if (strcmp(m->sorted[i - 1]->name, m->sorted[i]->name) == 0)
            return cf_fail(CFX_EIO, "%s: class '%s' is there twice", path, m->sorted[i]->name);
    return CFX_OK;
}

static cfx_status read_mapping_lines(cf_lines *lines, mapping *m) {
    for (;;) {
        char *line;
        size_t length;
        CF_TRY(cf_lines_next(lines, &line, &length));
        if (!line) break;
        if (length == 0) continue;
        char *space = memchr(line, ' ', length);
        const size_t name = space ? (size_t)(space - line) : length;
        if (space) *space = '\0';
        if (!is_name(line, name) || (space && strlen(space + 1) != length - name - 1))
            return cf_fail(CFX_EIO, "%s: line %" PRId64 ": expected the name of a class and its description",
                           lines->reader.path, lines->number);
        CF_TRY(add_synset(m, line, space ? space + 1 : ""));
    }
    return sort_mapping(m, lines->reader.path);
}

static cfx_status read_mapping(cfx_context *context, const char *root, mapping *m) {
    char path[CF_PATH_BYTES];
    cf_lines lines;
    CF_TRY(join(path, root, "LOC_synset_mapping.txt"));
    cfx_status status = cf_lines_open(context, path, &lines);
    if (status == CFX_OK) status = read_mapping_lines(&lines, m);
    cf_lines_close(&lines);
    return status;
}

/* Gives the wanted classes their ids. */
static cfx_status choose(mapping *m, int32_t n, const char *const *classes, cfx_images *images) {
    for (int32_t i = 0; i < (classes ? n : m->n); i++) {
        const char *const name = classes ? classes[i] : m->synset[i].name;
        synset *s = classes ? find_synset(m, name) : &m->synset[i];
        if (!s) return cf_fail(CFX_EARG, "classes: there is no class '%.100s' in the mapping", name);
        if (s->id >= 0) return cf_fail(CFX_EARG, "classes: '%s' is there twice", s->name);
        s->id = i;
        CF_TRY(cf_images_add_class(images, s->name, s->description));
    }
    return CFX_OK;
}

/* ---- solutions ------------------------------------------------------------------------------------- */

static cfx_status bad_row(const cf_lines *lines, const char *what) {
    return cf_fail(CFX_EIO, "%s: line %" PRId64 ": %s", lines->reader.path, lines->number, what);
}

/* The next word of a row, NUL-terminated; NULL: there is none. */
static char *next_word(char **at) {
    char *word = *at + strspn(*at, " ");
    if (!*word) return NULL;
    *at = word + strcspn(word, " ");
    if (**at) *(*at)++ = '\0';
    return word;
}

static int is_number(const char *word) { return word && *word && word[strspn(word, "0123456789")] == '\0'; }

/* The one class that the boxes of a row name; NULL: they name several. */
static cfx_status read_boxes(const cf_lines *lines, const mapping *m, char *boxes, const synset **out) {
    *out = NULL;
    int several = 0;
    for (char *word; (word = next_word(&boxes));) {
        const synset *s = find_synset(m, word);
        if (!s)
            return cf_fail(CFX_EIO, "%s: line %" PRId64 ": class '%.40s' is not in the mapping", lines->reader.path,
                           lines->number, word);
        for (int i = 0; i < BOX_NUMBERS; i++)
            if (!is_number(next_word(&boxes))) return bad_row(lines, "expected a class and four numbers for each box");
        several = several || (*out && *out != s);
        *out = s;
    }
    if (!*out) return bad_row(lines, "there is no box");
    if (several) *out = NULL;
    return CFX_OK;
}

static cfx_status add_row(const cf_lines *lines, const mapping *m, int in_folders, char *line, size_t length,
                          cfx_images *images) {
    char path[CF_PATH_BYTES];
    const synset *s;
    char *comma = memchr(line, ',', length);
    if (!comma || strlen(line) != length || strchr(comma + 1, ','))
        return bad_row(lines, "expected an ImageId and a PredictionString");
    *comma = '\0';
    if (!is_name(line, (size_t)(comma - line))) return bad_row(lines, "the ImageId is no name of a file");
    CF_TRY(read_boxes(lines, m, comma + 1, &s));
    if (!s) images->left_out++;
    if (!s || s->id < 0) return CFX_OK;
    cf_format(path, sizeof path, "%s%s%s.JPEG", in_folders ? s->name : "", in_folders ? "/" : "", line);
    return cf_images_add(images, path, s->id);
}

static cfx_status read_solutions(cf_lines *lines, const mapping *m, int in_folders, cfx_images *images) {
    char *line;
    size_t length;
    CF_TRY(cf_lines_next(lines, &line, &length));
    if (!line || strcmp(line, "ImageId,PredictionString") != 0)
        return cf_fail(CFX_EIO, "%s: line 1: expected ImageId,PredictionString", lines->reader.path);
    for (;;) {
        CF_TRY(cf_lines_next(lines, &line, &length));
        if (!line) return cf_images_check(images);
        if (length) CF_TRY(add_row(lines, m, in_folders, line, length, images));
    }
}

/* ---- the list -------------------------------------------------------------------------------------- */

typedef struct wanted {
    cfx_context *context;
    const char *root, *split, *solutions;
    int32_t n;
    const char *const *classes;
} wanted;

static cfx_status read_images(const wanted *w, mapping *m, cfx_images **out) {
    char folder[CF_PATH_BYTES], path[CF_PATH_BYTES];
    cf_lines lines;
    const int train = strcmp(w->split, "train") == 0;
    if (!train && strcmp(w->split, "val") != 0)
        return cf_fail(CFX_EARG, "split '%.20s'; expected 'train' or 'val'", w->split);
    CF_TRY(join(folder, w->root, train ? "ILSVRC/Data/CLS-LOC/train" : "ILSVRC/Data/CLS-LOC/val"));
    CF_TRY(join(path, w->root, train ? "LOC_train_solution.csv" : "LOC_val_solution.csv"));
    CF_TRY(read_mapping(w->context, w->root, m));
    CF_TRY(cf_images_new(folder, out));
    CF_TRY(choose(m, w->n, w->classes, *out));
    cfx_status status = cf_lines_open(w->context, w->solutions ? w->solutions : path, &lines);
    if (status == CFX_OK) status = read_solutions(&lines, m, train, *out);
    cf_lines_close(&lines);
    return status;
}

static cfx_status finish(cfx_status status, mapping *m, cfx_images *images, const char *name, cfx_images **out) {
    free_mapping(m);
    if (status == CFX_OK) *out = images;
    else cfx_images_free(&images);
    return status == CFX_OK || status == CFX_EINTERRUPT ? status : cf_fail_in(status, name);
}

CFX_API cfx_status cfx_images_imagenet(cfx_context *context, const char *root, const char *split, const char *solutions,
                                       int32_t n, const char *const *classes, cfx_images **out) {
    if (!context || !root || !split || !out || (classes && n < 1))
        return cf_fail(CFX_EARG, "images_imagenet: context, root, split or out is NULL, or there are no classes");
    const wanted w = {context, root, split, solutions, n, classes};
    mapping m = {0};
    cfx_images *images = NULL;
    const cfx_status status = read_images(&w, &m, &images);
    return finish(status, &m, images, "images_imagenet", out);
}

CFX_API cfx_status cfx_images_labels(cfx_context *context, const char *root, cfx_images **out) {
    if (!context || !root || !out) return cf_fail(CFX_EARG, "images_labels: context, root or out is NULL");
    mapping m = {0};
    cfx_images *images = NULL;
    cfx_status status = read_mapping(context, root, &m);
    if (status == CFX_OK) status = cf_images_new(root, &images);
    if (status == CFX_OK) status = choose(&m, 0, NULL, images);
    return finish(status, &m, images, "images_labels", out);
}
