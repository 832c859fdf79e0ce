/* lines_test.c: many ranks' output on one screen. */
#include "test.h"

#include <stdlib.h>

#include "chance.h"
#include "launch/lines.h"

enum { RANKS = 3, SHOWN = 4 * CF_SPEAKER_ROOM };

static cf_speaker speakers[RANKS + 1]; /* the last is the launcher's */
static cf_screen screen;
static char shown[SHOWN];
static size_t shown_bytes;
static double now; /* seconds */

static void begin(void) {
    for (int r = 0; r <= RANKS; r++) {
        cf_speaker_close(&speakers[r]);
        CHECK(cf_speaker_open(&speakers[r], r < RANKS ? r : -1));
    }
    screen = (cf_screen){.speakers = speakers, .count = RANKS + 1};
    shown_bytes = 0;
    now = 100;
}

/* A rank writes so much; returns how much there was room for. */
static size_t write_bytes(int rank, const char *bytes, size_t n) {
    size_t room;
    char *place = cf_speaker_room(&speakers[rank], &room);
    if (n > room) n = room;
    memcpy(place, bytes, n);
    cf_speaker_add(&speakers[rank], n, now);
    return n;
}

static void say(int rank, const char *text) { write_bytes(rank, text, strlen(text)); }

/* Takes up to `most` bytes from the screen. */
static void show(size_t most) {
    cf_screen_fill(&screen, now);
    const size_t n = screen.n < most ? screen.n : most;
    if (!CHECK(shown_bytes + n < SHOWN)) return;
    memcpy(shown + shown_bytes, screen.bytes, n);
    shown_bytes += n;
    cf_screen_take(&screen, n);
}

static void show_all(void) {
    size_t before;
    do {
        before = shown_bytes;
        show(CF_SCREEN_ROOM);
    } while (shown_bytes > before);
}

/* What has been shown since the last time. */
static const char *all(void) {
    show_all();
    shown[shown_bytes] = '\0';
    shown_bytes = 0;
    return shown;
}

/* A part is all that a rank has written for a while. */
static void pause_after(int rank, const char *part) {
    say(rank, part);
    cf_speaker_wait(&speakers[rank]);
    now += 1;
}

static void end(int rank) { speakers[rank].has_ended = true; }

TEST(a_line_has_its_rank_before_it) {
    begin();
    say(0, "one\ntwo\n");
    say(2, "\n");
    CHECK_STR(all(), "[0] one\n[0] two\n[2] \n");
}

TEST(the_launcher_has_no_name) {
    begin();
    say(RANKS, "conflux-run: so it is\n");
    CHECK_STR(all(), "conflux-run: so it is\n");
}

TEST(a_part_of_a_line_waits_for_the_rest) {
    begin();
    say(0, "a li");
    say(1, "other\n");
    CHECK_STR(all(), "[1] other\n");
    say(0, "ne\nand a pa");
    CHECK_STR(all(), "[0] a line\n");
}

TEST(a_part_is_shown_after_a_fifth_of_a_second) {
    begin();
    CHECK_EQ(isinf(cf_screen_due(&screen)), 1);
    say(0, "part");
    CHECK_NEAR(cf_screen_due(&screen), 100.2, 1e-9);
    now = 100.1;
    say(0, "s"); /* which makes it no younger */
    CHECK_STR(all(), "");
    CHECK_NEAR(cf_screen_due(&screen), 100.2, 1e-9);
    now = 100.21;
    CHECK_STR(all(), ""); /* there may be more to read */
    cf_speaker_wait(&speakers[0]);
    CHECK_STR(all(), "[0] parts");
    CHECK_EQ(isinf(cf_screen_due(&screen)), 1);
    say(0, " and the rest\n");
    CHECK_STR(all(), " and the rest\n");
}

TEST(a_part_is_shown_when_its_rank_ends) {
    begin();
    say(0, "last words");
    end(0);
    CHECK_STR(all(), "[0] last words");
    cf_screen_finish(&screen);
    CHECK_STR(all(), "\n");
    cf_screen_finish(&screen);
    CHECK_STR(all(), "");
}

TEST(another_line_ends_the_one_that_stands_there) {
    begin();
    pause_after(0, "epoch 1 ...");
    CHECK_STR(all(), "[0] epoch 1 ...");
    say(1, "hello\n");
    CHECK_STR(all(), "\n[1] hello\n");
    say(0, " done\n");
    CHECK_STR(all(), "[0]  done\n");
}

TEST(the_line_that_stands_there_may_end_by_itself_first) {
    begin();
    pause_after(2, "epoch 1 ...");
    CHECK_STR(all(), "[2] epoch 1 ...");
    say(0, "hello\n");
    say(2, " done\n");
    CHECK_STR(all(), " done\n[0] hello\n");
}

