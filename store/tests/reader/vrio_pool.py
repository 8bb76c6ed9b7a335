#!/usr/bin/env python3
"""Reads a pool of vrio's store. Written after docs/store-format.md, not after the engine.

    vrio_pool.py list DEVICE...
    vrio_pool.py moments DEVICE...
    vrio_pool.py [--key FILE] extract VOLUME OUT DEVICE...

`list` prints each volume and snapshot: its id, kind, blocks and name. `moments` prints the moments
of histories: the volume, the id and the time in nanoseconds. `extract` writes the content of one of
them, named by its id or its name, to the file OUT. The devices are not changed.
"""

import json
import struct
import sys

from vrio_log import (
    ALIAS, ALIAS_CONTENT, ALIAS_KIND, BLOCK, CHANGE, CHANGE_KIND, DATA, FREE, LOST, LOST_KIND,
    FORGET_KIND, MOMENT_KIND, MOVE_KIND, NODE, STATE, TABLE, SEALED_KIND, RESEALED_KIND,
    WRITE_KIND, ZERO_KIND, NO_VOLUME, Devices, Entry,
    Log, PoolError, crc64)
from vrio_seal import Keys

NUMBER_MASK = (1 << 36) - 1
MOMENT_FIRST = 1 << 31  # the lowest id of a moment
MOMENTS_MAX = 80_000  # of a volume
GENERATION_END = (1 << 28) - 1 - (1 << 20)  # from here on no moments are taken
ENTRIES = 128  # of a table block
INDEX_ENTRIES = 127  # of an index block
WORDS = 512  # of a node
LEVELS = 4


