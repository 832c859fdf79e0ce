"""Makes tests/fixtures/images: JPEG files of all kinds, and in expected.safetensors what Pillow reads from them.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install pillow numpy
    /tmp/venv/bin/python tests/record/images.py

Tests need neither Python nor Pillow: this runs only when the fixtures shall change.
"""
import io, json, os, struct

import numpy as np
from PIL import Image, ImageEnhance

WIDTH, HEIGHT = 61, 43
here = os.path.join(os.path.dirname(__file__), "..", "fixtures", "images")
expected = {}


def picture():
    """Slopes, edges and noise in strong colours."""
    random = np.random.default_rng(7)
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    p = np.stack([255 * x / WIDTH, 255 * y / HEIGHT, 128 + 127 * np.sin(x * y / 90)], -1)
    p[8:20, 10:30] = (250, 20, 30)
    p[15:35, 40:55] = (10, 30, 240)
    p[30:40, 5:25] = (20, 230, 60)
    p += random.normal(0, 12, p.shape)
    return Image.fromarray(p.clip(0, 255).astype(np.uint8))


def keep(name, image):
    expected[name] = np.asarray(image.convert("RGB"))


def write(name, data):
    with open(os.path.join(here, name), "wb") as file:
        file.write(data)


def encode(image, **options):
    file = io.BytesIO()
    image.save(file, "JPEG", **options)
    return file.getvalue()


def decode(data):
    return Image.open(io.BytesIO(data))


def good(name, data):
    write(name + ".jpg", data)
    keep(name, decode(data))


rgb = picture()
plain = encode(rgb, quality=85, subsampling="4:2:0")
for name, data in {
    "420": plain,
    "422": encode(rgb, quality=85, subsampling="4:2:2"),
    "444": encode(rgb, quality=85, subsampling="4:4:4"),
    "grey": encode(rgb.convert("L"), quality=85),
    "cmyk": encode(rgb.convert("CMYK"), quality=85),
    "progressive": encode(rgb, quality=85, progressive=True),
    "restarts": encode(rgb, quality=85, restart_marker_blocks=1),
    "pixel": encode(rgb.resize((1, 1)), quality=85),
    "rgb": encode(rgb, quality=85, keep_rgb=True),
    "behind": plain + b"what a camera puts behind the end marker",
}.items():
    good(name, data)

# Orientation 6, "turn by 90 degrees", which no one looks at.
exif = Image.Exif()
exif[0x0112] = 6
good("turned", encode(rgb, quality=85, exif=exif))
# In its middle, where a decoder only warns: grey where data is lost.
half = bytearray(plain)
half[len(half) * 2 // 3:-2] = b""
good("lost", bytes(half))

# What is bad.
write("cut.jpg", plain[: len(plain) * 2 // 3])
write("unended.jpg", plain[:-2])
write("empty.jpg", b"")
file = io.BytesIO()
rgb.resize((8, 8)).save(file, "PNG")
write("png.jpg", file.getvalue())
for name in ["cut", "empty", "png", "unended"]:
    try:
        image = Image.open(os.path.join(here, name + ".jpg"), formats=["JPEG"])
        image.load()
    except OSError:
        continue
    raise SystemExit("Pillow reads " + name)

# Scaled decodes.
for by in (2, 4, 8):
    image = decode(plain)
    image.draft("RGB", (WIDTH // by, HEIGHT // by))
    keep("420/%d" % by, image)
    assert image.size == (-(-WIDTH // by), -(-HEIGHT // by))

# Resized: of a whole picture and of parts. {x, y, width, height, to width, to height}
full = decode(plain)
full.load()
cases = [(0, 0, 61, 43, 16, 16), (0, 0, 61, 43, 100, 90), (5, 3, 40, 30, 24, 24), (17, 20, 9, 7, 24, 24),
         (0, 0, 61, 43, 7, 5), (30, 10, 31, 33, 31, 33), (1, 1, 58, 40, 3, 1), (60, 42, 1, 1, 8, 8)]
expected["cases"] = np.array(cases, np.int64)
for i, (x, y, w, h, tw, th) in enumerate(cases):
    keep("resized/%d" % i, full.crop((x, y, x + w, y + h)).resize((tw, th), Image.Resampling.BILINEAR))
# Parts of scaled decodes, whose edges lie between pixels.
image = decode(plain)
image.draft("RGB", (WIDTH // 2, HEIGHT // 2))
image.load()
expected["scaled cases"] = np.array([(4, 6, 40, 32, 10, 8), (0, 0, 60, 42, 12, 10)], np.int64)
for i, (x, y, w, h, tw, th) in enumerate(expected["scaled cases"].tolist()):
    part = image.crop((x // 2, y // 2, -(-(x + w) // 2), -(-(y + h) // 2)))
    box = (x / 2 - x // 2, y / 2 - y // 2, x / 2 - x // 2 + w / 2, y / 2 - y // 2 + h / 2)
    keep("scaled/%d" % i, part.resize((tw, th), Image.Resampling.BILINEAR, box))

# torchvision's Resize(20), CenterCrop(16), and a crop that is larger than the picture.
short = full.resize((int(20 * WIDTH / HEIGHT), 20), Image.Resampling.BILINEAR)
left, top = round((short.size[0] - 16) / 2), round((20 - 16) / 2)
keep("evaluated", short.crop((left, top, left + 16, top + 16)))
padded = Image.new("RGB", (70, 50))
padded.paste(full, ((70 - WIDTH) // 2, (50 - HEIGHT) // 2))
keep("padded", padded)


def turn(image, by):
    hue, saturation, value = image.convert("HSV").split()
    hue = Image.fromarray(np.asarray(hue) + np.array(int(by * 255)).astype(np.uint8))
    return Image.merge("HSV", (hue, saturation, value)).convert("RGB")


colours = [(0, 0.6), (0, 1.4), (1, 0.3), (1, 1.7), (2, 0.2), (2, 1.9), (3, 0.1), (3, -0.3)]
expected["colours"] = np.array(colours, np.float64)
for i, (what, by) in enumerate(colours):
    change = [lambda: ImageEnhance.Brightness(full).enhance(by), lambda: ImageEnhance.Contrast(full).enhance(by),
              lambda: ImageEnhance.Color(full).enhance(by), lambda: turn(full, by)][what]
    keep("coloured/%d" % i, change())

header, at = {}, 0
for name, array in expected.items():
    dtype = {"uint8": "U8", "int64": "I64", "float64": "F64"}[str(array.dtype)]
    header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
    at += array.nbytes
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
with open(os.path.join(here, "expected.safetensors"), "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text + b"".join(a.tobytes() for a in expected.values()))
