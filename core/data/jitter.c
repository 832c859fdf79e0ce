/* jitter.c: see jitter.h.
 *
 * Bytes are rounded where Pillow rounds them, so that a picture is Pillow's bit for bit: a blend is cut off, a grey is
 * rounded, and a hue has 256 steps.
 */
#include "data/jitter.h"

#include <math.h>
#include <stdint.h>

static unsigned char cut(float x) { return x <= 0 ? 0 : x >= 255 ? 255 : (unsigned char)x; }

/* From `grey` (by = 0) to the pixel itself (by = 1), and beyond. */
static unsigned char blend(int grey, int value, float by) { return cut((float)grey + by * (float)(value - grey)); }

/* ITU-R 601-2, in 16 bits. */
static int grey_of(const unsigned char *p) { return (p[0] * 19595 + p[1] * 38470 + p[2] * 7471 + 0x8000) >> 16; }

static void brighten(float by, unsigned char *rgb, size_t n) {
    for (size_t i = 0; i < 3 * n; i++) rgb[i] = blend(0, rgb[i], by);
}

static void contrast(float by, unsigned char *rgb, size_t n) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) sum += (uint64_t)grey_of(rgb + 3 * i);
    const int mean = (int)((double)sum / (double)n + 0.5);
    for (size_t i = 0; i < 3 * n; i++) rgb[i] = blend(mean, rgb[i], by);
}

static void saturate(float by, unsigned char *rgb, size_t n) {
    for (size_t i = 0; i < n; i++, rgb += 3) {
        const int grey = grey_of(rgb);
        for (int c = 0; c < 3; c++) rgb[c] = blend(grey, rgb[c], by);
    }
}

/* ---- hue ------------------------------------------------------------------------------------------- */

/* Hue and saturation of a pixel that is not grey, each in 0 to 255 (A. R. Smith, "Color gamut transform pairs", 1978). */
static void hue_of(const unsigned char *p, int most, int least, int *hue, int *saturation) {
    const float range = (float)(most - least);
    const float r = (float)(most - p[0]) / range, g = (float)(most - p[1]) / range, b = (float)(most - p[2]) / range;
    float h = p[0] == most ? b - g : (float)(p[1] == most ? 2.0 + (double)r - (double)b : 4.0 + (double)g - (double)r);
    h = (float)fmod((double)h / 6.0 + 1.0, 1.0);
    *hue = (int)((double)h * 255.0);
    *saturation = (int)((double)(range / (float)most) * 255.0);
}

static unsigned char part_of(int value, double share) { return (unsigned char)round(value * share); }

static void from_hue(int hue, int saturation, int value, unsigned char *p) {
    const double place = hue * 6.0 / 255.0;
    const int sector = (int)place;
    const double f = (double)(float)(place - sector), s = (double)(float)(saturation / 255.0);
    const unsigned char v = (unsigned char)value, low = part_of(value, 1.0 - s), down = part_of(value, 1.0 - s * f);
    const unsigned char up = part_of(value, 1.0 - s * (1.0 - f));
    const unsigned char by_sector[6][3] = {{v, up, low},   {down, v, low}, {low, v, up},
                                           {low, down, v}, {up, low, v},   {v, low, down}};
    for (int c = 0; c < 3; c++) p[c] = by_sector[sector % 6][c];
}

static void turn_hue(double by, unsigned char *rgb, size_t n) {
    const int turned = (int)(by * 255);
    for (size_t i = 0; i < n; i++, rgb += 3) {
        const int most = rgb[0] > rgb[1] ? (rgb[0] > rgb[2] ? rgb[0] : rgb[2]) : (rgb[1] > rgb[2] ? rgb[1] : rgb[2]);
        const int least = rgb[0] < rgb[1] ? (rgb[0] < rgb[2] ? rgb[0] : rgb[2]) : (rgb[1] < rgb[2] ? rgb[1] : rgb[2]);
        int hue, saturation;
        if (most == least) continue; /* a grey */
        hue_of(rgb, most, least, &hue, &saturation);
        if (saturation > 0) from_hue((hue + turned) & 255, saturation, most, rgb);
        else rgb[0] = rgb[1] = rgb[2] = (unsigned char)most;
    }
}

void cf_jitter(cf_colour what, double by, unsigned char *rgb, size_t n) {
    switch (what) {
    case CF_BRIGHTNESS: brighten((float)by, rgb, n); break;
    case CF_CONTRAST: contrast((float)by, rgb, n); break;
    case CF_SATURATION: saturate((float)by, rgb, n); break;
    case CF_HUE: turn_hue(by, rgb, n); break;
    case CF_COLOURS: break;
    }
}