class Version:
    """A volume or snapshot: its tree, and beside it what the log has changed since."""

    def __init__(self, fields):
        self.id, self.kind, self.name = fields["id"], fields["kind"], fields["name"]
        self.blocks, self.root = fields["blocks"], fields["root"]
        self.family = fields.get("family")
        self.receive = fields.get("receive")
        self.history = fields.get("history")
        # Of a moment: its volume, its generation and its time.
        self.of = self.generation = self.at_ns = None
        # Blocks of the tree from here on are cut off.
        self.tree_blocks = self.blocks
        self.changed = {}

    def split(self, number, kind, name):
        """What this volume is now, under another id."""
        other = Version({"id": number, "kind": kind, "name": name, "blocks": self.blocks,
                         "root": self.root, "family": self.family})
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

    def __init__(self, paths, key=None):
        self.devices = Devices(paths)
        self.keys = Keys(self.devices.uuid, key) if key else None
        self.contexts, self.families, self.next_family = {}, {}, 0
        self.cache = {}
        self.changed = {}  # page entries that the log has changed
        self.tables, self.next_id, self.versions = [], 0, {}
        self.generation, self.last_moment = 1, 0
        if self.devices.superblock.state_bytes:
            text, table = self.state()
            state = json.loads(text)
            self.tables = [state["data"], state["nodes"]]
            self.next_id = state["catalog"]["next_id"]
            versions = state["catalog"]["versions"]
            self.versions = {fields["id"]: Version(fields) for fields in versions}
            self.generation = state["catalog"]["generation"]
            self.last_moment = state["catalog"].get("last_moment", 0)
            for at in range(state["catalog"].get("moments", 0)):
                self.add_moment(table, 64 * at)
            families = state["catalog"].get("families", [])
            self.families = {fields["id"]: fields for fields in families}
            self.next_family = state["catalog"].get("next_family", 0)
            self.contexts = {fields["context"]: (fields["family"], fields["version"],
                                                 bytes.fromhex(fields["salt"])[::-1])
                             for fields in state.get("contexts", [])}
            for family in families:
                self.add_keys(family)
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
        """The JSON of the checkpoint's state and what is behind it: of each block, the copy that is
        whole."""
        count = -(-self.devices.superblock.state_bytes // BLOCK)
        copies = [self.state_entries(entry, count) for entry in self.devices.superblock.state]
        data = b""
        for index in range(count):
            data += self.first_whole([copy.get(index, FREE) for copy in copies], index)
        (length,) = struct.unpack_from("<Q", data, 0)
        return data[8:8 + length], data[8 + length:]

    def add_moment(self, table, at):
        number, of, _, generation, at_ns, root, blocks = struct.unpack_from("<IIIIQQQ", table, at)
        (family,) = struct.unpack_from("<I", table, at + 60)
        moment = Version({"id": number, "kind": "removing" if generation >> 31 else "moment",
                          "name": "", "blocks": blocks, "root": root,
                          "family": None if family == NO_VOLUME else family})
        moment.of, moment.generation, moment.at_ns = of, generation & (1 << 31) - 1, at_ns
        self.versions[number] = moment

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
        if not number:
            return None
        entry = self.entry(0, number)
        seal = self.seal_of(entry)
        if (seal is None) != (version.family is None):
            raise PoolError(f"the page {number} is sealed, or is not, and must be the other")
        if entry.alias_of() is not None:
            return self.alias(entry, number)
        if seal is None:
            return self.devices.page(entry, DATA, number)
        content = self.keys and self.keys.open(seal[0], number, *seal[1:], self.devices.raw(entry))
        if content is None:
            raise PoolError(f"the sealed page {number} is damaged, or its key was not given")
        return content

    def alias(self, entry, number):
        """The content of an alias. An alias of the log may have had no effect: then its check
        fails, and the page is where it was before."""
        shared = entry.alias_of()
        if not shared:
            return None
        try:
            content = self.devices.page(self.entry(0, shared), DATA, shared)
            front = self.devices.uuid + struct.pack("<QQQ", ALIAS_CONTENT, number, shared)
            if crc64(front, content) != entry.crc:
                raise PoolError(f"the page {number} is not the page {shared}, as it must be")
            return content
        except PoolError:
            if entry.before is None:
                raise
            return self.devices.page(entry.before, DATA, number)

    def add_keys(self, family):
        if self.keys:
            self.keys.add(family)

    def seal_of(self, entry):
        """The context, the sequence and the tag of a sealed page."""
        if entry.seal or not entry.extra >> 48:
            return entry.seal
        context = self.contexts.get(entry.extra >> 48)
        return context, entry.extra & (1 << 48) - 1, struct.pack("<QQ", entry.crc, entry.sequence)

    def sealed(self, place, record, family, sequence):
        """The entry of a page that the log has sealed."""
        versions = [key["version"] for key in self.families[family]["keys"]]
        version = next(each for each in versions if each & 0xFF == record.version)
        entry = Entry(place, 0, 0)
        entry.seal = (family, version, self.devices.superblock.salt), sequence, record.seal
        return entry

    def moved(self, old, place, record, sequence):
        if not old.seal and not old.extra >> 48:
            return Entry(place, record.crc, sequence)
        entry = Entry(place, old.crc, old.sequence, old.extra)
        entry.seal = old.seal
        return entry

    def apply(self, record, place, sequence):
        version = self.versions.get(record.volume)
        is_volume = version is not None and version.kind == "volume"
        if record.kind == WRITE_KIND and is_volume and record.block < version.blocks:
            version.changed[record.block] = record.number
            self.changed[record.number] = Entry(place, record.crc, sequence)
        elif record.kind == SEALED_KIND and is_volume and record.block < version.blocks:
            version.changed[record.block] = record.number
            self.changed[record.number] = self.sealed(place, record, version.family, sequence)
        elif record.kind == RESEALED_KIND:
            old = self.entry(0, record.number)
            if old.block() == record.place:
                family = self.seal_of(old)[0][0]
                self.changed[record.number] = self.sealed(place, record, family, sequence)
        elif record.kind == ZERO_KIND and is_volume:
            end = min(record.block + record.blocks, version.blocks)
            version.changed.update((at, 0) for at in range(record.block, end))
        elif record.kind == MOVE_KIND and self.entry(0, record.number).block() == record.place:
            old = self.entry(0, record.number)
            self.changed[record.number] = self.moved(old, place, record, sequence)
        elif record.kind == LOST_KIND and self.entry(0, record.number).block() == record.place:
            self.changed[record.number] = Entry(LOST, 0, 0)

        elif record.kind == MOMENT_KIND:
            self.take_moments(record)
        elif record.kind == FORGET_KIND:
            for moment in self.moments(record.volume):
                if moment.generation <= record.number:
                    moment.kind = "removing"
        elif record.kind == ALIAS_KIND and self.entry(0, record.number).block() == record.place:
            alias = Entry(ALIAS | record.block, record.crc, 0)
            alias.before = self.entry(0, record.number)
            self.changed[record.number] = alias

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

    def moments(self, volume=None):
        return [each for each in self.versions.values()
                if each.kind == "moment" and volume in (None, each.of)]

    def take_moments(self, record):
        taken = False
        for volume in record.volumes:
            head = self.versions.get(volume)
            is_volume = head is not None and head.kind == "volume" and head.history
            own = self.moments(volume)
            # A reader does not follow how far removals are: it cannot know that there are as many
            # as a pool has room for.
            if (not is_volume or head.receive or len(own) >= MOMENTS_MAX
                    or self.generation >= GENERATION_END):
                continue
            number = max(self.last_moment + 1, MOMENT_FIRST)
            moment = head.split(number, "moment", "")
            moment.of, moment.generation = volume, self.generation
            moment.at_ns = max([record.at_ns] + [each.at_ns for each in own])
            self.versions[number], self.last_moment, taken = moment, number, True
        self.generation += taken

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

    def change_create_sealed(self, name, blocks, family, key):
        fields = {"id": self.next_family, "uuid": family, "keys": [key]}
        self.families[self.next_family] = fields
        self.add_keys(fields)
        number = self.take_id()
        self.versions[number] = Version(
            {"id": number, "kind": "volume", "name": name, "blocks": blocks, "root": 0,
             "family": self.next_family})
        self.next_family += 1

    def change_rewrap(self, volume, keys):
        family = self.families[self.versions[volume].family]
        family["keys"] = keys
        self.add_keys(family)

    def change_rekey(self, volume, key):
        family = self.families[self.versions[volume].family]
        family["keys"].append(key)
        self.add_keys(family)

    def change_resealed(self, volume, version):
        family = self.families[self.versions[volume].family]
        family["keys"] = [key for key in family["keys"] if key["version"] != version]

    def change_shred(self, volume, all):
        del all
        family = self.versions[volume].family
        self.families[family]["keys"] = []
        for version in self.versions.values():
            if version.family == family:
                version.kind, version.name = "removing", ""

    def change_resize(self, volume, blocks):
        if blocks < self.versions[volume].blocks:
            self.keep(volume, "removing", "")
            self.generation += 1
        self.versions[volume].resize(blocks)

    def change_compression(self, volume, compression):
        """Of no interest to a reader: each page says how it is packed."""

    def change_rename(self, volume, name):
        self.versions[volume].name = name

    def change_snapshot(self, volumes, name, at_s):
        del at_s
        for volume in volumes:
            self.keep(volume, "snapshot", name)
        self.generation += 1

    def change_clone(self, snapshot, name):
        number = self.take_id()
        self.versions[number] = self.versions[snapshot].split(number, "volume", name)

    def change_rollback(self, volume, snapshot):
        self.keep(volume, "removing", "")
        self.versions[volume].become(self.versions[snapshot])

    def change_history(self, volume, history):
        self.versions[volume].history = history

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
        self.generation += 1

    def list(self):
        return [version for version in self.versions.values()
                if version.kind not in ("removing", "moment")]

    def find(self, name):
        found = [each for each in self.list() + self.moments() if name in (str(each.id), each.name)]
        if len(found) != 1:
            raise PoolError(f"{len(found)} volumes or snapshots are called {name}")
        return found[0]


def main(arguments):
    key = None
    if arguments[:1] == ["--key"]:
        key, arguments = arguments[1], arguments[2:]
    if len(arguments) >= 2 and arguments[0] == "list":
        for version in Pool(arguments[1:]).list():
            print(version.id, version.kind, version.blocks, version.name)
    elif len(arguments) >= 2 and arguments[0] == "moments":
        for moment in Pool(arguments[1:]).moments():
            print(moment.of, moment.id, moment.at_ns)
    elif len(arguments) >= 4 and arguments[0] == "extract":
        pool = Pool(arguments[3:], key)
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
