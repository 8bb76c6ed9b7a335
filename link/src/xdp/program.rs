//! The programs at an interface: one hands our datagrams to our sockets and all else to the system,
//! the other hands over everything; and the maps by which they know the sockets. A program goes
//! when the last process does that holds it.
//!
//! A datagram is ours if its destination (address and port) is in the first map, and it came by the
//! receive queue that is noted there. A datagram that came by another queue takes the system's way,
//! to the UDP socket of the same port. So each sidecore gets exactly its own.

use std::ffi::c_long;
use std::io;
use std::net::SocketAddrV4;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Addresses of sidecores that use an interface.
const PORTS_MAX: u32 = 256;

/// Receive queues of an interface.
const QUEUES_MAX: u32 = 256;

/// Numbers of `linux/bpf.h`.
const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE_ELEM: libc::c_int = 2;
const PROG_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;
const MAP_TYPE_HASH: u32 = 1;
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
const XDP_HAS_FRAGS: u32 = 1 << 5;
const XDP_DROP: i32 = 1;
const XDP_PASS: i32 = 2;
const CALL_MAP_LOOKUP: i32 = 1;
const CALL_REDIRECT_MAP: i32 = 51;
const PSEUDO_MAP_FD: u8 = 1;

/// The kernel's verifier says this much when it refuses a program.
const LOG_BYTES: usize = 4096;

/// A program that is attached to an interface; it goes when its last holder does.
#[derive(Debug)]
pub(super) struct Program {
    /// Nothing where all is ours.
    ports: Option<OwnedFd>,
    sockets: OwnedFd,
    link: OwnedFd,
}

impl Program {
    /// Attaches the program for datagrams to an interface. `frags`: packets may come in pieces.
    ///
    /// # Errors
    /// Without the right to (CAP_BPF and CAP_NET_ADMIN), where another program is attached, or on a
    /// kernel that is too old.
    pub(super) fn for_datagrams(interface_index: u32, frags: bool) -> io::Result<Self> {
        let key_bytes = size_of::<[u32; 2]>() as u32;
        let ports = map(MAP_TYPE_HASH, key_bytes, PORTS_MAX)?;
        let sockets = map(MAP_TYPE_XSKMAP, size_of::<u32>() as u32, QUEUES_MAX)?;
        let program = instructions(ports.as_raw_fd(), sockets.as_raw_fd());
        let link = attach(&program, interface_index, frags)?;
        Ok(Self { ports: Some(ports), sockets, link })
    }

    /// Attaches the program that hands over all packets that come by a queue with a socket.
    ///
    /// # Errors
    /// As [`for_datagrams`](Self::for_datagrams).
    pub(super) fn for_all(interface_index: u32, frags: bool) -> io::Result<Self> {
        let sockets = map(MAP_TYPE_XSKMAP, size_of::<u32>() as u32, QUEUES_MAX)?;
        let link = attach(&all_instructions(sockets.as_raw_fd()), interface_index, frags)?;
        Ok(Self { ports: None, sockets, link })
    }

    /// The descriptor that keeps the program attached. The program serves the sockets that it has
    /// by then for good.
    pub(super) fn into_link(self) -> OwnedFd {
        self.link
    }

    /// From now on datagrams to `local` that come by this queue go to this socket.
    ///
    /// # Errors
    /// When the interface has no such queue that there is room for.
    pub(super) fn serve(
        &self,
        local: SocketAddrV4,
        queue: u32,
        socket: BorrowedFd<'_>,
    ) -> io::Result<()> {
        self.serve_queue(queue, socket)?;
        let ports = self.ports.as_ref().ok_or(io::ErrorKind::InvalidInput)?;
        update(ports, &port_key(local), &queue)
    }

    /// From now on what is ours of this queue goes to this socket.
    ///
    /// # Errors
    /// When the interface has no such queue that there is room for.
    pub(super) fn serve_queue(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        update(&self.sockets, &queue, &(socket.as_raw_fd() as u32))
    }
}

