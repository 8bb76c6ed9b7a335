"""The devices and the log of a pool of vrio's store: blocks that are proved by their checks."""

import struct

BLOCK = 4096
HEADER_BLOCKS = 16
PAYLOAD_MAX = 49
RECORDS_MAX = 50
STREAMS = 2  # of three: the rows of the third have a meaning for checkpoints only
NO_SEGMENT = 0xFFFFFFFF
PLACE = 1 << 63
LOST = 1 << 62
ALIAS = 1 << 60
DATA, NODE, TABLE, STATE, CHANGE, ALIAS_CONTENT = 1, 2, 3, 4, 5, 6
WRITE_KIND, ZERO_KIND, MOVE_KIND, LOST_KIND, CHANGE_KIND = 1, 2, 3, 4, 5
SEALED_KIND, RESEALED_KIND, MOMENT_KIND, ALIAS_KIND, FORGET_KIND = 10, 11, 12, 13, 14
NO_VOLUME = 0xFFFFFFFF
PAYLOAD_KINDS = (1, 3, 5, 7, 8, 9, 10, 11)


class PoolError(Exception):
    """The pool, or a part of it, is not readable."""


def crc_table():
    """CRC-64/NVME of two bytes at once."""
    bytewise = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x9A6C9329AC4BC9B5 if byte & 1 else 0)
        bytewise.append(byte)
    low = [crc >> 8 ^ bytewise[crc & 0xFF] for crc in bytewise]
    return [low[byte] ^ high for high in bytewise for byte in range(256)]


CRC_TABLE = crc_table()


def crc64(*parts):
    """CRC-64/NVME of parts that have an even number of bytes each."""
    crc, table = 0xFFFFFFFFFFFFFFFF, CRC_TABLE
    for part in parts:
        for word in struct.unpack(f"<{len(part) // 2}H", part):
            crc = table[(crc ^ word) & 0xFFFF] ^ crc >> 16
    return crc ^ 0xFFFFFFFFFFFFFFFF


def sealed(block):
    """Whether a head or superblock has the CRC of its content."""
    return crc64(block[:8], bytes(8), block[16:]) == struct.unpack_from("<Q", block, 8)[0]


def lz4(data):
    """The content of a block of LZ4."""
    out, at = bytearray(), 0

    def length(first):
        nonlocal at
        total, more = first, 255 if first == 15 else 0
        while more == 255:
            more, at = data[at], at + 1
            total += more
        return total

    try:
        while True:
            token, at = data[at], at + 1
            literals = length(token >> 4)
            out += data[at:at + literals]
            at += literals
            if at >= len(data):
                return bytes(out)
            distance, at = data[at] | data[at + 1] << 8, at + 2
            if not 0 < distance <= len(out):
                raise PoolError("a page of LZ4 goes back behind its start")
            for _ in range(4 + length(token & 15)):
                out.append(out[-distance])
    except IndexError:
        raise PoolError("a page of LZ4 is cut off") from None


def zstd(data):
    """The content of a frame of Zstandard."""
    try:
        from compression.zstd import decompress
    except ImportError:
        try:
            from zstandard import ZstdDecompressor
        except ImportError:
            raise PoolError("a page is packed by zstd: install python3-zstandard") from None
        return ZstdDecompressor().decompress(data, max_output_size=BLOCK)
    return decompress(data)


CODECS = {0: None, 1: lz4, 2: zstd}


class Entry:
    """A page entry: the place of a page, its check and the sequence of its row."""

    def __init__(self, place, crc, sequence, extra=0):
        self.place, self.crc, self.sequence, self.extra = place, crc, sequence, extra
        self.seal = None  # of a page of the log: its context, the sequence and the tag
        self.before = None  # of an alias of the log: the entry that the page had before

    @classmethod
    def at(cls, block, offset):
        return cls(*struct.unpack_from("<QQQQ", block, offset))

    def block(self):
        """The place without the form of the page."""
        return self.place & ~(0x3FFF << 48)

    def alias_of(self):
        """The page whose content an alias has, or 0 for zeroes; nothing for other pages."""
        is_alias = self.place >> 36 == ALIAS >> 36
        return self.place & (1 << 36) - 1 if is_alias else None

    def __bool__(self):
        return self.place != 0


