#!/usr/bin/env python3
"""Decodes a film by ffmpeg into clips of small frames for `paradyse train`: safetensors with `latents`
[clips, 3, frames, height, width], red, green and blue from -1 to 1.

usage: scripts/video_frames.py FILM OUT [--size 32x32] [--frames 8] [--rate 8] [--clips 64]
"""
import argparse
import array
import json
import pathlib
import secrets
import struct
import subprocess
import sys

parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
parser.add_argument("film", type=pathlib.Path)
parser.add_argument("out", type=pathlib.Path)
parser.add_argument("--size", default="32x32", help="WIDTHxHEIGHT of a frame, cut from its middle")
parser.add_argument("--frames", type=int, default=8, help="of a clip")
parser.add_argument("--rate", type=int, default=8, help="frames a second")
parser.add_argument("--clips", type=int, default=64, help="at most so many, one after the other")
options = parser.parse_args()

try:
    width, height = map(int, options.size.split("x"))
except ValueError:
    parser.error(f"--size {options.size}: expected WIDTHxHEIGHT, as in 32x32")
if min(width, height, options.frames, options.rate, options.clips) < 1:
    parser.error("sizes and counts are at least 1")
if not options.film.is_file():
    parser.error(f"{options.film}: is not there")

scale = f"fps={options.rate},scale={width}:{height}:force_original_aspect_ratio=increase,crop={width}:{height}"
try:
    decoded = subprocess.run(
        ["ffmpeg", "-v", "error", "-i", options.film, "-vf", scale, "-frames:v", str(options.frames * options.clips),
         "-f", "rawvideo", "-pix_fmt", "rgb24", "-"], capture_output=True, check=False)
except FileNotFoundError:
    parser.error("ffmpeg is not installed: scripts/install.sh video")
size = 3 * width * height
clips = len(decoded.stdout) // (size * options.frames)
if decoded.returncode or clips == 0:
    sys.exit(f"{options.film}: {decoded.stderr.decode().strip() or 'has too few frames for a clip'}")

shades = [value / 127.5 - 1 for value in range(256)]
numbers = array.array("f")
for clip in range(clips):
    start = clip * options.frames * size
    for channel in range(3):  # of interleaved pixels, frame after frame
        pixels = decoded.stdout[start + channel : start + options.frames * size : 3]
        numbers.extend(map(shades.__getitem__, pixels))
if sys.byteorder == "big":
    numbers.byteswap()
shape = [clips, 3, options.frames, height, width]
header = json.dumps({"latents": {"dtype": "F32", "shape": shape, "data_offsets": [0, 4 * len(numbers)]}}).encode()
header += b" " * (-len(header) % 8)
options.out.parent.mkdir(parents=True, exist_ok=True)
content = struct.pack("<Q", len(header)) + header + numbers.tobytes()
while True:  # whole or not at all, beside it under a name that nobody has
    partial = options.out.with_name(f"{options.out.name}.{secrets.token_hex(4)}.partial")
    try:
        file = open(partial, "xb")
        break
    except FileExistsError:
        continue
try:
    with file:
        file.write(content)
    partial.replace(options.out)
finally:
    partial.unlink(missing_ok=True)
print(f"{options.out}: {clips} clips of {options.frames} frames, {width} x {height}")
