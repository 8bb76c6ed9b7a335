//! Front ends that say wrong things: each ends its own connection, and the next front end is
//! served as if nothing had been.

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use vhost::vhost_user::message::VhostUserInflight;
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserDirtyLogRegion};

use random::Random;

use super::ring::*;
use super::server::*;
use crate::inflight::InflightRegion;
use crate::{MEMORY_BYTES_MAX, REGIONS_MAX, RingKind};

/// Says something that must be refused; the connection must end, and the next must work.
fn refused(bed: &mut Bed, wrong: impl FnOnce(&Bed, &mut Frontend) -> bool) {
    let before = bed.device.state().disconnects;
    let mut front_end = bed.connect();
    assert!(wrong(bed, &mut front_end), "it was accepted");
    front_end.get_features().unwrap_err();
    bed.wait_for_disconnects(before + 1);
}

fn still_works(bed: &mut Bed) {
    let mut front_end = bed.connect();
    let base = bed.ring.avail_idx;
    bed.start(&mut front_end, 0, base);
    bed.round_trip(0, 0);
}

#[test]
fn bad_memory_is_refused() {
    let mut bed = Bed::new();
    let len = LEN as u64;
    let mut table = |regions: &[(u64, u64, u64)]| {
        refused(&mut bed, |bed, front_end| {
            let regions = regions.iter().map(|&(at, offset, len)| bed.region(at, offset, len));
            front_end.set_mem_table(&regions.collect::<Vec<_>>()).is_err()
        });
    };
    // Overlapping by a byte, and wholly.
    table(&[(0, 0, len), (len - 1, 0, len)]);
    table(&[(0, 0, len), (0, 0, len)]);
    // Beyond the file: by a byte, by its offset, by far.
    table(&[(0, 0, 2 * len + 1)]);
    table(&[(0, 2 * len, 1)]);
    table(&[(0, 0, MEMORY_BYTES_MAX)]);
    table(&[(0, 0, MEMORY_BYTES_MAX + 1)]);
    // Around the end of the addresses.
    table(&[(u64::MAX - BASE - 1, 0, len)]);
    table(&[(0, u64::MAX - 1, len)]);
    table(&[(0, 0, u64::MAX - BASE)]);
    still_works(&mut bed);
}

#[test]
fn memory_that_is_no_file_is_refused() {
    let mut bed = Bed::new();
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    let device = OwnedFd::from(std::fs::File::open("/dev/zero").unwrap());
    let read_only = {
        let path = bed.directory.path().join("memory");
        std::fs::write(&path, [0; 2 * LEN]).unwrap();
        OwnedFd::from(std::fs::File::open(&path).unwrap())
    };
    for fd in [&pipe, &device, &read_only] {
        refused(&mut bed, |bed, front_end| {
            let mut regions = bed.regions();
            regions[1].mmap_handle = fd.as_raw_fd();
            front_end.set_mem_table(&regions).is_err()
        });
    }
    still_works(&mut bed);
}

#[test]
fn slots_that_cannot_be_are_refused() {
    let mut bed = Bed::new();
    refused(&mut bed, |bed, front_end| front_end.remove_mem_region(&bed.regions()[0]).is_err());
    refused(&mut bed, |bed, front_end| {
        front_end.add_mem_region(&bed.regions()[0]).unwrap();
        front_end.remove_mem_region(&bed.region(0, 0, LEN as u64 - 1)).is_err()
    });
    refused(&mut bed, |bed, front_end| {
        front_end.add_mem_region(&bed.regions()[0]).unwrap();
        front_end.add_mem_region(&bed.regions()[0]).is_err()
    });
    refused(&mut bed, |bed, front_end| {
        for slot in 0..REGIONS_MAX as u64 {
            front_end.add_mem_region(&bed.region(slot << 20, 0, 4096)).unwrap();
        }
        front_end.add_mem_region(&bed.region(1 << 40, 0, 4096)).is_err()
    });
    still_works(&mut bed);
}

