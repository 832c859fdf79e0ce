/* lines.c: see lines.h. */
#include "data/lines.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_LINE = 64 * 1024 };

cfx_status cf_lines_open(cfx_context *context, const char *path, cf_lines *out) {
    *out = (cf_lines){.reader = {.path = path}, .room = FIRST_LINE};
    CF_TRY(cf_alloc(out->room, (void **)&out->text));
    return cf_reader_open(context, path, &out->reader);
}

void cf_lines_close(cf_lines *l) {
    cf_reader_close(&l->reader);
    free(l->text);
    l->text = NULL;
}

/* Moves what is left to the front and reads behind it; one byte stays free for the last line's NUL. */
static cfx_status refill(cf_lines *l) {
    memmove(l->text, l->text + l->at, l->have - l->at);
    l->have -= l->at;
    l->at = 0;
    if (l->have + 1 >= l->room) {
        void *grown = l->text;
        if (cf_realloc(&grown, l->room * 2) != CFX_OK) return cf_fail_in(CFX_EMEMORY, l->reader.path);
        l->text = grown;
        l->room *= 2;
    }
    const size_t want = l->room - 1 - l->have;
    size_t got;
    CF_TRY(cf_reader_read(&l->reader, l->text + l->have, want, &got));
    l->have += got;
    l->end = got < want;
    return CFX_OK;
}

/* Spreadsheets put a byte order mark before the first line. */
static void drop_mark(char **line, size_t *length) {
    if (*length < 3 || memcmp(*line, "\xEF\xBB\xBF", 3) != 0) return;
    *line += 3;
    *length -= 3;
}

cfx_status cf_lines_next(cf_lines *l, char **line, size_t *length) {
    size_t scanned = 0;
    char *stop;
    while (!(stop = memchr(l->text + l->at + scanned, '\n', l->have - l->at - scanned)) && !l->end) {
        scanned = l->have - l->at;
        CF_TRY(refill(l));
    }
    *line = NULL;
    if (!stop && l->at == l->have) return CFX_OK;
    if (!stop) stop = l->text + l->have;
    *line = l->text + l->at;
    *length = (size_t)(stop - *line);
    l->at = (size_t)(stop - l->text) + (stop < l->text + l->have);
    if (*length && (*line)[*length - 1] == '\r') --*length;
    (*line)[*length] = '\0';
    if (++l->number == 1) drop_mark(line, length);
    return CFX_OK;
}
