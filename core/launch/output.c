/* output.c: see output.h. */
#include "launch/output.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/command.h"
#include "launch/files.h"
#include "launch/lines.h"
#include "launch/outlet.h"

enum { OUT, ERR, STREAMS };
static const char *const names[STREAMS] = {"stdout", "stderr"};

typedef struct stream {
    int fd;              /* the rank's pipe; -1: it has ended */
    int screen;          /* where it is shown */
    cf_speaker *speaker; /* NULL: it is not */
    int file;            /* -1: there is none */
    int rank, kind;
    bool is_over; /* the rank has ended */
} stream;

typedef struct place {
    cf_screen screen;
    cf_outlet outlet;
} place;

struct cf_output {
    int ranks;
    const char *directory;
    stream *streams;          /* [ranks, STREAMS] */
    cf_speaker *speakers;     /* of the first place, then of the second */
    place places[STREAMS];    /* of which the second is not there where both streams are one */
    bool is_one;              /* they are */
    cf_speaker *own;          /* the launcher's, on stderr */
    bool is_last, has_failed; /* nothing more will be written; something could not be */
};

/* ---- opening ------------------------------------------------------------------------------------------------ */

static int shown(const cf_output *o) { return o->directory ? 1 : o->ranks; }

/* The streams of each rank that is shown, and of the launcher, are speakers of a screen. */
static bool open_speakers(cf_output *o) {
    const int each = shown(o), count = STREAMS * each + 1;
    if (!(o->speakers = calloc((size_t)count, sizeof *o->speakers))) return false;
    for (int k = 0; k < count; k++) {
        const int rank = k == count - 1 ? -1 : k % each, kind = k / each;
        if (!cf_speaker_open(&o->speakers[k], rank)) return false;
        if (rank < 0) continue;
        o->streams[STREAMS * rank + kind].speaker = &o->speakers[k];
        o->streams[STREAMS * rank + kind].screen = o->is_one ? OUT : kind;
    }
    o->own = &o->speakers[count - 1];
    o->places[OUT].screen.speakers = o->speakers;
    o->places[OUT].screen.count = o->is_one ? count : each;
    o->places[ERR].screen.speakers = o->speakers + each;
    o->places[ERR].screen.count = o->is_one ? 0 : each + 1;
    return true;
}

static bool open_files(cf_output *o, char *why) {
    if (!o->directory) return true;
    if (!cf_files_make_directory(o->directory)) {
        snprintf(why, CF_WHY, "--output: cannot make the directory '%s': %s", o->directory, strerror(errno));
        return false;
    }
    for (int k = 0; k < STREAMS * o->ranks; k++) {
        stream *s = &o->streams[k];
        s->file = cf_files_open(o->directory, s->rank, s->kind == OUT ? "out" : "err");
        if (s->file >= 0) continue;
        snprintf(why, CF_WHY, "--output: cannot write the files of rank %d in '%s': %s", s->rank, o->directory,
                 strerror(errno));
        return false;
    }
    return true;
}

cf_output *cf_output_open(int ranks, const char *directory, char *why) {
    cf_output *o = calloc(1, sizeof *o);
    stream *streams = calloc((size_t)ranks * STREAMS, sizeof *streams);
    if (!o || !streams) {
        free(o);
        free(streams);
        snprintf(why, CF_WHY, "not enough memory for %d ranks", ranks);
        return NULL;
    }
    o->ranks = ranks;
    o->directory = directory;
    o->streams = streams;
    o->is_one = cf_outlet_is_same(STDOUT_FILENO, STDERR_FILENO);
    for (int k = 0; k < STREAMS * ranks; k++) {
        streams[k] = (stream){.fd = -1, .file = -1, .rank = k / STREAMS, .kind = k % STREAMS};
    }
    cf_outlet_open(&o->places[OUT].outlet, STDOUT_FILENO);
    cf_outlet_open(&o->places[ERR].outlet, STDERR_FILENO);
    if (!open_speakers(o)) snprintf(why, CF_WHY, "not enough memory for %d ranks", ranks);
    else if (open_files(o, why)) return o;
    cf_output_close(o);
    return NULL;
}