#[test]
fn bad_inflight_regions_are_refused() {
    let mut bed = Bed::new();
    let fresh = || InflightRegion::create((RingKind::Split, QUEUES as u16, 8)).unwrap();
    let mut set = |len, offset, queues, size, file: &OwnedFd| {
        refused(&mut bed, |_, front_end| {
            let region = VhostUserInflight::new(len, offset, queues, size);
            front_end.set_inflight_fd(&region, file.as_raw_fd()).is_err()
        });
    };
    let (file, len) = fresh();
    set(len - 1, 0, 3, 8, &file);
    set(len, 64, 3, 8, &file);
    set(len, 1, 3, 8, &file);
    set(len, u64::MAX - 63, 3, 8, &file);
    set(len, 0, 300, 8, &file);
    set(len, 0, 3, 16, &file);
    set(u64::MAX, 0, 3, u16::MAX, &file);
    set(u64::MAX, 0, 256, 1024, &file);
    let unsealed = memory_file(len);
    set(len, 0, 3, 8, &unsealed);
    refused(&mut bed, |_, front_end| {
        front_end.get_inflight_fd(&VhostUserInflight::new(0, 0, 3, 2048)).is_err()
    });
    refused(&mut bed, |bed, front_end| {
        bed.start(front_end, 0, 0);
        let region = VhostUserInflight::new(len, 0, 3, 8);
        front_end.set_inflight_fd(&region, file.as_raw_fd()).is_err()
    });
    still_works(&mut bed);
}

#[test]
fn bad_logs_are_refused() {
    let mut bed = Bed::new();
    let file = memory_file(4096);
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    let max = crate::dirty::LOG_BYTES_MAX;
    for (mmap_size, mmap_offset, file) in
        [(4097, 0, &file), (1, 4096, &file), (max + 1, 0, &file), (4096, 0, &pipe)]
    {
        refused(&mut bed, |_, front_end| {
            let mmap_handle = file.as_raw_fd();
            let log = VhostUserDirtyLogRegion { mmap_size, mmap_offset, mmap_handle };
            front_end.set_log_base(0, Some(log)).is_err()
        });
    }
    refused(&mut bed, |_, front_end| front_end.set_log_fd(pipe.as_raw_fd()).is_err());
    refused(&mut bed, |_, front_end| front_end.set_log_base(0, None).is_ok());
    still_works(&mut bed);
}

/// A message as it goes over the socket: version 1, and an answer is wanted.
fn send(stream: &UnixStream, request: u32, body: &[u8], fds: &[BorrowedFd<'_>]) {
    let header = [request, 0x9, body.len() as u32].map(u32::to_ne_bytes).concat();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)));
    }
    // The other side may have hung up already, which is what the test is about.
    let flags = SendFlags::NOSIGNAL;
    if sendmsg(stream, &[IoSlice::new(&header)], &mut ancillary, flags).is_ok() {
        let _ = (&*stream).write_all(body);
    }
}

const SET_VRING_NUM: u32 = 8;
const SET_VRING_ADDR: u32 = 9;
const SET_VRING_BASE: u32 = 10;
const GET_VRING_BASE: u32 = 11;
const SET_VRING_KICK: u32 = 12;
const SET_VRING_CALL: u32 = 13;
const SET_VRING_ERR: u32 = 14;
const SET_FEATURES: u32 = 2;
const SET_PROTOCOL_FEATURES: u32 = 16;