FREE = Entry(0, 0, 0)


class Superblock:
    def __init__(self, block):
        if block[:8] != b"vrioPool":
            raise PoolError("no superblock")
        if not sealed(block):
            raise PoolError("a damaged superblock")
        (self.version, self.segment_blocks, self.uuid, self.device, self.devices) = (
            struct.unpack_from("<II16sBB", block, 16))
        if self.version != 5:
            raise PoolError(f"the pool has the format {self.version}, and this program reads 5")
        (self.opening, self.salt, self.checkpoint, self.sequence) = (
            struct.unpack_from("<Q16sQQ", block, 48))
        self.state = [Entry.at(block, at) for at in (88, 120)]
        (self.state_bytes,) = struct.unpack_from("<Q", block, 152)
        self.streams = [struct.unpack_from("<III", block, 160 + 16 * at) for at in range(3)]
        self.segments = [struct.unpack_from("<I", block, 224 + 24 * at)[0] for at in range(16)]
        self.segments = self.segments[:self.devices]
        self.table = [block[208 + 24 * at:232 + 24 * at] for at in range(self.devices)]
        self.joining = block[42]

    def numbers(self):
        """The numbers of the pool's devices."""
        return [at for at, record in enumerate(self.table) if any(record)]

    def knows(self, other):
        """Whether another superblock is of a device of this pool."""
        return (other.device in self.numbers() and other.device < other.devices
                and other.table[other.device][:16] == self.table[other.device][:16])


class Record:
    def __init__(self, data):
        (self.kind, self.flag, self.blocks, self.volume, self.block, self.number, self.crc,
         self.place) = struct.unpack("<BBHIQQQQ", data)
        self.seal = None
        if self.kind in (SEALED_KIND, RESEALED_KIND):
            self.crc, self.seal = struct.unpack_from("<Q16s", data, 16)
            self.version = data[1]
        if self.kind == SEALED_KIND:
            self.volume, block, number = struct.unpack_from("<I5s5s", data, 2)
            self.block, self.number = (int.from_bytes(part, "little") for part in (block, number))
        elif self.kind == RESEALED_KIND:
            block, segment, self.number = struct.unpack_from("<HIQ", data, 2)
            self.place = PLACE | segment << 16 | block
        elif self.kind == MOMENT_KIND:
            self.at_ns, *volumes = struct.unpack_from("<Q7I", data, 4)
            self.volumes = [each for each in volumes if each != NO_VOLUME]

    def has_payload(self):
        return self.kind in PAYLOAD_KINDS

    def is_whole(self):
        """Whether its payload is a block."""
        return self.has_payload() and (self.kind != MOVE_KIND or self.blocks == 0)

    def form(self):
        """The sectors and the codec of its page, as the page's entry has them."""
        return self.blocks << 51 | self.flag << 54 if self.kind == MOVE_KIND else 0

    def tag(self):
        """The domain and the number in the check of its payload."""
        if self.kind in (WRITE_KIND, MOVE_KIND, SEALED_KIND, RESEALED_KIND):
            return DATA, self.number
        return {5: (CHANGE, 0), 7: (NODE, self.number), 9: (STATE, self.number),
                8: (TABLE + 256 * self.volume, 2 * self.number + self.flag)}[self.kind]


class Head:
    def __init__(self, block):
        (self.uuid, self.salt, self.opening, self.sequence, self.durable, self.segment, self.block,
         self.stream, self.payload, self.next, own, previous, self.previous_payload,
         self.has_previous, self.previous_place, self.previous_sequence) = (
            struct.unpack_from("<16s8sQQQIHBBIBBBBQQ", block, 16))
        if own > RECORDS_MAX or previous > RECORDS_MAX:
            raise PoolError("a head with more records than a row has")
        records = [Record(block[96 + 40 * at:136 + 40 * at]) for at in range(own + previous)]
        self.records, self.previous_records = records[:own], records[own:]


