/* letter.h: messages between ranks that meet, with files.
 *
 * They travel over a local socket that keeps the borders of messages, and the system says who has sent each.
 */
#ifndef CF_COMM_LETTER_H
#define CF_COMM_LETTER_H

#include <stdbool.h>

#include "comm/control.h"

enum { CF_HELLO = 0x43464831, CF_WELCOME, CF_READY, CF_GO, CF_REFUSED, CF_KNOCK };
enum { CF_LETTER_FILES = CF_MAX_RANKS + 1, CF_LETTER_WHY = 1024 };

typedef struct cf_letter {
    uint32_t kind;
    int32_t abi, meeting, rank, size, ndevices;
    uint64_t bytes[CF_MAX_RANKS]; /* HELLO: of its arena, [0]; WELCOME: of all */
    char why[CF_LETTER_WHY];      /* REFUSED */
} cf_letter;

/* One that came, with its files, which are the reader's to close. */
typedef struct cf_received {
    cf_letter letter;
    int32_t pid;
    int nfiles, file[CF_LETTER_FILES];
} cf_received;

bool cf_letter_send(int socket, const cf_letter *what, int nfiles, const int *files);
/* 1: a letter came; 0: nothing is there; -1: the other end is closed, or sent what no rank sends. */
int cf_letter_receive(int socket, cf_received *out);
void cf_letter_close_files(cf_received *r);

#endif