TEST(a_bar_is_drawn_in_its_place) {
    begin();
    pause_after(0, "\r[=>..]\033[K");
    CHECK_STR(all(), "\r[0] [=>..]\033[K");
    pause_after(0, "\r[==>.]\033[K");
    CHECK_STR(all(), "\r[0] [==>.]\033[K");
    say(0, "\r[====]\033[K\n");
    CHECK_STR(all(), "\r[0] [====]\033[K\n");
}

TEST(a_bar_that_is_taken_away_leaves_its_line) {
    begin();
    pause_after(0, "\r[=>..]\033[K");
    CHECK_STR(all(), "\r[0] [=>..]\033[K");
    say(0, "\r\033[K");
    say(1, "a line above the bar\n");
    CHECK_STR(all(), "\r\033[K[1] a line above the bar\n");
    pause_after(0, "\r[==>.]\033[K");
    CHECK_STR(all(), "\r[0] [==>.]\033[K");
}

TEST(a_line_end_of_two_bytes_is_one) {
    begin();
    say(0, "text\r\n\r");
    say(0, "\nmore\r\n");
    CHECK_STR(all(), "[0] text\r\n\r[0] \n[0] more\r\n");
}

TEST(a_long_line_comes_in_pieces) {
    static char piece[CF_SPEAKER_ROOM];
    begin();
    memset(piece, 'x', sizeof piece);
    CHECK_EQ(write_bytes(0, piece, sizeof piece), sizeof piece);
    size_t room;
    cf_speaker_room(&speakers[0], &room);
    CHECK_EQ(room, 0);
    show_all();
    CHECK_EQ(write_bytes(0, piece, sizeof piece), sizeof piece);
    show_all();
    say(0, "\n");
    show_all();
    CHECK_EQ(shown_bytes, 4 + 2 * sizeof piece + 1);
    CHECK(memcmp(shown, "[0] xxx", 7) == 0 && !memchr(shown + 4, '[', shown_bytes - 4));
}

TEST(a_full_room_tears_no_line) {
    static char lines[CF_SPEAKER_ROOM];
    begin();
    for (size_t k = 0; k < sizeof lines; k++) lines[k] = k % 100 == 99 ? '\n' : 'y'; /* a part at the end */
    for (int r = 0; r < 2; r++) CHECK_EQ(write_bytes(r, lines, sizeof lines), sizeof lines);
    show_all();
    for (size_t at = 0, length; at < shown_bytes; at += length) {
        length = (size_t)((char *)memchr(shown + at, '\n', shown_bytes - at) - (shown + at)) + 1;
        if (!CHECK_EQ(length, 104)) return;
    }
}

static size_t below(size_t n) { return bits() % n; }

/* Ranks write random lines, in random parts, which a slow reader takes in random parts: each rank's bytes come whole
 * and in order, and no line holds two ranks' text. */
static void mix(uint64_t seed) {
    static char said[RANKS][4096], heard[RANKS][4096];
    size_t length[RANKS], at[RANKS] = {0}, got[RANKS] = {0};
    state = seed;
    begin();
    for (int r = 0; r < RANKS; r++) {
        length[r] = sizeof said[r];
        for (size_t k = 0; k < length[r]; k++) said[r][k] = below(9) ? (char)('a' + r) : '\n';
        said[r][length[r] - 1] = '\n';
    }
    for (int left = RANKS; left > 0;) {
        const int r = (int)below(RANKS);
        if (at[r] == length[r]) continue;
        const size_t n = 1 + below(40), rest = length[r] - at[r];
        at[r] += write_bytes(r, said[r] + at[r], n < rest ? n : rest);
        left -= at[r] == length[r];
        if (below(2)) show(below(50));
    }
    show_all();
    for (size_t k = 0; k < shown_bytes;) { /* a line */
        const int r = shown[k + 1] - '0';
        if (!CHECK(shown[k] == '[' && r >= 0 && r < RANKS && shown[k + 2] == ']' && shown[k + 3] == ' ')) return;
        for (k += 4;; k++) {
            if (!CHECK(got[r] < sizeof heard[r])) return;
            heard[r][got[r]++] = shown[k];
            if (shown[k] == '\n') break;
        }
        k++;
    }
    for (int r = 0; r < RANKS; r++) CHECK(got[r] == length[r] && memcmp(heard[r], said[r], length[r]) == 0);
}

TEST(whole_lines_come_whole_and_in_order) {
    for (uint64_t seed = 1; seed <= 100; seed++) {
        const int before = test_faults;
        mix(seed);
        if (test_faults > before) printf("# seed %llu\n", (unsigned long long)seed);
    }
}

TEST(what_nobody_reads_is_dropped) {
    begin();
    say(0, "lost\n");
    cf_screen_fill(&screen, now);
    say(1, "too");
    cf_screen_drop(&screen);
    say(1, "kept\n");
    CHECK_STR(all(), "[1] kept\n");
    begin();
}