static void shut(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

void cf_output_close(cf_output *o) {
    if (!o) return;
    for (int k = 0; k < STREAMS * o->ranks; k++) {
        shut(&o->streams[k].fd);
        shut(&o->streams[k].file);
    }
    for (int k = 0; o->speakers && k < STREAMS * shown(o) + 1; k++) cf_speaker_close(&o->speakers[k]);
    for (int k = 0; k < STREAMS; k++) cf_outlet_close(&o->places[k].outlet);
    free(o->speakers);
    free(o->streams);
    free(o);
}

void cf_output_take(cf_output *o, int rank, int out, int err) {
    const int fds[STREAMS] = {out, err};
    for (int kind = 0; kind < STREAMS; kind++) {
        o->streams[STREAMS * rank + kind].fd = fds[kind];
        fcntl(fds[kind], F_SETFL, O_NONBLOCK); /* of our end alone */
    }
}

/* ---- reading -------------------------------------------------------------------------------------------------- */

static void write_file(cf_output *o, stream *s, const char *bytes, size_t n, double now) {
    while (n > 0 && s->file >= 0) {
        const ssize_t done = write(s->file, bytes, n);
        if (done >= 0) {
            bytes += done;
            n -= (size_t)done;
        } else if (errno != EINTR) {
            o->has_failed = true;
            cf_output_say(o, now, "cannot write to %s/rank-%d.%s: %s", o->directory, s->rank,
                          s->kind == OUT ? "out" : "err", strerror(errno));
            shut(&s->file);
        }
    }
}

/* Reads what is there and what there is room for, once.  False: there was nothing, or no room. */
static bool read_once(cf_output *o, stream *s, double now) {
    static char unseen[CF_SPEAKER_ROOM];
    size_t room = sizeof unseen;
    char *bytes = s->speaker ? cf_speaker_room(s->speaker, &room) : unseen;
    if (s->fd < 0 || room == 0) return false;
    const ssize_t n = read(s->fd, bytes, room);
    if (n > 0) {
        write_file(o, s, bytes, (size_t)n, now);
        if (s->speaker) s->speaker->has_ended = false;
        if (s->speaker && o->places[s->screen].outlet.error == 0) cf_speaker_add(s->speaker, (size_t)n, now);
        return true;
    }
    if (n < 0 && errno == EINTR) return true;
    const bool is_empty = n < 0 && errno == EAGAIN;
    if (s->speaker) cf_speaker_wait(s->speaker);
    if (s->speaker && (!is_empty || s->is_over)) s->speaker->has_ended = true;
    if (!is_empty || o->is_last) shut(&s->fd);
    return false;
}

void cf_output_end(cf_output *o, int rank, double now) {
    for (int kind = 0; kind < STREAMS; kind++) {
        stream *s = &o->streams[STREAMS * rank + kind];
        s->is_over = true;
        while (read_once(o, s, now)) {}
    }
    for (int k = 0; k < STREAMS; k++) cf_screen_fill(&o->places[k].screen, now);
}

void cf_output_end_all(cf_output *o) { o->is_last = true; }

/* ---- writing -------------------------------------------------------------------------------------------------- */

void cf_output_say(cf_output *o, double now, const char *format, ...) {
    char text[1024];
    size_t room;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    char *place = cf_speaker_room(o->own, &room);
    const int n = snprintf(place, room, "conflux-run: %s\n", text);
    if (n > 0 && (size_t)n < room) cf_speaker_add(o->own, (size_t)n, now); /* else nobody reads what was said before */
}

/* The ranks whose output has no reader any more learn of it by their pipes. */
static void note_failure(cf_output *o, int screen, double now) {
    const int error = o->places[screen].outlet.error;
    o->has_failed = true;
    for (stream *s = o->streams; s < o->streams + STREAMS * o->ranks; s++) {
        if (error == EPIPE && s->speaker && s->screen == screen && s->file < 0) shut(&s->fd);
    }
    cf_screen_drop(&o->places[screen].screen);
    cf_output_say(o, now, "cannot write to %s: %s", names[screen], strerror(error));
}

/* Whether all that was written has been put on the screens. */
static bool is_read(const cf_output *o) {
    for (int k = 0; k < STREAMS * o->ranks; k++) {
        if (o->streams[k].fd >= 0) return false;
    }
    for (int k = 0; k < STREAMS * shown(o) + 1; k++) {
        if (o->speakers[k].n > 0) return false;
    }
    return true;
}

static void write_place(cf_output *o, int screen, double now) {
    place *p = &o->places[screen];
    cf_screen_fill(&p->screen, now);
    if (o->is_last && is_read(o)) cf_screen_finish(&p->screen);
    if (!cf_outlet_write(&p->outlet, &p->screen)) note_failure(o, screen, now);
    cf_screen_fill(&p->screen, now); /* it is looked at again when the stream is ready for that */
}

/* Rank by rank stderr first: a bar is taken away on it before a line is printed where it stood. */
void cf_output_work(cf_output *o, double now) {
    for (int rank = 0; rank < o->ranks; rank++) {
        for (int kind = ERR; kind >= OUT; kind--) read_once(o, &o->streams[STREAMS * rank + kind], now);
    }
    for (int screen = 0; screen < STREAMS; screen++) write_place(o, screen, now);
}

/* ---- waiting -------------------------------------------------------------------------------------------------- */

int cf_output_most(const cf_output *o) { return STREAMS * o->ranks + STREAMS; }

int cf_output_poll(cf_output *o, struct pollfd *fds) {
    int n = 0;
    for (stream *s = o->streams; s < o->streams + STREAMS * o->ranks; s++) {
        size_t room = 1;
        if (s->speaker) cf_speaker_room(s->speaker, &room);
        if (s->fd >= 0 && room > 0) fds[n++] = (struct pollfd){.fd = s->fd, .events = POLLIN};
    }
    for (int k = 0; k < STREAMS; k++) {
        const place *p = &o->places[k];
        if (p->screen.n > 0) fds[n++] = (struct pollfd){.fd = p->outlet.fd, .events = POLLOUT};
    }
    return n;
}

double cf_output_due(const cf_output *o) {
    const cf_screen *out = &o->places[OUT].screen, *err = &o->places[ERR].screen;
    if (o->is_last && out->n == 0 && err->n == 0) return 0;
    return fmin(cf_screen_due(out), cf_screen_due(err));
}

bool cf_output_is_done(const cf_output *o) {
    const cf_screen *out = &o->places[OUT].screen, *err = &o->places[ERR].screen;
    return o->is_last && is_read(o) && out->n == 0 && err->n == 0 && !out->open && !err->open;
}

bool cf_output_has_failed(const cf_output *o) { return o->has_failed; }
