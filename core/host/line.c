/* line.c: reads lines by stdio, or by the editor where there is one. */
#include "host/line.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/edit.h"
#include "host/run.h"

struct cf_line {
    cf_edit *edit; /* NULL: by stdio */
    bool has_terminal;
    struct sigaction before; /* the old action of an interrupt; only with a terminal */
    char *text;
    size_t size;
};

cf_line *cf_line_open(cf_completer *completer, void *data) {
    cf_line *line = calloc(1, sizeof *line);
    if (!line) return NULL;
    line->has_terminal = isatty(STDIN_FILENO);
    if (line->has_terminal) cf_note_interrupts(&line->before);
    const char *terminal = getenv("TERM");
    const bool can_edit = terminal && *terminal && strcmp(terminal, "dumb") != 0;
    if (line->has_terminal && isatty(STDOUT_FILENO) && can_edit) line->edit = cf_edit_open(completer, data);
    return line;
}

void cf_line_close(cf_line *line) {
    if (!line) return;
    cf_edit_close(line->edit);
    if (line->has_terminal) sigaction(SIGINT, &line->before, NULL);
    free(line->text);
    free(line);
}

bool cf_line_is_edited(const cf_line *line) { return line->edit != NULL; }

/* A byte that is typed: 1, or 0 at the end or after an interrupt, for which `waiting` has an ear. */
static int read_byte(const sigset_t *waiting, char *byte) {
    while (!cf_was_interrupted(false)) {
        struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
        if (ppoll(&input, 1, NULL, waiting) < 0) {
            if (errno == EINTR) continue;
            return 0;
        }
        const ssize_t n = read(STDIN_FILENO, byte, 1);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        return n == 1;
    }
    return 0;
}

/* From a terminal, and not by stdio: an interrupt that came just before its read would not end it. */
static ssize_t read_typed(cf_line *line) {
    sigset_t set, before, waiting;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, &before);
    waiting = before;
    sigdelset(&waiting, SIGINT);
    size_t n = 0;
    char byte = '\0';
    while (byte != '\n' && read_byte(&waiting, &byte)) {
        if (n == line->size) {
            const size_t size = line->size ? 2 * line->size : 256;
            char *text = realloc(line->text, size);
            if (!text) { /* better the end than a part of what was typed */
                n = 0;
                break;
            }
            line->text = text;
            line->size = size;
        }
        line->text[n++] = byte;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return n > 0 ? (ssize_t)n : -1;
}

static cf_line_status read_plain(cf_line *line, const char *prompt, const char **text, size_t *length) {
    if (line->has_terminal) fputs(prompt, stdout);
    fflush(stdout);
    const ssize_t n = line->has_terminal ? read_typed(line) : getline(&line->text, &line->size, stdin);
    const bool was_interrupted = line->has_terminal && cf_was_interrupted(false);
    if (n < 0 || was_interrupted) {
        if (line->has_terminal) fputs("\n", stdout);
        else if (!feof(stdin)) return CF_LINE_FAILED;
        return was_interrupted ? CF_LINE_INTERRUPTED : CF_LINE_END;
    }
    *text = line->text;
    *length = (size_t)n;
    return CF_LINE_READ;
}

cf_line_status cf_line_read(cf_line *line, const char *prompt, const char **text, size_t *length) {
    cf_was_interrupted(true);
    const cf_line_status status =
        line->edit ? cf_edit_read(line->edit, prompt, text, length) : read_plain(line, prompt, text, length);
    if (status == CF_LINE_READ && *length > 0 && (*text)[*length - 1] == '\n') --*length;
    return status;
}

void cf_line_remember(cf_line *line, const char *entry) {
    if (line->edit) cf_edit_remember(line->edit, entry);
}