class Row:
    """A row that the log may have: its records, and where their payload is."""

    def __init__(self, sequence, segment, block, records, is_copy=False):
        self.sequence, self.segment, self.block, self.records = sequence, segment, block, records
        self.is_copy = is_copy

    def payload(self):
        """Each record with the place of its payload, or of the head if it has none."""
        whole = self.block
        packed = 8 * (1 + whole + sum(each.is_whole() for each in self.records))
        for record in self.records:
            at, offset = self.block, 0
            if record.is_whole():
                at = whole = whole + 1
            elif record.has_payload():
                at, offset = divmod(packed, 8)
                packed += record.blocks
            yield record, PLACE | offset << 48 | record.form() | self.segment << 16 | at


class Devices:
    """The devices of a pool: blocks by their places, proved by their checks."""

    def __init__(self, paths):
        self.files = {}
        self.superblock = None
        found = []
        for path in paths:
            file, lost = open(path, "rb"), set()
            own = self.newest(file, lost)
            if own is None:
                raise PoolError(f"{path} has no superblock")
            if found and own.uuid != found[0][1].uuid:
                raise PoolError(f"{path} is of another pool")
            found.append((file, own, lost))
            is_newer = self.superblock is None or own.checkpoint > self.superblock.checkpoint
            if not own.joining and is_newer:
                self.superblock = own
        if self.superblock is None:
            raise PoolError("the devices were to join a pool, and its own devices are missing")
        for file, own, lost in found:
            if not self.superblock.knows(own):
                continue  # it was to join, or has left
            if own.device in self.files:
                raise PoolError(f"there are two devices {own.device}")
            self.files[own.device] = file
            if (self.superblock.checkpoint + 1) % 2 in lost:
                raise PoolError(
                    "a superblock that may be newer is lost: both its blocks are damaged")
        if sorted(self.files) != self.superblock.numbers():
            raise PoolError(f"the pool has the devices {self.superblock.numbers()}: give them all")
        self.uuid = self.superblock.uuid

    def newest(self, file, lost):
        """The newest superblock of a device. A slot without a whole block goes into `lost`."""
        newest = None
        for slot in (0, 1):
            lost_blocks = 0
            for block in (4 * slot, 8 + 4 * slot):
                try:
                    found = Superblock(self.block_of(file, block))
                    # A device that joined says so in one slot, and not yet in the other slot.
                    age = found.checkpoint, not found.joining
                    if newest is None or age > (newest.checkpoint, not newest.joining):
                        newest = found
                except PoolError:
                    lost_blocks += 1
            if lost_blocks == 2:
                lost.add(slot)
        return newest

    @staticmethod
    def block_of(file, block):
        file.seek(block * BLOCK)
        data = file.read(BLOCK)
        return data + bytes(BLOCK - len(data))

    def has_segment(self, segment):
        device, index = segment >> 24, segment & 0xFFFFFF
        return device in self.files and index < self.superblock.segments[device]

    def at(self, segment, block):
        """A block of a segment."""
        if not self.has_segment(segment) or block >= self.superblock.segment_blocks:
            raise PoolError(f"block {block} of the segment {segment:#x} is not in the pool")
        first = HEADER_BLOCKS + (segment & 0xFFFFFF) * self.superblock.segment_blocks
        return self.block_of(self.files[segment >> 24], first + block)

    def stored(self, entry, domain, number):
        """What is stored of a page, and its codec, if it is proved to be what was written."""
        if entry.place == LOST:
            raise PoolError(f"the page {number} of the domain {domain:#x} was lost")
        offset, sectors, codec = (entry.place >> 48 & 7, entry.place >> 51 & 7, entry.place >> 54)
        if entry.place >> 62 != PLACE >> 62 or codec - (PLACE >> 54) not in CODECS:
            raise PoolError(f"{entry.place:#x} is no place")
        segment, block = entry.place >> 16 & 0xFFFFFFFF, entry.place & 0xFFFF
        data = self.at(segment, block)
        if sectors:
            if offset + sectors > 8:
                data += self.at(segment, block + 1)
            data = data[512 * offset:512 * (offset + sectors)]
        front = self.uuid + struct.pack("<QQQ", domain, number, entry.sequence)
        if crc64(front, data) != entry.crc:
            raise PoolError(f"the page {number} of the domain {domain:#x} is damaged")
        return data, CODECS[codec - (PLACE >> 54)] if sectors else None

    def page(self, entry, domain, number):
        """The content of a page that is proved to be what was written."""
        data, codec = self.stored(entry, domain, number)
        if codec is None:
            return data
        (length,) = struct.unpack_from("<H", data)
        content = codec(data[2:2 + length])
        if len(data) < 2 + length or len(content) != BLOCK:
            raise PoolError(f"the page {number} of the domain {domain:#x} cannot be unpacked")
        return content

    def raw(self, entry):
        """The block at a place, which nothing has proved."""
        return self.at(entry.place >> 16 & 0xFFFFFFFF, entry.place & 0xFFFF)

    def head(self, segment, block):
        """The head there, if one of this opening is."""
        data = self.at(segment, block)
        if data[:8] != b"vrio-row" or data[16:32] != self.uuid or not sealed(data):
            return None
        head = Head(data)
        ours = (head.opening, head.salt) == (self.superblock.opening, self.superblock.salt[:8])
        return head if ours and (head.segment, head.block) == (segment, block) else None


