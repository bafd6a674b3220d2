"""A reader of patches in the wfp1 and wfp1x forms, written from their specification alone.

The specification is the comments at the top of codec/patch.h (a blob, all versions), of
codec/rice.h (a Rice block), and of codec/patchx.h (wfp1x).  Nothing here is fast; everything is
explicit.

    patch = wfp1.read(blob)            # raises wfp1.Malformed
    patch = wfp1.read_x(blob, reference)
    patch.elements                     # {position: value}, values as unsigned numbers
    new = wfp1.apply(patch, old)       # bytes of the tensor
"""

from dataclasses import dataclass, field

from lib.blockfiles import hash_of

OPS = {1: "SET", 2: "ADD", 3: "XOR"}
BLOCK = 65536
GROUP = 64


class Malformed(Exception):
    """The blob is not what the specification says."""


@dataclass
class Patch:
    """One tensor's patch: what it does, and to which elements."""

    op: str
    width: int
    numel: int
    version: int
    elements: dict = field(default_factory=dict)
    hashes: dict = field(default_factory=dict)  # {block: XXH3-64 of its bytes afterwards}


def number(data, at, size):
    """A little-endian number of `size` bytes."""
    if at + size > len(data):
        raise Malformed(f"{size} bytes at {at} are beyond the end")
    return int.from_bytes(data[at : at + size], "little")


class Bits:
    """A bit stream, read from the front."""

    def __init__(self, data):
        self.data = data
        self.at = 0

    def take(self, count):
        """The next `count` bits as a number, the lowest first."""
        value = 0
        for i in range(count):
            byte, bit = divmod(self.at, 8)
            if byte >= len(self.data):
                raise Malformed("a bit stream is cut off")
            value |= (self.data[byte] >> bit & 1) << i
            self.at += 1
        return value

    def zeros(self):
        """How many zeros come before the next one; both are consumed."""
        count = 0
        while self.take(1) == 0:
            count += 1
        return count


def join_list(lows, bits, k):
    """The entries of a list, of whose low parts `lows` has been read."""
    entries = []
    following = 0  # the least that the next entry can be
    for low in lows:
        gap = bits.zeros() << k | low
        entries.append(following + gap)
        following = entries[-1] + 1
    return entries


def tail_bytes(nibbles, width):
    """How many bytes of tail the nibbles of the odd values need."""
    return sum({14: 1, 15: width}.get(nibble, 0) for nibble in nibbles)


def rice_block(payload, op, width, count, elements):
    """[(position in the block, value)] of a block in the Rice form."""
    modulus = 1 << 8 * width
    # Everything but the tail is found from the front, whose length the bits say.
    bits = Bits(payload)
    head = bits.take(8)
    k, inverted, coded = head & 15, bool(head & 16), bool(head & 32)
    if head & 0xC0:
        raise Malformed("unknown flags of a Rice block")
    odd, j, signs, nibbles, odd_lows = 0, 0, [0] * count, [], []
    if coded:
        if op == "SET":
            raise Malformed("coded values of a SET")
        odd = bits.take(count.bit_length())
        if odd > count:
            raise Malformed("more odd values than values")
        if odd:
            j = bits.take(4)
        if op == "ADD":
            signs = [bits.take(1) for _ in range(count)]
        nibbles = [bits.take(4) for _ in range(odd)]
        odd_lows = [bits.take(j) for _ in range(odd)]
    listed = elements - count if inverted else count
    lows = [bits.take(k) for _ in range(listed)]
    odds = join_list(odd_lows, bits, j)
    entries = join_list(lows, bits, k)

    if odds and odds[-1] >= count:
        raise Malformed("an odd value beyond the values")
    if entries and entries[-1] >= elements:
        raise Malformed("a position beyond the block")
    stream = (bits.at + 7) // 8
    tail = payload[stream:]
    if len(tail) != (tail_bytes(nibbles, width) if coded else count * width):
        raise Malformed("the tail of a Rice block is too long or too short")
    if bits.take(stream * 8 - bits.at):
        raise Malformed("the padding of a Rice block is not zero")

    if inverted:
        holes = set(entries)
        entries = [i for i in range(elements) if i not in holes]
    if not coded:
        return [(p, number(tail, i * width, width)) for i, p in enumerate(entries)]
    values = [(-1 if sign else 1) % modulus for sign in signs]
    at = 0
    for index, nibble in zip(odds, nibbles):
        unit = -1 if signs[index] else 1
        if nibble == 15:
            values[index] = number(tail, at, width)
            at += width
        elif nibble == 14:
            values[index] = unit * (tail[at] + 16) % modulus
            at += 1
        else:
            values[index] = unit * (nibble + 2) % modulus
    return list(zip(entries, values))


def raw_block(payload, width, count, elements):
    """A block in the form RAW."""
    if len(payload) != count * (2 + width):
        raise Malformed("a RAW block of the wrong length")
    positions = [number(payload, 2 * i, 2) for i in range(count)]
    if any(a >= b for a, b in zip(positions, positions[1:])) or positions[-1] >= elements:
        raise Malformed("positions that do not ascend, or are beyond the block")
    return [(p, number(payload, 2 * count + i * width, width)) for i, p in enumerate(positions)]


