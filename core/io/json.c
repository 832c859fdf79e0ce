/* json.c: the cursor of json.h. */
#include "io/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The text at the cursor, for a message. */
static const char *found(const cf_json *j, char room[8]) {
    if (j->at >= j->size) return "the end";
    const unsigned char c = (unsigned char)j->text[j->at];
    snprintf(room, 8, c > ' ' && c < 127 ? "'%c'" : "0x%02x", c);
    return room;
}

static cfx_status expected(const cf_json *j, const char *what) {
    char room[8];
    return cf_fail(CFX_EIO, "JSON, byte %zu: expected %s, found %s", j->at, what, found(j, room));
}

static void skip_space(cf_json *j) {
    while (j->at < j->size && j->text[j->at] && strchr(" \t\r\n", j->text[j->at])) j->at++;
}

/* The next character that is no space, or 0 at the end. */
static char peek(cf_json *j) {
    skip_space(j);
    return j->at < j->size ? j->text[j->at] : '\0';
}

void cf_json_start(cf_json *json, const char *text, size_t size) { *json = (cf_json){.text = text, .size = size}; }

cfx_status cf_json_open(cf_json *j, char opener) {
    if (peek(j) != opener) return expected(j, opener == '{' ? "'{'" : "'['");
    if (j->depth == CF_JSON_DEPTH)
        return cf_fail(CFX_EIO, "JSON, byte %zu: nested deeper than %d", j->at, CF_JSON_DEPTH);
    j->closer[j->depth] = opener == '{' ? '}' : ']';
    j->begun[j->depth++] = 0;
    j->at++;
    return CFX_OK;
}

cfx_status cf_json_more(cf_json *j, int *more) {
    const char closer = j->closer[j->depth - 1];
    const char next = peek(j);
    *more = 0;
    if (next == closer) {
        j->at++;
        j->depth--;
        return CFX_OK;
    }
    if (j->begun[j->depth - 1]) {
        if (next != ',') return expected(j, closer == '}' ? "',' or '}'" : "',' or ']'");
        j->at++;
    }
    j->begun[j->depth - 1] = 1;
    *more = 1;
    return CFX_OK;
}

/* ---- strings --------------------------------------------------------------------------------------- */

size_t cf_utf8_length(const char *text, size_t left) {
    const unsigned char *p = (const unsigned char *)text;
    if (!left) return 0;
    if (p[0] < 0x80) return 1;
    if (p[0] < 0xC2 || p[0] > 0xF4) return 0;
    const size_t n = p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : 4;
    if (left < n) return 0;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xC0) != 0x80) return 0;
    const int overlong = (p[0] == 0xE0 && p[1] < 0xA0) || (p[0] == 0xF0 && p[1] < 0x90);
    const int surrogate = p[0] == 0xED && p[1] > 0x9F;
    const int beyond = p[0] == 0xF4 && p[1] > 0x8F;
    return overlong || surrogate || beyond ? 0 : n;
}

static char *put_utf8(char *out, uint32_t c) {
    if (c < 0x80) {
        *out++ = (char)c;
    } else if (c < 0x800) {
        *out++ = (char)(0xC0 | c >> 6);
        *out++ = (char)(0x80 | (c & 0x3F));
    } else if (c < 0x10000) {
        *out++ = (char)(0xE0 | c >> 12);
        *out++ = (char)(0x80 | (c >> 6 & 0x3F));
        *out++ = (char)(0x80 | (c & 0x3F));
    } else {
        *out++ = (char)(0xF0 | c >> 18);
        *out++ = (char)(0x80 | (c >> 12 & 0x3F));
        *out++ = (char)(0x80 | (c >> 6 & 0x3F));
        *out++ = (char)(0x80 | (c & 0x3F));
    }
    return out;
}

static cfx_status hex4(cf_json *j, uint32_t *out) {
    *out = 0;
    for (int i = 0; i < 4; i++, j->at++) {
        const char c = j->at < j->size ? j->text[j->at] : '\0';
        if (c >= '0' && c <= '9') *out = *out << 4 | (uint32_t)(c - '0');
        else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') *out = *out << 4 | (uint32_t)((c | 0x20) - 'a' + 10);
        else return expected(j, "four hexadecimal digits after \\u");
    }
    return CFX_OK;
}

/* The character of \uXXXX, or of a pair of them; the cursor stands behind the u. */
static cfx_status unicode_escape(cf_json *j, uint32_t *out) {
    CF_TRY(hex4(j, out));
    if (!*out) return cf_fail(CFX_EIO, "JSON, byte %zu: a NUL character in a string", j->at);
    if (*out < 0xD800 || *out > 0xDFFF) return CFX_OK;
    uint32_t low = 0;
    const int pair = *out < 0xDC00 && j->size - j->at >= 2 && memcmp(j->text + j->at, "\\u", 2) == 0;
    if (pair) {
        j->at += 2;
        CF_TRY(hex4(j, &low));
    }
    if (!pair || low < 0xDC00 || low > 0xDFFF)
        return cf_fail(CFX_EIO, "JSON, byte %zu: half of a surrogate pair in a string", j->at);
    *out = 0x10000 + ((*out - 0xD800) << 10) + (low - 0xDC00);
    return CFX_OK;
}

static cfx_status escape(cf_json *j, uint32_t *out) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    const char c = j->at < j->size ? j->text[j->at] : '\0';
    const char *name = c ? strchr(names, c) : NULL;
    if (c != 'u' && !name) return expected(j, "an escape after \\");
    j->at++;
    if (c == 'u') return unicode_escape(j, out);
    *out = (uint32_t)values[name - names];
    return CFX_OK;
}