class Log:
    """The rows behind the checkpoint, in their order."""

    def __init__(self, devices):
        self.devices = devices
        self.found = {}
        self.durable = 0
        for stream in range(STREAMS):
            self.walk(stream, *devices.superblock.streams[stream])

    def walk(self, stream, segment, block, following):
        """Finds the rows of a stream. A head that is not whole is made up for by the next one."""
        blocks = self.devices.superblock.segment_blocks
        last = self.devices.superblock.sequence
        while segment != NO_SEGMENT:
            if blocks - block < 2:
                segment, block, following = following, 0, NO_SEGMENT
                continue
            head = self.row_at(stream, segment, block, last)
            if head is None:
                # The row there is torn or damaged: look for the row behind it.
                lost = PLACE | segment << 16 | block
                head = self.behind(stream, segment, block, following, lost, last)
                if head is None:
                    return
                place = (lost >> 16 & NO_SEGMENT, lost & 0xFFFF)
                self.add(Row(head.previous_sequence, *place, head.previous_records, True))
            self.add(Row(head.sequence, head.segment, head.block, head.records))
            self.durable = max(self.durable, head.durable)
            last = head.sequence
            segment, block, following = head.segment, head.block + 1 + head.payload, head.next

    def row_at(self, stream, segment, block, last):
        head = self.devices.head(segment, block)
        return head if head and head.stream == stream and head.sequence > last else None

    def behind(self, stream, segment, block, following, lost, last):
        blocks = self.devices.superblock.segment_blocks
        end = min(block + PAYLOAD_MAX + 2, blocks - 1)
        places = [(segment, at) for at in range(block + 1, end)]
        for place in places + ([(following, 0)] if following != NO_SEGMENT else []):
            head = self.row_at(stream, *place, last)
            if head and head.has_previous and head.previous_place == lost:
                return head
        return None

    def add(self, row):
        self.found[row.sequence] = row

    def rows(self):
        """The rows of the log. Above the durable mark, the first that is not whole ends it."""
        sequence = self.devices.superblock.sequence + 1
        while True:
            row = self.found.get(sequence)
            if row is None and sequence <= self.durable:
                raise PoolError(f"the row {sequence} was durable, and is damaged")
            if row is None or sequence > self.durable and not self.is_whole(row):
                return
            yield row
            sequence += 1

    def is_whole(self, row):
        if row.is_copy:
            return False
        try:
            for record, place in row.payload():
                if record.has_payload():
                    self.devices.stored(Entry(place, record.crc, row.sequence), *record.tag())
        except PoolError:
            return False
        return True