def bits_block(payload, width, count, elements):
    """A block in the form BITS."""
    words = -(-elements // 64)
    bitmap, at = int.from_bytes(payload[128 : 128 + 8 * words], "little"), 128 + 8 * words
    if len(payload) != at + count * width:
        raise Malformed("a BITS block of the wrong length")
    positions = [i for i in range(elements) if bitmap >> i & 1]
    if bitmap >> elements or len(positions) != count:
        raise Malformed("a bitmap of other elements")
    for r in range(64):
        before = sum(p < 1024 * r for p in positions) if 1024 * r < elements else 0
        if number(payload, 2 * r, 2) != before:
            raise Malformed("a rank that is wrong")
    return [(p, number(payload, at + i * width, width)) for i, p in enumerate(positions)]


def dense_block(payload, width, count, elements):
    """A block in the form DENSE."""
    if count != elements or len(payload) != elements * width:
        raise Malformed("a DENSE block of the wrong length")
    return [(i, number(payload, i * width, width)) for i in range(elements)]


def add_block(patch, block, form, count, payload):
    """The elements of one block into the patch."""
    elements = min(patch.numel - block * BLOCK, BLOCK)
    if not 1 <= count <= elements:
        raise Malformed("a count beyond the block")
    if form == 0:
        found = raw_block(payload, patch.width, count, elements)
    elif form == 1:
        found = dense_block(payload, patch.width, count, elements)
    elif form == 2 and patch.version == 1:
        found = rice_block(payload, patch.op, patch.width, count, elements)
    elif form == 3 and patch.version == 2:
        found = bits_block(payload, patch.width, count, elements)
    else:
        raise Malformed(f"unknown form {form}")
    for position, value in found:
        patch.elements[block * BLOCK + position] = value


def read_version_0(patch, blob):
    """Directory of 8 bytes per block, then the payload; also version 2."""
    blocks = -(-patch.numel // BLOCK)
    entries = [number(blob, 32 + 8 * i, 8) for i in range(blocks + 1)]
    begin = 32 + 8 * (blocks + 1)
    offsets = [entry & (1 << 40) - 1 for entry in entries]
    if offsets[0] != 0 or len(blob) - begin != -(-offsets[-1] // 8) * 8:
        raise Malformed("the directory does not fit the payload")
    for block in range(blocks):
        count, form = entries[block] >> 40 & (1 << 17) - 1, entries[block] >> 57
        payload = blob[begin + offsets[block] : begin + offsets[block + 1]]
        if count:
            add_block(patch, block, form, count, payload)
        elif payload:
            raise Malformed("payload of a block that does not change")


def prefix(payload):
    """The number that a listed block's payload begins with, and its length in bytes."""
    value = 0
    for i, byte in enumerate(payload[:3]):
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            if i > 0 and byte == 0:
                raise Malformed("a prefix that is longer than it has to be")
            return value, i + 1
    raise Malformed("a prefix without an end")


def read_version_1(patch, blob):
    """Payload, then a directory by groups, hashes and lengths."""
    blocks = -(-patch.numel // BLOCK)
    groups = -(-blocks // GROUP)
    flags, listed = blob[24], number(blob, 28, 4)
    if flags & ~3 or any(blob[25:28]):
        raise Malformed("unknown flags")
    size = 4 if flags & 1 else 2
    hashes = 8 * listed if flags & 2 else 0
    arrays = -(-(hashes + size * listed) // 8) * 8
    directory = len(blob) - arrays - 16 * groups
    if directory < 32 or directory % 8:
        raise Malformed("the directory does not fit")
    first_hash = directory + 16 * groups
    first_length = first_hash + hashes

    offset = index = 0
    for group in range(groups):
        bitmap = number(blob, directory + 16 * group, 8)
        second = number(blob, directory + 16 * group + 8, 8)
        if second & (1 << 40) - 1 != offset or second >> 40 != index:
            raise Malformed("the directory does not add up")
        for bit in range(GROUP):
            if not bitmap >> bit & 1:
                continue
            block = group * GROUP + bit
            if block >= blocks or index >= listed:
                raise Malformed("a block that is not there")
            length = number(blob, first_length + size * index, size)
            payload = blob[32 + offset : 32 + offset + length]
            if 32 + offset + length > directory:
                raise Malformed("payload beyond the directory")
            value, used = prefix(payload)
            add_block(patch, block, value & 3, (value >> 2) + 1, payload[used:])
            if hashes:
                patch.hashes[block] = number(blob, first_hash + 8 * index, 8)
            offset += length
            index += 1
    if index != listed or not 0 <= directory - 32 - offset < 8:
        raise Malformed("the directory does not add up")
    if any(blob[32 + offset : directory]) or any(blob[first_length + size * listed :]):
        raise Malformed("padding that is not zero")


def read(blob):
    """The patch that a blob holds."""
    if len(blob) < 32 or blob[:4] != b"WFP\0":
        raise Malformed("not a patch")
    if blob[4] > 2:
        raise Malformed(f"form version {blob[4]}")
    if blob[5] not in OPS or blob[6] not in (1, 2, 4, 8) or blob[7] != 16:
        raise Malformed("an operation, width or block size that does not exist")
    patch = Patch(OPS[blob[5]], blob[6], number(blob, 8, 8), blob[4])
    if blob[4] != 1:
        if any(blob[24:32]):
            raise Malformed("reserved bytes that are not zero")
        read_version_0(patch, blob)
    else:
        read_version_1(patch, blob)
    if len(patch.elements) != number(blob, 16, 8):
        raise Malformed("not as many changed elements as the head says")
    return patch


SPAN = 64 * BLOCK


class Numbers:
    """Bytes, read from the front."""

    def __init__(self, data):
        self.data = data
        self.at = 0

    def bytes(self, count):
        """The next `count` bytes."""
        if count > len(self.data) - self.at:
            raise Malformed("a span is cut off")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self):
        """A number, seven bits a byte."""
        value = 0
        for i in range(5):
            byte = self.bytes(1)[0]
            value |= (byte & 0x7F) << 7 * i
            if byte < 0x80:
                if byte == 0 and i > 0:
                    raise Malformed("a number that is longer than it has to be")
                return value
        raise Malformed("a number without an end")


def classes_of(reference, width, shift, bits, top, classes):
    """For each class its members, as indices of elements of the span."""
    if classes == 1:
        return [range(len(reference) // width)]
    members = [[] for _ in range(classes)]
    for i in range(len(reference) // width):
        key = number(reference, i * width, width) >> shift & (1 << bits) - 1
        members[min(max(top - key, 0), classes - 1)].append(i)
    return members


def read_span(patch, first, data, reference, key):
    """The elements of one span, whose elements begin with `first`."""
    span = Numbers(data)
    if number(span.bytes(8), 0, 8) != hash_of(reference):
        raise Malformed("the reference is another one")
    classes = span.bytes(1)[0]
    if not 1 <= classes <= 16:
        raise Malformed("no such number of classes")
    top = span.number() if classes > 1 else 0
    counts = [span.number() for _ in range(classes - 1)]
    members = classes_of(reference, patch.width, *key, top, classes)
    if counts != [len(m) for m in members[:-1]] or top >> key[1]:
        raise Malformed("other classes than the reference has")
    lists = []
    for some in members:
        for at in range(0, len(some), BLOCK):
            count = span.number()
            length = span.number() if count else 0
            lists.append((some[at : at + BLOCK], count, length))
    for some, count, length in lists:
        payload = span.bytes(length)
        if count > len(some):
            raise Malformed("more changes than members")
        if count:
            for i, value in rice_block(payload, "ADD", patch.width, count, len(some)):
                patch.elements[first + some[i]] = value
    if span.at != len(data):
        raise Malformed("a span that is too long")


def read_x(blob, reference):
    """The patch that a blob of wfp1x holds, given the bytes of the tensor's reference."""
    if len(blob) < 32 or len(blob) % 8 or blob[:4] != b"WFX\0":
        raise Malformed("not a patch of wfp1x")
    if blob[4] != 0:
        raise Malformed(f"form version {blob[4]}")
    width, flags, shift, bits, listed = blob[6], blob[7], blob[24], blob[25], number(blob, 28, 4)
    if blob[5] != 2 or width not in (1, 2, 4, 8) or flags & ~1 or blob[26] or blob[27]:
        raise Malformed("an operation, width or flag that does not exist")
    if bits > 11 or shift + bits > 8 * width:
        raise Malformed("a key that does not exist")
    patch = Patch("ADD", width, number(blob, 8, 8), 0)
    if len(reference) != patch.numel * width or (flags and 8 * listed > len(blob) - 32):
        raise Malformed("it does not fit")
    end = len(blob) - (8 * listed if flags else 0)
    spans = Numbers(blob[32:end])
    for first in range(0, patch.numel, SPAN):
        data = spans.bytes(spans.number())
        if data:
            part = reference[first * width : (first + SPAN) * width]
            read_span(patch, first, data, part, (shift, bits))
    rest = spans.data[spans.at :]
    blocks = sorted({position // BLOCK for position in patch.elements})
    if len(rest) >= 8 or any(rest) or len(blocks) != listed:
        raise Malformed("it does not add up")
    if flags:
        patch.hashes = {b: number(blob, end + 8 * i, 8) for i, b in enumerate(blocks)}
    if len(patch.elements) != number(blob, 16, 8):
        raise Malformed("not as many changed elements as the head says")
    patch.elements = dict(sorted(patch.elements.items()))
    return patch


def apply(patch, tensor):
    """The tensor's bytes after the patch."""
    new = bytearray(tensor)
    assert len(new) == patch.numel * patch.width
    for position, value in patch.elements.items():
        at = position * patch.width
        old = number(new, at, patch.width)
        if patch.op == "ADD":
            value = (old + value) % (1 << 8 * patch.width)
        elif patch.op == "XOR":
            value ^= old
        new[at : at + patch.width] = value.to_bytes(patch.width, "little")
    return bytes(new)
