"""Opening sealed pages of a pool: AES-256-GCM and HKDF-SHA-256, with Python alone."""

import base64
import hashlib
import hmac
import struct


def hkdf(secret, salt, info):
    """32 bytes of HKDF-SHA-256."""
    key = hmac.new(salt or bytes(32), secret, hashlib.sha256).digest()
    return hmac.new(key, info + b"\x01", hashlib.sha256).digest()


def multiply(a, b):
    """The product in the field of AES."""
    product = 0
    while b:
        product ^= a if b & 1 else 0
        a = a << 1 ^ (0x11B if a & 0x80 else 0)
        b >>= 1
    return product


def inverse(value):
    """The inverse in the field of AES: the power of 254."""
    result = 1
    for _ in range(254):
        result = multiply(result, value)
    return result


def substitution():
    box = []
    for value in range(256):
        inverted = inverse(value) if value else 0
        turned = inverted
        for _ in range(4):
            inverted = (inverted << 1 | inverted >> 7) & 0xFF
            turned ^= inverted
        box.append(turned ^ 0x63)
    return box


BOX = substitution()
# A column of the state after the substitution and the mixing of columns, by its byte.
MIXED = [[int.from_bytes(bytes(multiply(BOX[value], (2, 1, 1, 3)[(row - at) % 4])
                               for row in range(4)), "big")
          for value in range(256)] for at in range(4)]


class Aes:
    """AES-256, one way."""

    def __init__(self, key):
        words = list(struct.unpack(">8I", key))
        constant = 1
        for at in range(8, 60):
            word = words[-1]
            if at % 8 == 0:
                word = (word << 8 | word >> 24) & 0xFFFFFFFF
                word = self.substitute(word) ^ constant << 24
                constant = multiply(constant, 2)
            elif at % 8 == 4:
                word = self.substitute(word)
            words.append(words[-8] ^ word)
        self.words = words

    @staticmethod
    def substitute(word):
        return int.from_bytes(bytes(BOX[byte] for byte in word.to_bytes(4, "big")), "big")

    def block(self, data):
        state = [word ^ key for word, key in zip(struct.unpack(">4I", data), self.words)]
        for turn in range(1, 14):
            keys = self.words[4 * turn:]
            state = [MIXED[0][state[at] >> 24] ^ MIXED[1][state[(at + 1) % 4] >> 16 & 0xFF]
                     ^ MIXED[2][state[(at + 2) % 4] >> 8 & 0xFF]
                     ^ MIXED[3][state[(at + 3) % 4] & 0xFF] ^ keys[at] for at in range(4)]
        last = [BOX[state[at] >> 24] << 24 | BOX[state[(at + 1) % 4] >> 16 & 0xFF] << 16
                | BOX[state[(at + 2) % 4] >> 8 & 0xFF] << 8 | BOX[state[(at + 3) % 4] & 0xFF]
                for at in range(4)]
        return struct.pack(">4I", *(word ^ key for word, key in zip(last, self.words[56:])))


def ghash_table(hash_key):
    """The products of the hash key with each byte in each of 16 places."""
    powers, power = [], hash_key
    for _ in range(128):
        powers.append(power)
        power = power >> 1 ^ (0xE1 << 120 if power & 1 else 0)
    table = []
    for place in range(16):
        row = [0] * 256
        for bit in range(8):
            for value in range(256):
                if value >> (7 - bit) & 1:
                    row[value] ^= powers[8 * place + bit]
        table.append(row)
    return table


class Gcm:
    """AES-256-GCM for opening."""

    def __init__(self, key):
        self.aes = Aes(key)
        self.table = ghash_table(int.from_bytes(self.aes.block(bytes(16)), "big"))

    def ghash(self, data):
        value = 0
        for at in range(0, len(data), 16):
            value ^= int.from_bytes(data[at:at + 16], "big")
            value = self.times(value)
        return value

    def times(self, value):
        product = 0
        for place, byte in enumerate(value.to_bytes(16, "big")):
            product ^= self.table[place][byte]
        return product

    def open(self, nonce, sealed, tag, extra=b""):
        """The text, or nothing if the tag is another one."""
        padded = [part + bytes(-len(part) % 16) for part in (extra, sealed)]
        lengths = struct.pack(">QQ", 8 * len(extra), 8 * len(sealed))
        value = self.ghash(padded[0] + padded[1] + lengths)
        mask = self.aes.block(nonce + struct.pack(">I", 1))
        if not hmac.compare_digest((value ^ int.from_bytes(mask, "big")).to_bytes(16, "big"), tag):
            return None
        stream = b"".join(self.aes.block(nonce + struct.pack(">I", count))
                          for count in range(2, 2 + len(padded[1]) // 16))
        text = int.from_bytes(sealed, "big") ^ int.from_bytes(stream[:len(sealed)], "big")
        return text.to_bytes(len(sealed), "big")


def wrapping_key(path):
    """The wrapping key of a key file: its second line has the secret."""
    with open(path, encoding="ascii") as file:
        secret = base64.b64decode(file.read().splitlines()[1].split(": ")[1])
    return hkdf(secret, b"", b"vrio pool wrapping key")


class Keys:
    """The keys of the families that a wrapping key opens."""

    def __init__(self, uuid, path):
        self.uuid, self.wrapping = uuid, Gcm(wrapping_key(path))
        self.data, self.pages = {}, {}

    def name(self, family, version):
        return self.uuid + bytes.fromhex(family["uuid"]) + struct.pack("<I", version)

    def add(self, family):
        for key in family["keys"]:
            sealed, name = bytes.fromhex(key["sealed"]), self.name(family, key["version"])
            nonce = bytes.fromhex(key["nonce"])
            data = self.wrapping.open(nonce, sealed[:32], sealed[32:], name)
            if data is not None:
                self.data[family["id"], key["version"]] = data, name

    def open(self, context, number, sequence, tag, page):
        """A page, or nothing if it does not open."""
        family, version, salt = context
        if (family, version) not in self.data:
            return None
        if context not in self.pages:
            data, name = self.data[family, version]
            self.pages[context] = Gcm(hkdf(data, salt, b"vrio pool page key" + name))
        nonce = number.to_bytes(5, "little") + sequence.to_bytes(7, "little")
        return self.pages[context].open(nonce, page, tag)
