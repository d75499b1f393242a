"""Binary samples of a label and four features."""

import struct

import torch

COUNT = 24


def pack(number):
    return struct.pack("<5f", number % 3, *(float((number * step) % 7) for step in (1, 2, 3, 4)))


def unpack(data):
    label, *features = struct.unpack("<5f", data)
    return torch.tensor(features), int(label)
