/* lines.c: see lines.h. */
#include "launch/lines.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEP = 32 }; /* bytes that one byte of a speaker becomes at most: the end of another line, the name, itself */
static const double PATIENCE = 0.2;
static const char ERASE[] = "\033[K";
enum { ERASE_BYTES = sizeof ERASE - 1 };

/* ---- speakers ------------------------------------------------------------------------------------------ */

bool cf_speaker_open(cf_speaker *speaker, int rank) {
    *speaker = (cf_speaker){.needs_name = true, .bytes = malloc(CF_SPEAKER_ROOM)};
    if (rank >= 0) snprintf(speaker->name, sizeof speaker->name, "[%d] ", rank);
    return speaker->bytes != NULL;
}

void cf_speaker_close(cf_speaker *speaker) {
    free(speaker->bytes);
    speaker->bytes = NULL;
}

char *cf_speaker_room(cf_speaker *speaker, size_t *room) {
    *room = CF_SPEAKER_ROOM - speaker->n;
    return speaker->bytes + speaker->n;
}

void cf_speaker_add(cf_speaker *speaker, size_t n, double now) {
    const char *end = memrchr(speaker->bytes + speaker->n, '\n', n);
    if (end || speaker->n == speaker->whole) speaker->since = now;
    if (end) speaker->whole = (size_t)(end - speaker->bytes) + 1;
    speaker->n += n;
    speaker->is_quiet = false;
}

void cf_speaker_wait(cf_speaker *speaker) { speaker->is_quiet = true; }

/* How many bytes may be put on the screen: a part of a line only where it has waited, or nothing can be added to it.  A
 * slow screen keeps a rank from writing the rest: that is no waiting. */
static size_t ready(const cf_speaker *speaker, double now) {
    const bool is_long = speaker->n == CF_SPEAKER_ROOM && speaker->whole == 0;
    const bool has_waited = speaker->is_quiet && now >= speaker->since + PATIENCE;
    return is_long || has_waited || speaker->has_ended ? speaker->n : speaker->whole;
}

/* ---- the screen ---------------------------------------------------------------------------------------- */

static bool has_room(const cf_screen *screen) { return CF_SCREEN_ROOM - screen->n >= STEP; }

static void put(cf_screen *screen, const char *text, size_t n) {
    memcpy(screen->bytes + screen->n, text, n);
    screen->n += n;
}

/* The line that stands there is another's now. */
static void leave_line(cf_screen *screen) {
    if (!screen->open) return;
    put(screen, "\n", 1);
    screen->open->needs_name = true;
    screen->open->has_name = false;
    screen->open = NULL;
}

/* Puts a byte, or a few that belong together, on the screen; returns how many. */
static size_t speak(cf_screen *screen, cf_speaker *speaker, const char *at, size_t left) {
    if (screen->open != speaker) leave_line(screen);
    if (speaker->needs_name && left >= ERASE_BYTES && memcmp(at, ERASE, ERASE_BYTES) == 0) {
        put(screen, ERASE, ERASE_BYTES);
        speaker->has_name = false;
        screen->open = NULL;
        return ERASE_BYTES;
    }
    const bool names = *at == '\n' ? !speaker->has_name : *at != '\r' && speaker->needs_name;
    if (names) put(screen, speaker->name, strlen(speaker->name));
    put(screen, at, 1);
    speaker->needs_name = *at == '\n' || *at == '\r';
    speaker->has_name = *at != '\n' && (speaker->has_name || names);
    if (*at != '\r') screen->open = *at == '\n' ? NULL : speaker;
    return 1;
}

/* Goes on with the turn, as far as there is room. */
static void go_on(cf_screen *screen) {
    cf_speaker *speaker = screen->turn;
    size_t done = 0;
    while (done < screen->left && has_room(screen)) {
        done += speak(screen, speaker, speaker->bytes + done, screen->left - done);
    }
    screen->left -= done;
    speaker->n -= done;
    speaker->whole -= done < speaker->whole ? done : speaker->whole;
    memmove(speaker->bytes, speaker->bytes + done, speaker->n);
}

/* Begins the turn of a speaker that has something to say.  Before another's line, the one whose line stands there says
 * what it has, once: it may be what ends that line, or takes it away. */
static bool choose(cf_screen *screen, double now) {
    for (int k = 0; k < screen->count; k++) {
        const int i = (screen->next + k) % screen->count;
        cf_speaker *speaker = &screen->speakers[i], *open = screen->open;
        const size_t n = ready(speaker, now);
        if (n == 0) continue;
        screen->has_let_finish = open && open != speaker && open->n > 0 && !screen->has_let_finish;
        screen->turn = screen->has_let_finish ? open : speaker;
        screen->left = screen->has_let_finish ? open->n : n;
        screen->next = screen->has_let_finish ? i : (i + 1) % screen->count;
        return true;
    }
    return false;
}

void cf_screen_fill(cf_screen *screen, double now) {
    while (has_room(screen) && (screen->left > 0 || choose(screen, now))) go_on(screen);
}

void cf_screen_take(cf_screen *screen, size_t n) {
    screen->n -= n;
    memmove(screen->bytes, screen->bytes + n, screen->n);
}

double cf_screen_due(const cf_screen *screen) {
    double due = HUGE_VAL;
    if (!has_room(screen)) return due;
    for (const cf_speaker *s = screen->speakers; s < screen->speakers + screen->count; s++) {
        if (s->n > s->whole) due = fmin(due, s->since + PATIENCE);
    }
    return due;
}

void cf_screen_drop(cf_screen *screen) {
    for (cf_speaker *s = screen->speakers; s < screen->speakers + screen->count; s++) s->n = s->whole = 0;
    screen->n = screen->left = 0;
    screen->open = NULL;
}

void cf_screen_finish(cf_screen *screen) {
    if (has_room(screen)) leave_line(screen);
}