/// Address and port, each as they are in a packet.
fn port_key(local: SocketAddrV4) -> [u32; 2] {
    let port = u16::from_ne_bytes(local.port().to_be_bytes());
    [u32::from_ne_bytes(local.ip().octets()), u32::from(port)]
}

#[repr(C)]
struct MapCreate {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries_max: u32,
    flags: u32,
}

#[repr(C)]
struct MapUpdate {
    map: RawFd,
    _pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
#[derive(Default)]
struct ProgLoad {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface_index: u32,
    attach_type: u32,
}

#[repr(C)]
struct LinkCreate {
    program: RawFd,
    interface_index: u32,
    attach_type: u32,
    flags: u32,
}

/// bpf(2) for commands that give a descriptor.
fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<OwnedFd> {
    let made = call(command, attributes)?;
    let made = RawFd::try_from(made).map_err(io::Error::other)?;
    // SAFETY: the system has just made it, for us.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

fn call<T>(command: libc::c_int, attributes: &T) -> io::Result<c_long> {
    // SAFETY: the attributes are a structure of `linux/bpf.h` for this command, with its length.
    // The memory that it points to outlives the call (the callers see to it). The kernel writes
    // only to the log, through a pointer that was made from a mutable slice.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<T>())
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn map(kind: u32, key_bytes: u32, entries_max: u32) -> io::Result<OwnedFd> {
    let value_bytes = size_of::<u32>() as u32;
    bpf(MAP_CREATE, &MapCreate { kind, key_bytes, value_bytes, entries_max, flags: 0 })
}

fn update<K>(map: &OwnedFd, key: &K, value: &u32) -> io::Result<()> {
    let key = std::ptr::from_ref(key) as u64;
    let value = std::ptr::from_ref(value) as u64;
    let attributes = MapUpdate { map: map.as_raw_fd(), _pad: 0, key, value, flags: 0 };
    call(MAP_UPDATE_ELEM, &attributes).map(drop)
}

/// Loads a program and attaches it. It stays as long as any process has the returned descriptor.
fn attach(program: &[Instruction], interface_index: u32, frags: bool) -> io::Result<OwnedFd> {
    let program = load(program, frags)?;
    let attributes = LinkCreate {
        program: program.as_raw_fd(),
        interface_index,
        attach_type: ATTACH_XDP,
        flags: 0,
    };
    bpf(LINK_CREATE, &attributes)
}

fn load(instructions: &[Instruction], frags: bool) -> io::Result<OwnedFd> {
    let mut log = [0u8; LOG_BYTES];
    let license = c"Apache-2.0";
    let attributes = ProgLoad {
        kind: PROG_TYPE_XDP,
        count: instructions.len() as u32,
        instructions: instructions.as_ptr() as u64,
        license: license.as_ptr() as u64,
        log_level: 1,
        log_bytes: LOG_BYTES as u32,
        log: log.as_mut_ptr() as u64,
        flags: if frags { XDP_HAS_FRAGS } else { 0 },
        name: *b"vrio\0\0\0\0\0\0\0\0\0\0\0\0",
        attach_type: ATTACH_XDP,
        ..ProgLoad::default()
    };
    bpf(PROG_LOAD, &attributes).inspect_err(|_| {
        let said = String::from_utf8_lossy(&log);
        tracing::debug!(verifier = said.trim_end_matches('\0'), "the kernel refused the program");
    })
}

/// As `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Instruction {
    code: u8,
    /// Destination in the lower half, source in the upper.
    registers: u8,
    offset: i16,
    immediate: i32,
}

const fn instruction(code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction { code, registers: to | from << 4, offset, immediate }
}

/// Operation codes: class, size or source, operation.
mod code {
    pub(super) const LOAD_U32: u8 = 0x61;
    pub(super) const LOAD_U16: u8 = 0x69;
    pub(super) const LOAD_U8: u8 = 0x71;
    pub(super) const STORE_U32: u8 = 0x63;
    pub(super) const LOAD_IMMEDIATE_64: u8 = 0x18;
    pub(super) const MOVE: u8 = 0xbf;
    pub(super) const MOVE_IMMEDIATE: u8 = 0xb7;
    pub(super) const ADD_IMMEDIATE: u8 = 0x07;
    pub(super) const AND_IMMEDIATE: u8 = 0x57;
    pub(super) const JUMP_IF_GREATER: u8 = 0x2d;
    pub(super) const JUMP_IF_NOT: u8 = 0x55;
    pub(super) const JUMP_IF: u8 = 0x15;
    pub(super) const JUMP_IF_DIFFERENT: u8 = 0x5d;
    pub(super) const CALL: u8 = 0x85;
    pub(super) const EXIT: u8 = 0x95;
}

/// Offsets in `struct xdp_md`.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const RECEIVE_QUEUE: i16 = 16;

/// Puts a map into a register.
fn load_map(to: u8, map: RawFd) -> [Instruction; 2] {
    let first = instruction(code::LOAD_IMMEDIATE_64, to, PSEUDO_MAP_FD, 0, map);
    [first, instruction(0, 0, 0, 0, 0)]
}

/// The program for everything: to the socket of its receive queue. Where there is none (before it
/// is served, or behind a queue that was added later) the packet is nobody's: the system must not
/// hear what is for guests, nor answer it.
fn all_instructions(sockets: RawFd) -> Vec<Instruction> {
    use code::*;
    let mut all = vec![instruction(LOAD_U32, 2, 1, RECEIVE_QUEUE, 0)];
    all.extend(load_map(1, sockets));
    all.extend([
        instruction(MOVE_IMMEDIATE, 3, 0, 0, XDP_DROP),
        instruction(CALL, 0, 0, 0, CALL_REDIRECT_MAP),
        instruction(EXIT, 0, 0, 0, 0),
    ]);
    all
}

/// The program for datagrams. Registers: 2 is the packet, 6 the context, 10 the stack; a jump to
/// `PASS` is resolved once its distance is known.
fn instructions(ports: RawFd, sockets: RawFd) -> Vec<Instruction> {
    use code::*;
    const PASS: i16 = i16::MAX;
    let be16 = |value: u16| i32::from(u16::from_ne_bytes(value.to_be_bytes()));
    let mut all = vec![
        instruction(MOVE, 6, 1, 0, 0),
        instruction(LOAD_U32, 2, 1, DATA, 0),
        instruction(LOAD_U32, 3, 1, DATA_END, 0),
        // The headers of Ethernet (14), IPv4 (20) and UDP (8) are there.
        instruction(MOVE, 4, 2, 0, 0),
        instruction(ADD_IMMEDIATE, 4, 0, 0, 42),
        instruction(JUMP_IF_GREATER, 4, 3, PASS, 0),
        // IPv4, without options, no fragment, UDP.
        instruction(LOAD_U16, 5, 2, 12, 0),
        instruction(JUMP_IF_NOT, 5, 0, PASS, be16(0x0800)),
        instruction(LOAD_U8, 5, 2, 14, 0),
        instruction(JUMP_IF_NOT, 5, 0, PASS, 0x45),
        instruction(LOAD_U16, 5, 2, 20, 0),
        instruction(AND_IMMEDIATE, 5, 0, 0, be16(0x3fff)),
        instruction(JUMP_IF_NOT, 5, 0, PASS, 0),
        instruction(LOAD_U8, 5, 2, 23, 0),
        instruction(JUMP_IF_NOT, 5, 0, PASS, 17),
        // Its destination is one of ours.
        instruction(LOAD_U32, 5, 2, 30, 0),
        instruction(STORE_U32, 10, 5, -8, 0),
        instruction(LOAD_U16, 5, 2, 36, 0),
        instruction(STORE_U32, 10, 5, -4, 0),
        instruction(MOVE, 2, 10, 0, 0),
        instruction(ADD_IMMEDIATE, 2, 0, 0, -8),
    ];
    all.extend(load_map(1, ports));
    all.extend([
        instruction(CALL, 0, 0, 0, CALL_MAP_LOOKUP),
        instruction(JUMP_IF, 0, 0, PASS, 0),
        // And it came by the receive queue of that destination.
        instruction(LOAD_U32, 2, 0, 0, 0),
        instruction(LOAD_U32, 3, 6, RECEIVE_QUEUE, 0),
        instruction(JUMP_IF_DIFFERENT, 2, 3, PASS, 0),
    ]);
    all.extend(load_map(1, sockets));
    all.extend([
        instruction(MOVE_IMMEDIATE, 3, 0, 0, XDP_PASS),
        instruction(CALL, 0, 0, 0, CALL_REDIRECT_MAP),
        instruction(EXIT, 0, 0, 0, 0),
    ]);
    let pass = all.len() as i16;
    all.extend([instruction(MOVE_IMMEDIATE, 0, 0, 0, XDP_PASS), instruction(EXIT, 0, 0, 0, 0)]);
    for (at, instruction) in all.iter_mut().enumerate() {
        if instruction.offset == PASS {
            instruction.offset = pass - at as i16 - 1;
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_jump_leads_to_the_end() {
        let all = instructions(3, 4);
        let pass = all.len() - 2;
        let jumps = all
            .iter()
            .enumerate()
            .filter(|(_, one)| one.code & 7 == 5 && ![code::CALL, code::EXIT].contains(&one.code));
        let mut count = 0;
        for (at, jump) in jumps {
            assert_eq!(at as i16 + 1 + jump.offset, pass as i16, "the jump at {at}");
            count += 1;
        }
        assert_eq!(count, 7);
    }

    #[test]
    fn an_address_is_as_in_a_packet() {
        let key = port_key("10.1.2.3:4870".parse().unwrap());
        assert_eq!(key.map(u32::to_ne_bytes), [[10, 1, 2, 3], [0x13, 0x06, 0, 0]]);
    }

    /// As the kernel reads it for BPF_PROG_TEST_RUN, as far as it has to be there.
    #[repr(C)]
    #[derive(Default)]
    struct TestRun {
        program: RawFd,
        said: u32,
        bytes_in: u32,
        bytes_out: u32,
        data_in: u64,
        data_out: u64,
        repeat: u32,
        took_ns: u32,
    }

    /// The verdict of a program on a packet that is none of ours, with no socket in its map.
    fn run(program: &[Instruction]) -> io::Result<u32> {
        const PROG_TEST_RUN: libc::c_int = 10;
        let program = load(program, false)?;
        let packet = [0_u8; 64];
        let mut run = TestRun {
            program: program.as_raw_fd(),
            bytes_in: packet.len() as u32,
            data_in: packet.as_ptr() as u64,
            repeat: 1,
            ..TestRun::default()
        };
        let (at, len) = (&raw mut run, size_of::<TestRun>());
        // SAFETY: the kernel reads the packet, and writes its answer into the structure.
        let asked = unsafe { libc::syscall(libc::SYS_bpf, PROG_TEST_RUN, at, len) };
        if asked < 0 { Err(io::Error::last_os_error()) } else { Ok(run.said) }
    }

    #[test]
    fn packets_without_a_socket_are_dropped_or_passed_on() {
        let map = |kind, key_bytes| map(kind, key_bytes, 1);
        let maps = map(MAP_TYPE_XSKMAP, 4).and_then(|it| Ok((it, map(MAP_TYPE_HASH, 8)?)));
        let (sockets, ports) = match maps {
            Ok(maps) => maps,
            Err(error) => {
                let name = "packets_without_a_socket_are_dropped_or_passed_on";
                return println!("SKIP {name}: {error}");
            }
        };
        let (sockets, ports) = (sockets.as_raw_fd(), ports.as_raw_fd());
        assert_eq!(run(&all_instructions(sockets)).unwrap(), XDP_DROP as u32);
        assert_eq!(run(&instructions(ports, sockets)).unwrap(), XDP_PASS as u32);
    }
}
