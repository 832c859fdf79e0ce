/* lines.h: many ranks' output on one screen, by whole lines.
 *
 * A speaker is one stream of one rank.  Its bytes are put on the screen line by line, each line behind the speaker's
 * name, "[2] ".  A part of a line waits for its end, but no longer than 0.2 s while its rank writes nothing, and not where
 * nothing more comes or there is no room for more: a line longer than that comes in pieces.  Where an unfinished line stands on the screen and another
 * speaker's is next, the first is ended, and goes on later behind its name.  '\r' begins a line again, with the name, so
 * that a bar stays where it is; "\r\033[K" takes the line away, as a program does that prints a line above its bar.
 *
 * Nothing is read or written here: the caller puts bytes into a speaker's room, takes others from the screen, and says
 * what time it is.  A speaker whose room is full is not read from, so its rank waits, as it would for a terminal.
 */
#ifndef CF_LAUNCH_LINES_H
#define CF_LAUNCH_LINES_H

#include <stdbool.h>
#include <stddef.h>

enum { CF_SPEAKER_ROOM = 65536, CF_SCREEN_ROOM = 65536 };

typedef struct cf_speaker {
    char name[16];
    char *bytes /* [CF_SPEAKER_ROOM] */;
    size_t n, whole;           /* bytes that are still to be put on the screen, and how many of these are whole lines */
    double since;              /* when the first of the others came */
    bool is_quiet;             /* its rank had written nothing more when it was last looked at */
    bool has_ended;            /* nothing more is expected */
    bool needs_name, has_name; /* the line on the screen */
} cf_speaker;

typedef struct cf_screen {
    char bytes[CF_SCREEN_ROOM];
    size_t n; /* bytes that are still to be taken */
    cf_speaker *speakers;
    int count, next;  /* the speaker to be looked at next, so that all have their turn */
    cf_speaker *open; /* its unfinished line stands on the screen */
    cf_speaker *turn; /* it is putting `left` bytes on the screen */
    size_t left;
    bool has_let_finish; /* the open line's speaker has had a turn out of order */
} cf_screen;

/* A speaker for a rank, or for the launcher itself (-1), whose lines have no name.  False: there is no memory. */
bool cf_speaker_open(cf_speaker *speaker, int rank);
void cf_speaker_close(cf_speaker *speaker);
/* Where the next bytes go, and how many may. */
char *cf_speaker_room(cf_speaker *speaker, size_t *room);
/* `n` bytes have been put there. */
void cf_speaker_add(cf_speaker *speaker, size_t n, double now);

/* There was nothing more to put there. */
void cf_speaker_wait(cf_speaker *speaker);

/* Moves what is due from the speakers to the screen, as far as there is room. */
void cf_screen_fill(cf_screen *screen, double now);
/* The first n bytes have been taken. */
void cf_screen_take(cf_screen *screen, size_t n);
/* When a part of a line is due; HUGE_VAL: there is none, or there is no room for it. */
double cf_screen_due(const cf_screen *screen);
/* Forgets all that was to be shown. */
void cf_screen_drop(cf_screen *screen);
/* Ends an unfinished line. */
void cf_screen_finish(cf_screen *screen);

#endif
