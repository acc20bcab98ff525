"""One entry in a folder's POSIX access list: the right to walk through, for one user.

`chmod o+x /root` would open the folder to every user of the machine; the entry opens it to the one user only.
Layout of the attribute: linux/posix_acl_xattr.h (u32 version 2, then u16 tag, u16 permissions, u32 id each).
"""

import os
import struct
from pathlib import Path

_ATTRIBUTE = "system.posix_acl_access"
_VERSION = struct.pack("<I", 2)
_ENTRY = struct.Struct("<HHI")
_OWNER, _USER, _GROUP, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
_NO_ID = 0xFFFFFFFF
_SEARCH = 1

Entries = dict[tuple[int, int], int]


def allow_search(folder: Path, uid: int) -> None:
    """Lets `uid` walk through `folder`. Where the file system has no access lists: everybody (o+x)."""
    try:
        entries = with_search(_entries(folder), uid)
        os.setxattr(folder, _ATTRIBUTE, _encode(entries))
    except (OSError, AttributeError):
        folder.chmod(folder.stat().st_mode | 0o001)


def with_search(entries: Entries, uid: int) -> Entries:
    """`entries` plus search for `uid`; the mask grows so that the entry counts, others keep what they had."""
    group = entries.get((_GROUP, _NO_ID), 0)
    mask = entries.get((_MASK, _NO_ID), group)
    added = {(_USER, uid): entries.get((_USER, uid), 0) | _SEARCH, (_MASK, _NO_ID): mask | _SEARCH}
    return {**entries, **added}


def _entries(folder: Path) -> Entries:
    try:
        raw = os.getxattr(folder, _ATTRIBUTE)[len(_VERSION) :]
    except OSError:
        mode = folder.stat().st_mode
        return {
            (_OWNER, _NO_ID): mode >> 6 & 7,
            (_GROUP, _NO_ID): mode >> 3 & 7,
            (_OTHER, _NO_ID): mode & 7,
        }
    return {(tag, uid): permissions for tag, permissions, uid in _ENTRY.iter_unpack(raw)}


def _encode(entries: Entries) -> bytes:
    """The kernel wants the entries in the order of tag and id."""
    return _VERSION + b"".join(_ENTRY.pack(tag, entries[tag, uid], uid) for tag, uid in sorted(entries))