/* Decodes up to the closing quote.  The result is never longer than the text, so `out` is not checked. */
static cfx_status decode(cf_json *j, char *out) {
    for (;;) {
        const unsigned char c = j->at < j->size ? (unsigned char)j->text[j->at] : 0;
        if (c < ' ') return expected(j, "the end of a string (control characters are escaped)");
        if (c == '"') break;
        if (c == '\\') {
            uint32_t character;
            j->at++;
            CF_TRY(escape(j, &character));
            out = put_utf8(out, character);
            continue;
        }
        const size_t n = cf_utf8_length(j->text + j->at, j->size - j->at);
        if (!n) return expected(j, "UTF-8");
        memcpy(out, j->text + j->at, n);
        out += n;
        j->at += n;
    }
    j->at++;
    *out = '\0';
    return CFX_OK;
}

/* Bytes between the cursor and the quote that ends the string, or the end of the text. */
static size_t raw_length(const cf_json *j) {
    size_t i = j->at;
    while (i < j->size && j->text[i] != '"') i += j->text[i] == '\\' ? 2 : 1;
    return (i < j->size ? i : j->size) - j->at;
}

cfx_status cf_json_string(cf_json *j, char **out) {
    if (peek(j) != '"') return expected(j, "a string");
    j->at++;
    char *text;
    CF_TRY(cf_alloc(raw_length(j) + 1, (void **)&text));
    const cfx_status status = decode(j, text);
    if (status == CFX_OK) *out = text;
    else free(text);
    return status;
}

cfx_status cf_json_key(cf_json *j, char **out) {
    char *key;
    CF_TRY(cf_json_string(j, &key));
    if (peek(j) != ':') {
        free(key);
        return expected(j, "':'");
    }
    j->at++;
    *out = key;
    return CFX_OK;
}

size_t cf_json_quote(const char *text, char *out) {
    const char *const start = out;
    size_t left = strlen(text), n;
    *out++ = '"';
    for (; left; text += n, left -= n) {
        n = cf_utf8_length(text, left);
        if (!n) return 0;
        const unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\') {
            *out++ = '\\';
            *out++ = (char)c;
        } else if (c < ' ') {
            memcpy(out, "\\u00", 4);
            out[4] = (char)('0' + (c >> 4));
            out[5] = "0123456789abcdef"[c & 15];
            out += 6;
        } else {
            memcpy(out, text, n);
            out += n;
        }
    }
    *out++ = '"';
    return (size_t)(out - start);
}

/* ---- numbers and the rest -------------------------------------------------------------------------- */

static int at_digit(const cf_json *j) { return j->at < j->size && j->text[j->at] >= '0' && j->text[j->at] <= '9'; }

static int at_char(const cf_json *j, char c) { return j->at < j->size && j->text[j->at] == c; }

static cfx_status digits(cf_json *j) {
    if (!at_digit(j)) return expected(j, "a digit");
    while (at_digit(j)) j->at++;
    return CFX_OK;
}

static cfx_status number(cf_json *j) {
    if (at_char(j, '-')) j->at++;
    if (at_char(j, '0')) j->at++;
    else CF_TRY(digits(j));
    if (at_char(j, '.')) {
        j->at++;
        CF_TRY(digits(j));
    }
    if (at_char(j, 'e') || at_char(j, 'E')) {
        j->at++;
        if (at_char(j, '+') || at_char(j, '-')) j->at++;
        CF_TRY(digits(j));
    }
    return CFX_OK;
}

cfx_status cf_json_integer(cf_json *j, int64_t *out) {
    static const char what[] = "an integer from 0 to 2^63 - 1";
    peek(j);
    if (!at_digit(j)) return expected(j, what);
    const size_t start = j->at;
    *out = 0;
    for (; at_digit(j); j->at++)
        if (__builtin_mul_overflow(*out, (int64_t)10, out) ||
            __builtin_add_overflow(*out, (int64_t)(j->text[j->at] - '0'), out))
            return cf_fail(CFX_EIO, "JSON, byte %zu: expected %s, found a larger one", start, what);
    const int zero_first = j->text[start] == '0' && j->at - start > 1;
    if (zero_first || at_char(j, '.') || at_char(j, 'e') || at_char(j, 'E')) {
        j->at = start;
        return cf_fail(CFX_EIO, "JSON, byte %zu: expected %s, without leading zeros, fraction or exponent", start,
                       what);
    }
    return CFX_OK;
}

static cfx_status word(cf_json *j, const char *text) {
    const size_t n = strlen(text);
    if (j->size - j->at < n || memcmp(j->text + j->at, text, n) != 0) return expected(j, "a value");
    j->at += n;
    return CFX_OK;
}

static cfx_status skip_string(cf_json *j, int key) {
    char *text = NULL;
    const cfx_status status = key ? cf_json_key(j, &text) : cf_json_string(j, &text);
    free(text);
    return status;
}

/* The depth limit bounds the recursion. */
cfx_status cf_json_skip(cf_json *j) {
    const char c = peek(j);
    if (c == '"') return skip_string(j, 0);
    if (c == 't') return word(j, "true");
    if (c == 'f') return word(j, "false");
    if (c == 'n') return word(j, "null");
    if (c == '-' || at_digit(j)) return number(j);
    if (c != '{' && c != '[') return expected(j, "a value");
    CF_TRY(cf_json_open(j, c));
    for (;;) {
        int more;
        CF_TRY(cf_json_more(j, &more));
        if (!more) return CFX_OK;
        if (c == '{') CF_TRY(skip_string(j, 1));
        CF_TRY(cf_json_skip(j));
    }
}

cfx_status cf_json_end(cf_json *j) {
    peek(j);
    return j->at == j->size ? CFX_OK : expected(j, "the end");
}
