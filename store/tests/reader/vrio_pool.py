#!/usr/bin/env python3
"""Reads a pool of vrio's store. Written after docs/store-format.md, not after the engine.

    vrio_pool.py list DEVICE...
    vrio_pool.py extract VOLUME OUT DEVICE...

`list` prints each volume and snapshot: its id, kind, blocks and name. `extract` writes the content
of one of them, named by its id or its name, to the file OUT. The devices are not changed.
"""

import json
import struct
import sys

from vrio_log import (
    BLOCK, CHANGE, CHANGE_KIND, DATA, FREE, LOST, LOST_KIND, MOVE_KIND, NODE, STATE, TABLE,
    WRITE_KIND, ZERO_KIND, Devices, Entry, Log, PoolError)

NUMBER_MASK = (1 << 40) - 1
ENTRIES = 128  # of a table block
INDEX_ENTRIES = 127  # of an index block
WORDS = 512  # of a node
LEVELS = 4


class Version:
    """A volume or snapshot: its tree, and beside it what the log has changed since."""

    def __init__(self, fields):
        self.id, self.kind, self.name = fields["id"], fields["kind"], fields["name"]
        self.blocks, self.root = fields["blocks"], fields["root"]
        self.receive = fields.get("receive")
        # Blocks of the tree from here on are cut off.
        self.tree_blocks = self.blocks
        self.changed = {}

    def split(self, number, kind, name):
        """What this volume is now, under another id."""
        other = Version({"id": number, "kind": kind, "name": name, "blocks": self.blocks,
                         "root": self.root})
        other.tree_blocks, other.changed = self.tree_blocks, dict(self.changed)
        return other

    def become(self, other):
        self.blocks, self.root, self.tree_blocks = other.blocks, other.root, other.tree_blocks
        self.changed = dict(other.changed)

    def resize(self, blocks):
        self.blocks = blocks
        self.tree_blocks = min(self.tree_blocks, blocks)
        self.changed = {at: page for at, page in self.changed.items() if at < blocks}