/// Sends one message and waits for the end of the connection.
fn ends(bed: &Bed, request: u32, body: &[u8], fds: &[BorrowedFd<'_>]) {
    let before = bed.device.state().disconnects;
    let stream = UnixStream::connect(bed.path()).unwrap();
    send(&stream, request, body, fds);
    let _ = (&stream).read_to_end(&mut Vec::new());
    bed.wait_for_disconnects(before + 1);
}

fn state(index: u32, number: u32) -> Vec<u8> {
    [index, number].map(u32::to_ne_bytes).concat()
}

#[test]
fn bad_vring_messages_end_the_connection() {
    let mut bed = Bed::new();
    for size in [0, 3, 2048, 65536, u32::MAX] {
        ends(&bed, SET_VRING_NUM, &state(0, size), &[]);
    }
    for index in [QUEUES as u32, 256, u32::MAX] {
        ends(&bed, SET_VRING_NUM, &state(index, 8), &[]);
        ends(&bed, SET_VRING_BASE, &state(index, 0), &[]);
        ends(&bed, GET_VRING_BASE, &state(index, 0), &[]);
        let addr = [state(index, 0), vec![0; 32]].concat();
        ends(&bed, SET_VRING_ADDR, &addr, &[]);
    }
    ends(&bed, SET_VRING_BASE, &state(0, 65536), &[]);
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    for request in [SET_VRING_KICK, SET_VRING_CALL, SET_VRING_ERR] {
        ends(&bed, request, &0u64.to_ne_bytes(), &[pipe.as_fd()]);
        ends(&bed, request, &0u64.to_ne_bytes(), &[]);
        ends(&bed, request, &255u64.to_ne_bytes(), &[bed.kick_fd()]);
    }
    ends(&bed, SET_FEATURES, &(1u64 << 63).to_ne_bytes(), &[]);
    // Post-copy is not offered.
    ends(&bed, SET_PROTOCOL_FEATURES, &(1u64 << 8).to_ne_bytes(), &[]);
    still_works(&mut bed);
}

#[test]
fn a_running_ring_refuses_changes() {
    let mut bed = Bed::new();
    refused(&mut bed, |bed, front_end| {
        bed.start(front_end, 0, 0);
        front_end.set_vring_num(0, 8).unwrap();
        front_end.set_vring_num(0, 4).is_err()
    });
    refused(&mut bed, |bed, front_end| {
        bed.start(front_end, 0, 0);
        front_end.set_vring_base(0, 0).is_err()
    });
    refused(&mut bed, |bed, front_end| {
        bed.start(front_end, 0, 0);
        let mut addrs = bed.addrs();
        front_end.set_vring_addr(0, &addrs).unwrap();
        addrs.used_ring_addr += 64;
        front_end.set_vring_addr(0, &addrs).is_err()
    });
    refused(&mut bed, |bed, front_end| {
        bed.start(front_end, 0, 0);
        front_end.set_features(0).is_err()
    });
    still_works(&mut bed);
}

#[test]
fn garbage_on_the_socket_ends_the_connection() {
    let mut bed = Bed::new();
    let seeds = 300;
    for seed in 0..seeds {
        let mut dice = Random::new(seed);
        let stream = UnixStream::connect(bed.path()).unwrap();
        for _ in 0..dice.below(12) {
            let request = if dice.one_in(8) { dice.draw() as u32 } else { dice.below(45) as u32 };
            let len = [0, 8, 8, 8, 20, 24, 32, 40, 44, dice.below(200)][dice.below(10) as usize];
            let small = dice.one_in(2);
            let byte = |dice: &mut Random| if small { dice.below(3) } else { dice.draw() } as u8;
            let body: Vec<u8> = (0..len).map(|_| byte(&mut dice)).collect();
            let fds = [bed.kick_fd(), bed.file.as_fd()];
            let count = dice.below(3) as usize;
            send(&stream, request, &body, &fds[..count]);
        }
        if dice.one_in(2) {
            let _ = (&stream).write_all(&[7; 5]);
        }
    }
    bed.wait_for_disconnects(seeds as usize);
    still_works(&mut bed);
}

#[test]
fn a_silent_front_end_does_not_hold_up_a_stop() {
    for bytes in [0, 5, 12] {
        let mut bed = Bed::new();
        let stream = UnixStream::connect(bed.path()).unwrap();
        // Part of a message, or a header whose body never comes.
        let header = [SET_VRING_NUM, 1, 8].map(u32::to_ne_bytes).concat();
        (&stream).write_all(&header[..bytes]).unwrap();
        bed.wait_for(&crate::ServerState::Connected);
        bed.server.take().unwrap().stop();
        assert_eq!(bed.device.state().disconnects, 1);
        assert!(!bed.path().exists());
    }
}

impl Bed {
    fn kick_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the eventfd belongs to the bed and lives as long as the borrow.
        unsafe { BorrowedFd::borrow_raw(self.kick.as_raw_fd()) }
    }
}