class Pool:
    """A pool as it is after the last whole row."""

    def __init__(self, paths):
        self.devices = Devices(paths)
        self.cache = {}
        self.changed = {}  # page entries that the log has changed
        self.tables, self.next_id, self.versions = [], 0, {}
        if self.devices.superblock.state_bytes:
            state = json.loads(self.state())
            self.tables = [state["data"], state["nodes"]]
            self.next_id = state["catalog"]["next_id"]
            versions = state["catalog"]["versions"]
            self.versions = {fields["id"]: Version(fields) for fields in versions}
        self.wants_copy = False  # the last change was damaged
        for row in Log(self.devices).rows():
            for record, place in row.payload():
                if record.kind == CHANGE_KIND:
                    self.apply_change(record, place, row.sequence)
                else:
                    self.apply(record, place, row.sequence)
        if self.wants_copy:
            raise PoolError("a change of the catalog is damaged, and has no copy")

    def state(self):
        """The JSON of the checkpoint's state: of each block, the copy that is whole."""
        count = -(-self.devices.superblock.state_bytes // BLOCK)
        copies = [self.state_entries(entry, count) for entry in self.devices.superblock.state]
        data = b""
        for index in range(count):
            data += self.first_whole([copy.get(index, FREE) for copy in copies], index)
        (length,) = struct.unpack_from("<Q", data, 0)
        return data[8:8 + length]

    def first_whole(self, entries, index):
        for entry in entries:
            try:
                return self.devices.page(entry, STATE, index)
            except PoolError:
                continue
        raise PoolError(f"the block {index} of the checkpoint's state is damaged in both copies")

    def state_entries(self, entry, count):
        """The entries of a copy's blocks, as far as its index is readable."""
        entries = {}
        for index in range(-(-count // INDEX_ENTRIES)):
            try:
                block = self.devices.page(entry, STATE, 1 << 63 | index)
            except PoolError:
                break
            for at in range(INDEX_ENTRIES):
                entries[index * INDEX_ENTRIES + at] = Entry.at(block, 32 * at)
            entry = Entry.at(block, 32 * INDEX_ENTRIES)
        return entries

    def entry(self, table, number):
        """The page entry of a data page (table 0) or node (table 1)."""
        if table == 0 and number in self.changed:
            return self.changed[number]
        return self.table_entry(table, 0, number)

    def table_entry(self, table, level, index):
        """The entry `index` in the blocks of a level."""
        block = self.table_block(table, level, index // ENTRIES)
        if block is None:
            return FREE
        return Entry.at(block, 32 * (index % ENTRIES))

    def table_block(self, table, level, index):
        if not self.tables:
            return None
        levels, root = self.tables[table]["levels"], self.tables[table]["root"]
        if level >= levels or level == levels - 1 and index > 0:
            return None
        if level == levels - 1:
            entry = Entry(*root)
        else:
            entry = self.table_entry(table, level + 1, index)
        return self.cached(entry, TABLE + 256 * level, 2 * index + table) if entry else None

    def cached(self, entry, domain, number):
        key = domain, number
        if key not in self.cache:
            self.cache[key] = self.devices.page(entry, domain, number)
        return self.cache[key]

    def number(self, version, block):
        """The number of the page of a block; 0 for zeroes."""
        if block in version.changed:
            return version.changed[block]
        if block >= version.tree_blocks:
            return 0
        word = version.root
        for level in reversed(range(LEVELS)):
            if word == 0:
                return 0
            number = word & NUMBER_MASK
            node = self.cached(self.entry(1, number), NODE, number)
            (word,) = struct.unpack_from("<Q", node, 8 * (block // WORDS ** level % WORDS))
        if word and not word & NUMBER_MASK:
            raise PoolError(f"block {block} was lost")
        return word & NUMBER_MASK

    def read(self, version, block):
        """The content of a block; nothing for zeroes."""
        number = self.number(version, block)
        return self.devices.page(self.entry(0, number), DATA, number) if number else None

    def apply(self, record, place, sequence):
        version = self.versions.get(record.volume)
        is_volume = version is not None and version.kind == "volume"
        if record.kind == WRITE_KIND and is_volume and record.block < version.blocks:
            version.changed[record.block] = record.number
            self.changed[record.number] = Entry(place, record.crc, sequence)
        elif record.kind == ZERO_KIND and is_volume:
            end = min(record.block + record.blocks, version.blocks)
            version.changed.update((at, 0) for at in range(record.block, end))
        elif record.kind == MOVE_KIND and self.entry(0, record.number).block() == record.place:
            self.changed[record.number] = Entry(place, record.crc, sequence)
        elif record.kind == LOST_KIND and self.entry(0, record.number).block() == record.place:
            self.changed[record.number] = Entry(LOST, 0, 0)

    def apply_change(self, record, place, sequence):
        """A change; its copy, which has the flag, counts only if the change is damaged."""
        if record.flag and not self.wants_copy:
            return
        try:
            data = self.devices.page(Entry(place, record.crc, sequence), CHANGE, 0)
        except PoolError:
            if record.flag:
                raise
            self.wants_copy = True
            return
        self.wants_copy = False
        ((name, fields),) = json.loads(data[:record.blocks]).items()
        getattr(self, "change_" + name)(**fields)

    def take_id(self):
        self.next_id += 1
        return self.next_id - 1

    def keep(self, volume, kind, name):
        """The volume's tree under an id of its own."""
        number = self.take_id()
        self.versions[number] = self.versions[volume].split(number, kind, name)

    def change_create(self, name, blocks):
        number = self.take_id()
        self.versions[number] = Version(
            {"id": number, "kind": "volume", "name": name, "blocks": blocks, "root": 0})

    def change_resize(self, volume, blocks):
        if blocks < self.versions[volume].blocks:
            self.keep(volume, "removing", "")
        self.versions[volume].resize(blocks)

    def change_compression(self, volume, compression):
        """Of no interest to a reader: each page says how it is packed."""

    def change_rename(self, volume, name):
        self.versions[volume].name = name

    def change_snapshot(self, volumes, name, at_s):
        del at_s
        for volume in volumes:
            self.keep(volume, "snapshot", name)

    def change_clone(self, snapshot, name):
        number = self.take_id()
        self.versions[number] = self.versions[snapshot].split(number, "volume", name)

    def change_rollback(self, volume, snapshot):
        self.keep(volume, "removing", "")
        self.versions[volume].become(self.versions[snapshot])

    def change_quota(self, volume, reservation, limit):
        """It has no effect on what a volume has."""

    def change_remove(self, volume):
        self.versions[volume].kind, self.versions[volume].name = "removing", ""

    def change_clear(self, volume):
        self.keep(volume, "removing", "")
        version = self.versions[volume]
        version.root, version.changed = 0, {}

    def change_receive_new(self, volume_name, receive):
        self.change_create(volume_name, receive["blocks"])
        self.versions[self.next_id - 1].receive = receive

    def change_receive(self, volume, receive):
        self.versions[volume].receive = receive

    def change_received(self, volume):
        receive, self.versions[volume].receive = self.versions[volume].receive, None
        self.keep(volume, "snapshot", receive["name"])

    def list(self):
        return [version for version in self.versions.values() if version.kind != "removing"]

    def find(self, name):
        found = [each for each in self.list() if name in (str(each.id), each.name)]
        if len(found) != 1:
            raise PoolError(f"{len(found)} volumes or snapshots are called {name}")
        return found[0]


def main(arguments):
    if len(arguments) >= 2 and arguments[0] == "list":
        for version in Pool(arguments[1:]).list():
            print(version.id, version.kind, version.blocks, version.name)
    elif len(arguments) >= 4 and arguments[0] == "extract":
        pool = Pool(arguments[3:])
        version = pool.find(arguments[1])
        with open(arguments[2], "wb") as out:
            for block in range(version.blocks):
                content = pool.read(version, block)
                if content:
                    out.seek(block * BLOCK)
                    out.write(content)
            out.truncate(version.blocks * BLOCK)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except PoolError as error:
        sys.exit(f"vrio_pool.py: {error}")
